"""The `foldline` command: finds the subcommands and turns every error into a sentence and an exit code.

0 done, 1 findings at or above --fail-on, 2 usage, 3 incomplete, 70 a bug of ours, 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from foldline import __version__
from foldline.cli.common import Authorised, check_json, report_crash, say
from foldline.errors import FoldlineError
from foldline.oracles.authorisation import authorised

COMMANDS = {
    "audit": "Attack a model as a stranger would, and report what it gave away.",
    "probe": "What a target answers: sizes, kind, rounding, noise, speed.",
    "train": "Train a victim by a named recipe, to attack it and judge the attack.",
    "span": "Which directions of its input a target reads.",
    "extract": "Rebuild a one-hidden-layer network exactly.",
    "learn": "Learn a one-hidden-layer network, degenerate ones too.",
    "imitate": "Train a student on few explained queries.",
    "reconstruct": "Training images out of weights, or out of a black box.",
    "obfuscate": "Noise that a target cannot see.",
    "serve": "A model behind a real HTTP API, with any defence switched on.",
    "report": "Write a report's HTML, JSON, SARIF and JUnit again.",
}
INTERRUPTED = 130
BUG = 70

app = typer.Typer(
    name="foldline", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    help="What a neural network gives away: to queries, to explanations, and out of its weights.\n\n"
         "Start with [bold]foldline audit[/] (a demo, from victim to report) or "
         "[bold]foldline probe TARGET[/].",
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"foldline {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True,
                                          help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback instead of a sentence.")] = False,
) -> None:
    """Options of every command; `main` has read --debug already, wherever it stood."""


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Ctrl-C, a reader that went away, --json into nowhere and another run's folder, before typer sees them."""
    signature = inspect.signature(command, eval_str=True)
    # Whatever asks a target may ask an HTTP one: the option is added to each such command that does not have it.
    asks = "target" in signature.parameters and "authorised" not in signature.parameters

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        check_json(arguments.get("json_out"))
        said = arguments.pop("authorised", None) if asks else None
        try:
            if arguments.get("run") is not None:
                from foldline.oracles.transcript import same_maker
                same_maker(arguments["run"] / "command.json", {
                    "command": command.__module__.rpartition(".")[2],
                    **{name: arguments[name] for name in ("target", "seed") if name in arguments}})
            with authorised(said) if said is not None else contextlib.nullcontext():
                command(**arguments)
            sys.stdout.flush()
        except KeyboardInterrupt:
            stopped(has_run="run" in arguments)
            leave_now(INTERRUPTED)
        except BrokenPipeError:
            # The reader (head, less) has seen enough. Python would complain once more when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    if asks:
        extra = inspect.Parameter("authorised", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Authorised)
        vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), extra])
    return run


def leave_now(code: int) -> NoReturn:
    """Without the interpreter's farewell, which takes torch half a second: run folders closed, text out, gone."""
    transcript = sys.modules.get("foldline.oracles.transcript")
    if transcript is not None:
        transcript.close_all()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stopped(*, has_run: bool = False) -> None:
    kept = " What was asked with --run DIR is kept: the same command with the same DIR and --seed resumes." \
        if has_run else " Finished steps are kept; the same command goes on from them where it can."
    say(f"[yellow]Stopped.[/]{kept}")


for _name, _summary in COMMANDS.items():
    _command = import_module(f"foldline.cli.{_name}").command
    app.command(_name, help=inspect.getdoc(_command), short_help=_summary)(guarded(_command))


def main() -> None:
    debug = "--debug" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--debug"]
    try:
        app(standalone_mode=True)
    except FoldlineError as error:
        if debug:
            raise
        say(f"[red]foldline:[/] {error}", markup_safe=str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        stopped()
        leave_now(INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        report_crash(error)
        sys.exit(BUG)

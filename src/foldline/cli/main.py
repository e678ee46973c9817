"""The `foldline` command: finds the subcommands and turns every error into a sentence and an exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import typer

from foldline.cli.common import report_crash, say
from foldline.errors import FoldlineError

COMMANDS = ("audit", "probe", "train", "span", "extract", "learn", "imitate", "reconstruct", "obfuscate", "serve",
            "report")

app = typer.Typer(
    name="foldline", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    help="What a neural network gives away: to queries, to explanations, and out of its weights.\n\n"
         "Start with [bold]foldline audit[/] (a demo, from victim to report) or "
         "[bold]foldline probe TARGET[/].",
)

for _name in COMMANDS:
    if find_spec(f"foldline.cli.{_name}"):
        app.command(_name)(import_module(f"foldline.cli.{_name}").command)


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
        say("[yellow]Stopped.[/] What was done is kept; the same command with the same --run and --seed resumes.")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        report_crash(error)
        sys.exit(70)

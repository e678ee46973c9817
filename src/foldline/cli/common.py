"""What the commands share: options, where text goes, a progress display, and how a result leaves.

stdout carries only results; everything said to a person goes to stderr, so that `--json -` pipes cleanly.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foldline.errors import BadFile

if TYPE_CHECKING:
    from rich.console import Console

    from foldline.results import Progress, Status

Target = Annotated[str, typer.Argument(metavar="TARGET", help="torch:pkg.mod:factory, weights:m.safetensors, "
                                       "onnx:m.onnx, sklearn:m.skops, py:mod:function, https://host/predict, "
                                       "http:spec.yaml or demo:digits; a plain path is taken by its ending.")]
Authorised = Annotated[str | None, typer.Option("--i-am-authorised", metavar="SENTENCE", help=(
    "For HTTP targets: who allowed this, in words."))]
Dim = Annotated[int | None, typer.Option("--dim", min=1, help="Inputs, where the target does not say.")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
JsonOut = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON (- is stdout).")]
Budget = Annotated[int | None, typer.Option("--budget", min=0, help="Rows that may be asked; never crossed.")]
RunFolder = Annotated[Path | None, typer.Option("--run", metavar="DIR", help="Keep every answer here; "
                                                "the same command resumes without asking twice.")]


def console() -> Console:
    from rich.console import Console
    return Console(stderr=True, highlight=False)


def say(text: str, *, markup_safe: str | None = None) -> None:
    """A line for a person, on stderr. `markup_safe` names the part of `text` that came from outside."""
    from rich.markup import escape
    console().print(text if markup_safe is None else text.replace(markup_safe, escape(markup_safe)), soft_wrap=True)


def report_crash(error: Exception) -> None:
    from foldline import __version__
    # A name of its own: a fixed one in a shared folder could be somebody else's link.
    handle, log = tempfile.mkstemp(prefix="foldline-crash-", suffix=".log")
    with open(handle, "w") as file:
        file.write(f"foldline {__version__}, Python {sys.version}\n" + "".join(traceback.format_exception(error)))
    say(f"[red]foldline hit a bug of its own:[/] {type(error).__name__}. The details are in {log}; please open an "
        f"issue with that file (check it for secrets first). --debug shows them here.", markup_safe=log)


def emit(result: Mapping[str, Any], to: str | None) -> None:
    """JSON to a file, or to stdout for '-'."""
    if to is None:
        return
    text = json.dumps(result, indent=1, allow_nan=False)
    if to == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(to).write_text(text + "\n")
    except OSError as error:
        raise BadFile(f"{to} cannot be written: {error.strerror}.") from error
    say(f"Wrote {to}", markup_safe=to)


def check_json(to: str | None) -> None:
    """Before hours of work: can the result be written where --json points?"""
    if to is None or to == "-":
        return
    path = Path(to)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise BadFile(f"--json {to} cannot be written: " + ("it is a folder." if path.is_dir() else
                                                            f"there is no folder {path.resolve().parent}."))


def finish(status: Status) -> None:
    """Say how it ended and leave with the right code: 0 done, 3 incomplete."""
    colour = "green" if status.ok else "yellow"
    text = " ".join((status.message, *status.notes))
    say(f"[{colour}]{status.code}[/]: {text}", markup_safe=text)
    if not status.ok:
        raise typer.Exit(3)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A live line on a terminal (stage, the numbers a method reports, seconds); silence in a pipe."""
    from foldline.results import silent
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    with Bar(SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(bar_width=24),
             TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), console=console(), transient=True) as bar:
        task = bar.add_task(title, total=None, numbers="")

        def show(stage: str, numbers: Mapping[str, float]) -> None:
            done, total = numbers.get("done"), numbers.get("total")
            text = "  ".join(f"{k} {v:,.6g}" for k, v in numbers.items() if k not in ("done", "total"))
            bar.update(task, description=f"{title}: {stage}", numbers=text, completed=done, total=total)

        yield show

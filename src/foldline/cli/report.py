"""foldline report: write a finished audit's report again, in any of its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foldline.cli.common import JsonOut, emit, say


def command(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report.json, or the folder of an audit.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help=(
        "Where the files go; left out: beside the report."))] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave every recovered image out.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of reports and leave.")] = False,
    seed: Annotated[int, typer.Option("--seed", hidden=True, help="A report has nothing random.")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Write HTML, JSON, SARIF and JUnit of a report again; nothing is asked or computed.

    \b
    foldline report report/ --redact --out shared/     a copy without images, to pass on
    foldline report report/report.json --json -        the report as JSON on stdout
    foldline report report/ --schema                   the JSON schema
    """
    from foldline.reports.document import redacted
    from foldline.reports.document import schema as json_schema
    from foldline.reports.files import read_report, write_report
    if schema:
        emit(json_schema(), "-")
        return
    document = read_report(report)
    if redact:
        document = redacted(document)
    if json_out is not None:
        emit(document.model_dump(mode="json"), json_out)
        if out is None:
            return
    folder = out if out is not None else report if report.is_dir() else report.parent
    files = write_report(document, folder)
    for path in files.values():
        say(f"Wrote {path}", markup_safe=str(path))

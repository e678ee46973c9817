"""The report's files: report.html, report.json, report.sarif and report.junit.xml, each written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from foldline.errors import BadFile
from foldline.reports.document import SCHEMA_VERSION, Document, redacted
from foldline.reports.html import render_html
from foldline.reports.junit import render_junit
from foldline.reports.sarif import render_sarif

NAMES = {"html": "report.html", "json": "report.json", "sarif": "report.sarif", "junit": "report.junit.xml"}


def write_report(document: Document, folder: Path, *, redact: bool = False) -> dict[str, Path]:
    doc = redacted(document) if redact else document
    texts = {"html": render_html(doc), "json": doc.model_dump_json(indent=1), "sarif": render_sarif(doc),
             "junit": render_junit(doc)}
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for form, text in texts.items():
        path = folder / NAMES[form]
        part = path.with_name(f".{path.name}.part")
        # Recovered training data may be personal: for the owner's eyes.
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + ("" if text.endswith("\n") else "\n"))
        os.replace(part, path)
        written[form] = path
    return written


def read_report(path: str | Path) -> Document:
    """A report.json, or the folder it lies in."""
    path = Path(path)
    if path.is_dir():
        path = path / NAMES["json"]
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise BadFile(f"There is no report {path}; `foldline audit` writes one.") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise BadFile(f"{path} is not a report in JSON: {error}.") from error
    said = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or raw.get("kind") != "foldline-report":
        raise BadFile(f"{path} is not a foldline report: its kind is not foldline-report.")
    if str(said).split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise BadFile(f"{path} has report schema {said}; this foldline reads {SCHEMA_VERSION}.")
    try:
        return Document.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise BadFile(f"{path} does not fit the report schema {SCHEMA_VERSION}: {where}: {first['msg']}.") from error

"""The report as data: its published schema, redaction, comparison, and files read back."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from sample import sample

from foldline.errors import BadFile
from foldline.reports.document import Document, Severity, redacted, schema
from foldline.reports.files import read_report, write_report

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "report-1.1.json"


def test_the_published_schema_is_the_one_the_code_writes() -> None:
    assert json.loads(PUBLISHED.read_text()) == json.loads(json.dumps(schema())), \
        "docs/schema/report-1.1.json is stale: foldline report . --schema > docs/schema/report-1.1.json"


def test_a_report_fits_the_published_schema_and_a_changed_one_does_not() -> None:
    validators = pytest.importorskip("jsonschema_rs")
    validator = validators.validator_for(json.loads(PUBLISHED.read_text()))
    good = json.loads(sample().model_dump_json())
    assert validator.is_valid(good)
    bad = {**good, "findings": [{**good["findings"][0], "severity": "terrible"}]}
    assert not validator.is_valid(bad)


def test_a_report_reads_back_as_it_was_written(tmp_path: Path) -> None:
    document = sample()
    write_report(document, tmp_path)
    assert read_report(tmp_path) == document
    assert read_report(tmp_path / "report.json") == document


def test_files_with_recovered_images_are_for_their_owner_alone(tmp_path: Path) -> None:
    for path in write_report(sample(), tmp_path).values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".*"))


def test_redaction_leaves_no_pixel_in_any_file(tmp_path: Path) -> None:
    document = sample()
    pixels = {p.png for f in document.figures if f.kind == "pictures" for row in f.rows for p in row.pictures}
    assert len(pixels) > 20 and "" not in pixels
    written = write_report(document, tmp_path, redact=True)
    for path in written.values():
        text = path.read_text()
        assert not any(p in text for p in pixels)
    assert redacted(document).redacted and not document.redacted


def test_two_runs_compare_by_everything_but_times() -> None:
    document = sample()
    later = document.model_copy(update={"run": document.run.model_copy(update={"seconds": 1.0, "resumed": 7})})
    assert later.comparable() == document.comparable()
    assert document.model_copy(update={"headline": "else"}).comparable() != document.comparable()


def test_the_worst_severity_ignores_what_was_not_shown() -> None:
    document = sample()
    assert document.worst == Severity.critical
    hidden = document.findings[0].model_copy(update={"state": "not-shown"})
    assert document.model_copy(update={"findings": [hidden]}).worst == Severity.info


@pytest.mark.parametrize(("content", "says"), [
    ("", "not a report in JSON"), ("[1]", "not a foldline report"),
    ('{"kind": "foldline-report"}', "report schema None"),
    ('{"kind": "foldline-report", "schema_version": "2.0"}', "report schema 2.0"),
    ('{"kind": "foldline-report", "schema_version": "1.0"}', "does not fit")])
def test_what_is_no_report_is_said_in_a_sentence(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(BadFile, match=says):
        read_report(tmp_path)


def test_a_missing_report_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="foldline audit"):
        read_report(tmp_path)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        Document.model_validate({**sample().model_dump(), "surprise": 1})

"""SARIF and JUnit: structure that dashboards and CI rely on, and strings that would break XML."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

from sample import sample

from foldline.reports.document import Severity
from foldline.reports.junit import render_junit
from foldline.reports.sarif import render_sarif

HOSTILE = "]]><script>alert(1)</script>&\x00\x0b\ufffe\"'"


def test_sarif_has_what_its_schema_requires() -> None:
    log = json.loads(render_sarif(sample()))
    assert log["version"] == "2.1.0" and "sarif-schema-2.1.0" in log["$schema"]
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "foldline"
    assert [r["ruleId"] for r in run["results"]] == [rules[r["ruleIndex"]]["id"] for r in run["results"]]
    assert {r["level"] for r in run["results"]} <= {"none", "note", "warning", "error"}
    assert {r["kind"] for r in run["results"]} <= {"pass", "open", "informational", "notApplicable", "review", "fail"}
    assert all(r["message"]["text"] for r in run["results"])
    assert len({r["id"] for r in rules}) == len(rules)
    named = {t["name"] for t in run["taxonomies"]}
    assert {link["target"]["toolComponent"]["name"] for r in rules for link in r["relationships"]} <= named
    taxa = {(t["name"], x["id"]) for t in run["taxonomies"] for x in t["taxa"]}
    assert ("MITRE-ATLAS", "AML.T0024.001") in taxa


def test_sarif_never_fails_on_what_was_not_shown() -> None:
    results = json.loads(render_sarif(sample()))["runs"][0]["results"]
    by_id = {r["ruleId"]: r for r in results}
    assert by_id["training-data"]["level"] == "error" and by_id["training-data"]["kind"] == "fail"
    # The SARIF standard: a kind other than fail goes with a level of none or note.
    assert by_id["labels"]["kind"] == "open" and by_id["labels"]["level"] in ("none", "note")


def test_junit_counts_what_it_contains() -> None:
    root = ET.fromstring(render_junit(sample()))
    suite = root.find("testsuite")
    assert root.tag == "testsuites" and suite is not None
    cases = suite.findall("testcase")
    assert int(suite.get("tests", "")) == len(cases) == 4
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure")) == 3
    assert all(c.get("name") and c.get("classname") for c in cases)
    strict = ET.fromstring(render_junit(sample(), Severity.critical))
    assert strict.get("failures") == "1"


def test_hostile_strings_leave_both_forms_whole() -> None:
    root = ET.fromstring(render_junit(sample(HOSTILE)))
    assert root.find(".//script") is None
    log = json.loads(render_sarif(sample(HOSTILE)))
    assert HOSTILE in log["runs"][0]["results"][0]["message"]["text"]

"""The audit file: what it takes, and that every mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from foldline.auditing.defences import DEFENCES
from foldline.auditing.frameworks import BY_FINDING
from foldline.auditing.plan import budget_rows, chosen_methods
from foldline.auditing.run import resolved
from foldline.auditing.severity import BUILT_IN, rated
from foldline.auditing.spec import METRICS, AuditFile, parse_audit_file, read_audit_file
from foldline.errors import BadFile, BadSpec
from foldline.reports.document import Cost, Finding, Severity

GOOD = """version: 1
name: ours
target: http:api.yaml
authorised: the owner
access: [values, gradients]
budget: {queries: 500, seconds: 60, money: 1.5, currency: EUR}
methods: [span, reconstruct]
reference:
  train: train.npz
  unseen: unseen.npz
  image_shape: [28, 28]
defences: [round-3, label-only]
severity:
  - {finding: training-data, metric: recovered, at_least: 0.5, severity: high}
fail_on: high
seed: 7
"""


def parse(text: str) -> AuditFile:
    return parse_audit_file(text, "a.yaml", Path("/somewhere"))


def test_a_full_file_is_read_and_its_paths_start_where_it_lies() -> None:
    audit = parse(GOOD)
    assert audit.seed == 7 and audit.fail_on == Severity.high
    assert audit.reference.train == Path("/somewhere/train.npz")
    assert audit.target == "http:/somewhere/api.yaml"
    assert parse("version: 1\ntarget: https://host/predict\n").target == "https://host/predict"


@pytest.mark.parametrize(("old", "new", "line", "says"), [
    ("version: 1", "version: 2", 1, "version"),
    ("budget: {queries: 500", "budget: {queries: -5", 6, "budget.queries"),
    ("budget: {queries: 500", "budget: {querys: 500", 6, "did you mean queries"),
    ("seconds: 60", "seconds: .nan", 6, "budget.seconds"),
    ("methods: [span, reconstruct]", "methods: [span, magic]", 7, "methods.1"),
    ("methods: [span, reconstruct]", "methods: [span, span]", 7, "named twice"),
    ("access: [values, gradients]", "access: [values, thoughts]", 5, "access.1"),
    ("  unseen: unseen.npz\n", "", 8, "no null"),
    ("image_shape: [28, 28]", "image_shape: [28]", 11, "height, width"),
    ("[round-3, label-only]", "[round-3, wishful]", 12, "no defence 'wishful'"),
    ("metric: recovered", "metric: vibes", 14, "no metric 'vibes'"),
    ("finding: training-data", "finding: bad", 14, "no finding 'bad'"),
    ("severity: high}", "severity: awful}", 14, "severity"),
    ("fail_on: high", "fail_on: awful", 15, "fail_on"),
    ("seed: 7", "sead: 7", 16, "did you mean seed"),
    ("target: http:api.yaml", "target: weights:m.safetensors", 1, "price_per_query"),
    ("seed: 7", "seed: 7\nseed: 8", 17, "said twice"),
    ("seed: 7", "seed: [", 17, "not YAML"),
])
def test_a_mistake_is_named_with_its_line(old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    with pytest.raises(BadSpec) as caught:
        parse(GOOD.replace(old, new))
    assert f"a.yaml, line {line}" in str(caught.value) and says in str(caught.value), str(caught.value)


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(BadSpec) as caught:
        parse(GOOD.replace("version: 1", "version: 3").replace("seed: 7", "seed: x"))
    assert "line 1:" in str(caught.value) and "line 16:" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "just words", "- 1\n- 2"])
def test_what_is_no_mapping_is_said(text: str) -> None:
    with pytest.raises(BadSpec, match="mapping"):
        parse(text)


def test_secrets_never_appear_in_errors() -> None:
    with pytest.raises(BadSpec) as caught:
        parse(GOOD.replace("authorised: the owner", "authorised: {secret: hunter2}"))
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        read_audit_file(tmp_path / "none.yaml")


def test_the_embedded_default_parses_and_names_known_things() -> None:
    audit, text = resolved(None)
    assert audit.target == "demo:audit" and "version: 1" in text
    assert set(audit.defences) <= set(DEFENCES)
    groups = {DEFENCES[d].group for d in audit.defences}
    assert groups == {"answers", "access", "training"}


def test_a_target_alone_is_an_audit_and_an_api_description_is_a_target(tmp_path: Path) -> None:
    assert resolved("weights:m.safetensors")[0].target.endswith("m.safetensors")
    api = tmp_path / "api.yaml"
    api.write_text("url: https://host/predict\ndim: 3\n")
    assert resolved(str(api))[0].target == str(api)
    assert resolved("weights:m.safetensors", seed=3, authorised="me")[0].seed == 3


def test_methods_follow_the_access_and_bring_what_they_need() -> None:
    assert chosen_methods(parse(GOOD), ("values", "gradients")) == ["span", "reconstruct"]
    only = parse(GOOD.replace("[span, reconstruct]", "[obfuscate]"))
    assert chosen_methods(only, ("values",)) == ["span", "obfuscate"]
    free = parse("version: 1\ntarget: demo:digits\n")
    assert "weights" in chosen_methods(free, ("values", "weights"))
    assert chosen_methods(free, ("labels",)) == ["labels"]
    assert {"learn", "labels"} < set(chosen_methods(free, ("values", "gradients", "labels")))
    with pytest.raises(BadSpec, match="needs weights"):
        chosen_methods(parse(GOOD.replace("[span, reconstruct]", "[weights]")), ("values",))


def test_money_becomes_rows_and_the_smaller_limit_binds() -> None:
    assert budget_rows(parse(GOOD), 0.01) == (150, "money")
    assert budget_rows(parse(GOOD), 0.001) == (500, "queries")
    assert budget_rows(parse("version: 1\ntarget: demo:digits\n"), 0.0) == (None, "")


def finding(**numbers: float | None) -> Finding:
    return Finding(id="training-data", title="t", state="shown", severity=Severity.info, what="w",
                   cost=Cost(rows=1, asked="x"), numbers=numbers)


def test_rules_of_the_file_come_before_the_built_in_ones() -> None:
    audit = parse(GOOD)
    assert rated(finding(recovered=0.6, excess=0.6), audit).severity == Severity.high
    assert rated(finding(recovered=0.4, excess=0.4), audit).severity == Severity.critical
    assert rated(finding(recovered=0.0, excess=0.0, count=0.0), audit).severity == Severity.info
    assert "the audit file" in rated(finding(recovered=0.6), audit).why_severity


def test_what_was_not_shown_is_never_called_safe() -> None:
    hidden = finding(excess=0.9).model_copy(update={"state": "not-shown"})
    said = rated(hidden, parse(GOOD))
    assert said.severity == Severity.info and "no proof of safety" in said.why_severity


def test_every_finding_has_rules_and_references_with_versions() -> None:
    assert set(BY_FINDING) == set(METRICS) == {r.finding for r in BUILT_IN}
    found = {r.id for refs in BY_FINDING.values() for r in refs}
    assert found == {"AML.T0024.000", "AML.T0024.001", "AML.T0024.002", "AML.T0044", "ML03:2023", "ML05:2023",
                     "NISTAML.031", "NISTAML.032"}
    assert all(r.version and r.url.startswith("https://") for refs in BY_FINDING.values() for r in refs)


def test_a_typo_deep_in_a_list_finds_its_neighbour() -> None:
    with pytest.raises(BadSpec, match=r"line 14: severity\.0\.at_lest: .*did you mean at_least\."):
        parse(GOOD.replace("at_least", "at_lest"))

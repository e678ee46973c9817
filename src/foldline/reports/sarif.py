"""SARIF 2.1.0 for code-scanning dashboards: one rule per kind of finding, one result per finding."""

from __future__ import annotations

import json
from typing import Any

from foldline.reports.document import Document, Finding, Reference, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.critical: "error", Severity.high: "error", Severity.medium: "warning", Severity.low: "note",
          Severity.info: "note"}
# GitHub sorts by this number, on the scale of CVSS.
SCORES = {Severity.critical: "9.5", Severity.high: "8.0", Severity.medium: "5.5", Severity.low: "3.0",
          Severity.info: "0.0"}


def render_sarif(document: Document) -> str:
    return json.dumps(sarif(document), indent=1, allow_nan=False)


def sarif(document: Document) -> dict[str, Any]:
    rules = list({f.id: rule(f) for f in document.findings}.values())
    index = {r["id"]: i for i, r in enumerate(rules)}
    references = {(r.framework, r.version): r for f in document.findings for r in f.references}
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "foldline", "version": document.tool_version, "semanticVersion":
                            document.tool_version, "rules": rules}},
        "taxonomies": [taxonomy(document, name, version) for name, version in references],
        "results": [result(document, f, index[f.id]) for f in document.findings],
        "invocations": [{"executionSuccessful": document.complete}],
        "columnKind": "utf16CodeUnits",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def rule(f: Finding) -> dict[str, Any]:
    tags = ["security", "privacy", *(f"{r.framework} {r.id}" for r in f.references)]
    return {"id": f.id, "name": "".join(w.capitalize() for w in f.id.split("-")),
            "shortDescription": {"text": f.title}, "fullDescription": {"text": f.title},
            "help": {"text": "\n".join(f.fixes) or "See the report."},
            "relationships": [{"target": {"id": r.id, "toolComponent": {"name": component(r.framework)}},
                               "kinds": ["relevant"]} for r in f.references],
            "properties": {"tags": tags, "security-severity": SCORES[f.severity]}}


def taxonomy(document: Document, framework: str, version: str) -> dict[str, Any]:
    taxa: dict[str, Reference] = {r.id: r for f in document.findings for r in f.references if r.framework == framework}
    return {"name": component(framework), "version": version, "organization": framework.split()[0],
            "shortDescription": {"text": framework},
            "taxa": [{"id": r.id, "name": r.name, "helpUri": r.url} for r in taxa.values()]}


def component(framework: str) -> str:
    return framework.replace(" ", "-")


def result(document: Document, f: Finding, rule_index: int) -> dict[str, Any]:
    lines = [f.what, *(f"{e.kind}: {e.text}" for e in f.evidence),
             f"Cost: {f.cost.rows} rows ({f.cost.asked}).", *([f"Not shown: {f.limits}"] if f.limits else [])]
    return {"ruleId": f.id, "ruleIndex": rule_index, "level": LEVELS[f.severity] if f.state == "shown" else "note",
            "kind": "fail" if f.state == "shown" else "review" if f.state == "incomplete" else "open",
            "message": {"text": "\n".join(lines)},
            "locations": [{"logicalLocations": [{"name": document.target.name, "kind": "resource",
                                                 "fullyQualifiedName": document.target.address}],
                           # Dashboards want a file; the audit's own is the one that can be acted on.
                           "physicalLocation": {"artifactLocation": {"uri": "audit.yaml"},
                                                "region": {"startLine": 1}}}],
            "partialFingerprints": {"foldline/v1": f"{f.id}:{document.reproduce.audit_file_sha256[:16]}"},
            "properties": {"severity": f.severity.value, "state": f.state,
                           "numbers": {k: v for k, v in f.numbers.items() if v is not None}}}

"""JUnit XML for CI: one test case per finding; what was shown fails, what was not shown at this budget passes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from foldline.reports.document import Document, Severity

# XML 1.0 has no place for these, not even escaped.
UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(document: Document, fail_on: Severity = Severity.medium) -> str:
    """Findings at or above `fail_on` are failures."""
    failing = [f for f in document.findings if f.state == "shown" and f.severity.rank >= fail_on.rank]
    broken = [m for m in document.methods if not m.status.ok]
    suites = ET.Element("testsuites", name=clean(document.title), tests=str(len(document.findings) + len(broken)),
                        failures=str(len(failing)), errors=str(len(broken)))
    suite = ET.SubElement(suites, "testsuite", name=clean(document.target.name), failures=str(len(failing)),
                          tests=str(len(document.findings) + len(broken)), errors=str(len(broken)), skipped="0")
    properties = ET.SubElement(suite, "properties")
    for name, value in (("headline", document.headline), ("authorisation", document.authorisation),
                        ("rows asked", str(document.ledger.total)), ("complete", str(document.complete).lower())):
        ET.SubElement(properties, "property", name=name, value=clean(value))
    for f in document.findings:
        case = ET.SubElement(suite, "testcase", classname=f"foldline.{clean(f.method or f.id)}",
                             name=clean(f"{f.title} ({f.severity})"))
        text = "\n".join([f.what, *(f"{e.kind}: {e.text}" for e in f.evidence), *(f"fix: {x}" for x in f.fixes)])
        if f in failing:
            ET.SubElement(case, "failure", message=clean(f.what), type=f.severity.value).text = clean(text)
        else:
            ET.SubElement(case, "system-out").text = clean(f"{text}\nnot shown: {f.limits}")
    for m in broken:
        case = ET.SubElement(suite, "testcase", classname=f"foldline.{clean(m.id)}", name=clean(f"{m.title}: ran"))
        ET.SubElement(case, "error", message=clean(m.status.message), type=clean(m.status.code))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode")


def clean(text: str) -> str:
    return UNWRITABLE.sub("\ufffd", text)

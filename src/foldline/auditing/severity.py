"""How bad a finding is: the audit file's rules first, then these."""

from __future__ import annotations

from foldline.auditing.spec import AuditFile, SeverityRule
from foldline.reports.document import Finding, Severity

BUILT_IN: tuple[SeverityRule, ...] = tuple(SeverityRule.model_validate(r) for r in [
    # Samples of people, recovered beyond what chance gives.
    {"finding": "training-data", "metric": "excess", "at_least": 0.1, "severity": "critical"},
    {"finding": "training-data", "metric": "excess", "at_least": 0.02, "severity": "high"},
    {"finding": "training-data", "metric": "count", "at_least": 1, "severity": "medium"},
    # Whoever holds the weights is usually trusted more than a stranger at the API: one step lower.
    {"finding": "training-data-weights", "metric": "excess", "at_least": 0.1, "severity": "high"},
    {"finding": "training-data-weights", "metric": "excess", "at_least": 0.02, "severity": "medium"},
    # Hundreds of thousands of labels are noticed more easily than sixty explanations: one step lower as well.
    {"finding": "training-data-labels", "metric": "excess", "at_least": 0.1, "severity": "high"},
    {"finding": "training-data-labels", "metric": "excess", "at_least": 0.02, "severity": "medium"},
    {"finding": "label-span", "metric": "rank", "at_least": 1, "severity": "low"},
    {"finding": "extraction", "metric": "exact", "at_least": 1, "severity": "high"},
    {"finding": "learning", "metric": "certified", "at_least": 1, "severity": "high"},
    {"finding": "imitation", "metric": "agreement", "at_least": 0.9, "severity": "medium"},
    {"finding": "imitation", "metric": "agreement", "at_least": 0.75, "severity": "low"},
    {"finding": "span", "metric": "fraction_of_input", "at_most": 0.5, "severity": "medium"},
    {"finding": "obfuscation", "metric": "same_answer", "at_least": 0.9, "severity": "low"},
])


def rated(finding: Finding, audit: AuditFile) -> Finding:
    """The finding with its severity and the rule that gave it; what was not shown is information, not a pass."""
    if finding.state == "not-shown":
        return finding.model_copy(update={"severity": Severity.info, "why_severity":
                                          "Not shown by this method at this budget, which is no proof of safety."})
    for rules, where in ((audit.severity, "the audit file"), (BUILT_IN, "foldline's default rules")):
        for rule in rules:
            value = finding.numbers.get(rule.metric)
            if rule.finding != finding.id or value is None:
                continue
            if (rule.at_least is None or value >= rule.at_least) and (rule.at_most is None or value <= rule.at_most):
                bounds = " and ".join(f"{word} {bound:g}" for word, bound in
                                      (("at least", rule.at_least), ("at most", rule.at_most)) if bound is not None)
                why = f"{rule.metric.replace('_', ' ')} is {value:.3g}, {bounds} (rule of {where})."
                return finding.model_copy(update={"severity": rule.severity, "why_severity": why})
    return finding.model_copy(update={"severity": Severity.info, "why_severity": "No rule calls this worse."})

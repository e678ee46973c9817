"""A made-up but realistic report, for tests of the report alone; no number in it was measured."""

from __future__ import annotations

from functools import lru_cache

import torch

from foldline.reports.document import (
    Assumption,
    Cost,
    Curves,
    DefenceRow,
    Defences,
    Document,
    Evidence,
    Finding,
    Folds,
    Ledger,
    LedgerRow,
    Method,
    Picture,
    PictureRow,
    Pictures,
    Reference,
    Reproduce,
    Run,
    Scores,
    Series,
    Severity,
    Spectrum,
    Status,
    Target,
)
from foldline.reports.pictures import png


@lru_cache
def some_digits() -> torch.Tensor:
    from foldline.victims.datasets import load_dataset
    found = load_dataset("mnist5k")
    return torch.cat([found.rows(found.y == c)[:100] for c in range(10)])       # (1000, 784)


def picture_row(label: str, images: torch.Tensor, notes: list[str], hint: str = "") -> PictureRow:
    return PictureRow(label=label, hint=hint, pictures=[
        Picture(png=png(x, (28, 28)), note=n, alt=f"{label} {i + 1}")
        for i, (x, n) in enumerate(zip(images, notes, strict=True))])


def sample(text: str = "") -> Document:
    """`text` is put into every string field that comes from a target or an audit file."""
    digits = some_digits()
    rng = torch.Generator().manual_seed(0)
    train, unseen = digits[::100][:10], digits[50::100][:10]
    found = (train + 0.06 * torch.randn(train.shape, generator=rng)).clamp(0, 1)
    ncc = torch.linspace(0.99, 0.71, 10)
    notes = [f"{v:.2f}" for v in ncc]
    null_notes = [f"{v:.2f}" for v in 0.55 + 0.1 * torch.rand(10, generator=rng)]
    figures = [
        Pictures(id="hero", title="What the black box gave away" + text, size=(28, 28), rows=[
            picture_row("Training image", train, [""] * 10, "never shown to the attacker"),
            picture_row("Recovered", found, notes, "from 70 explanations"),
            picture_row("Closest unseen image", unseen, null_notes, "the null: likeness by chance")],
            caption="Every fifth of 50 training images, from the best recovered to the worst. Numbers are normalised "
                    "correlations; unseen images reach 0.67 at most in 99 of 100 cases." + text,
            alt="Ten training digits, above ten recovered digits that look the same." + text),
        Spectrum(id="span-spectrum", title="The span shows how many samples there were" + text, rank=50, floor=2e-6,
                 values=[10 ** (-i / 25) for i in range(50)] + [3e-7 * (1 - i / 40) for i in range(20)],
                 marks={"50 training samples" + text: 50},
                 caption="Singular values of 70 explanations: a gap of five orders of magnitude after the 50th." + text,
                 alt="Fifty values fall slowly, then drop to the noise floor."),
        Scores(id="reconstruct-scores", title="Recovered images against the null", x_label="normalised correlation",
               groups=[Series(name="training" + text, x=(0.6 + 0.4 * torch.rand(50, generator=rng)).tolist(), y=[]),
                       Series(name="unseen", x=(0.3 + 0.35 * torch.rand(50, generator=rng)).tolist(), y=[])],
               threshold=0.67, threshold_label="1 % false positives", caption="Each dot is one image." + text, alt="."),
        Curves(id="imitate-curve", title="A student from ten explanations", x_label="rows asked" + text,
               y_label="agreement with the model", log_x=True,
               series=[Series(name="with explanations" + text, x=[5, 10, 20, 50, 100], y=[.8, .93, .95, .96, .97]),
                       Series(name="labels and values only", x=[5, 10, 20, 50, 100], y=[.6, .7, .78, .85, .9])],
               caption="Agreement on 1,000 unseen digits.", alt="Explanations reach 0.93 with ten rows."),
        Folds(id="extract-folds", title="Folds along a line", t=[-2, -1, 0, 1, 2, 3], f=[0, 1, 0.5, 2, 2, -1],
              folds=[-1, 0, 1, 2], caption="Each fold is one hidden unit.", alt="A zigzag with four marked folds."),
    ]
    refs = [Reference(framework="MITRE ATLAS", version="5.4.0", id="AML.T0024.001", name="Invert AI Model",
                      url="https://atlas.mitre.org/techniques/AML.T0024.001")]
    findings = [
        Finding(id="training-data", title="Training images can be read off the explanations" + text, state="shown",
                severity=Severity.critical, why_severity="recovered is 0.92, at least 0.1." + text,
                what="46 of 50 training images were recovered from 70 explanations." + text,
                limits="Four images stayed below the threshold at this budget." + text,
                evidence=[Evidence(kind="null", text="1 of 50 unseen images matched as well." + text),
                          Evidence(kind="interval", text="Recovery 92 % (95 % interval 81 % to 97 %).")],
                cost=Cost(rows=70, asked="explanations of one output" + text, money=0.07, currency="EUR" + text),
                assumptions=[Assumption(text="Weight decay removed the initialisation." + text, held=True,
                                        measured="gap 1e5"),
                             Assumption(text="Pixels lie in [0, 1].", held=None),
                             Assumption(text="No noise in the answers.", held=False, measured="1e-3")],
                fixes=["Do not serve raw gradients; serve top features only." + text, "Limit explanations to 25 each."],
                references=refs, numbers={"recovered": 0.92}, figures=["hero", "reconstruct-scores"],
                method="reconstruct"),
        Finding(id="extraction", title="The second model was copied exactly", state="shown", severity=Severity.high,
                what="Every weight of the one-hidden-layer model was recovered.", evidence=[
                    Evidence(kind="certificate", text="Worst residual 2e-13 on 1,000 fresh probes.")],
                cost=Cost(rows=93, asked="explanations"), fixes=["Round answers to 3 decimals."], references=refs),
        Finding(id="obfuscate", title="Noise it cannot see", state="shown", severity=Severity.medium,
                what="Inputs buried in noise 1.0 times their own length get the same answer.",
                cost=Cost(rows=50, asked="values")),
        Finding(id="labels", title="The span from labels alone", state="not-shown", severity=Severity.info,
                what="100 label queries did not reach a decision boundary normal.",
                limits="A larger budget may.", cost=Cost(rows=100, asked="labels")),
    ]
    methods = [
        Method(id="span", title="The span of the training data" + text, explains="Explanations are combinations of "
               "training inputs; enough of them span the same space." + text, rows=70,
               status=Status(ok=True, code="ok", message="Done." + text), numbers={"rank": 50.0, "gap": 1.2e5},
               certificate="Held-out explanations lie in it up to 1e-7.", figures=["span-spectrum"]),
        Method(id="reconstruct", title="Training images from the span", explains="Independent components.", rows=0,
               status=Status(ok=True, code="ok", message="Done."), figures=["hero", "reconstruct-scores"]),
        Method(id="extract", title="Exact extraction", explains="Find every fold.", rows=93,
               status=Status(ok=True, code="ok", message="Done."), figures=["extract-folds"]),
        Method(id="imitate", title="A student", explains="Train on answers.", rows=10,
               status=Status(ok=True, code="ok", message="Done."), figures=["imitate-curve"]),
    ]
    defences = [
        DefenceRow(name="none", group="none", description="raw gradients", rows=70, rank=50, recovered=46, of=50,
                   clear=40, null=1, imitation=.93, accuracy=.96, output_change=0.0, explanation_change=0.0),
        DefenceRow(name="round to 3 decimals" + text, group="answers", description="every number in the answer" + text,
                   rows=70, rank=41, recovered=12, of=50, null=1, imitation=.93, accuracy=.96, output_change=3e-4,
                   explanation_change=0.02),
        DefenceRow(name="20 queries", group="access", description="per client", rows=20, rank=20, recovered=0, of=50,
                   null=1, status="budget ran out"),
        DefenceRow(name="Adam", group="training", description="instead of SGD", rows=70, rank=70, recovered=0, of=50,
                   null=0, accuracy=.96),
    ]
    return Document(
        tool_version="0.1.0", title="foldline audit" + text, hero="hero",
        headline="Anyone who can ask this model for explanations gets 46 of its 50 training images back, "
                 "after 70 questions." + text,
        lead="The images were never sent to the attacker. Rounding does not stop it; serving no raw gradients does."
             + text,
        target=Target(name="demo:digits" + text, address="http://127.0.0.1/explain" + text,
                      access=["values", "gradients" + text], dim=784, outputs=1,
                      facts={"model" + text: "784-300-300-1"}),
        authorisation="The embedded demo attacks only itself." + text, findings=findings, methods=methods,
        figures=figures, ledger=Ledger(rows=[
            LedgerRow(stage="span" + text, subject="demo" + text, kind="explanations" + text, rows=70, money=.07),
            LedgerRow(stage="extract", subject="demo, one hidden layer", kind="explanations", rows=93, money=.09)],
            total=163, budget=5000, money=.16, money_budget=5.0, currency="EUR"),
        defences=Defences(rows=defences, advice=["Serve no raw gradients." + text], query_limit=25,
                          query_limit_why="Half of what the span needs." + text),
        reproduce=Reproduce(command="foldline audit audit.yaml --seed 0" + text, seed=0,
                            audit_file="target: demo" + text, audit_file_sha256="0" * 64,
                            versions={"foldline": "0.1.0" + text}, threads=1),
        run=Run(started="2026-11-15 22:00:00", finished="2026-11-15 22:03:00", seconds=180.2, machine="x86_64" + text,
                rows_sent=163))

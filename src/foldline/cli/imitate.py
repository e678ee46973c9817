"""foldline imitate: train a student to answer as the target does, from few queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foldline.cli.common import JsonOut, RunFolder, Seed, Target, emit, finish, progress, say

if TYPE_CHECKING:
    from torch import Tensor

    from foldline.judge.imitation import ImitationScore

NOISE = ("gaussian", "smooth")
PICKS = ("spread", "random", "blend")

HELP = """Imitate a model from few explained queries.

A student of your choice is trained on the target's values and explanations at
a few points. Learning rate, lambda and length are chosen on answers held out
from the student. Several --count and --explain make a table, and a figure.

\b
Examples:
  foldline imitate demo:digits --student two-layer --count 10
  foldline imitate demo:digits --count 1 --count 10 --count 100 \\
      --explain gradient --explain values --figure curve.svg
  foldline imitate weights:target.safetensors --student conv --width 16 \\
      --queries mnist --data ~/data --count 10 --out student.safetensors
  foldline imitate weights:target.safetensors --student conv --width 16 \\
      --hidden 512 --queries mnist --pick blend --count 10 --data ~/data
  foldline imitate weights:target.safetensors --queries gaussian --count 100
  foldline imitate weights:m.safetensors --queries rows.npz --test test.npz

\b
--explain   gradient, smoothgrad, gradient_x_input, integrated_gradients,
            or values (no explanation)
--output    all (every output explained), top (the predicted one, as
            explanation APIs answer), or a number
--queries   digits, mnist5k, mnist, cifar10; a .npz/.npy/.csv file; gaussian,
            N(0, I) by --mean and --std; or smooth, noise whose neighbouring
            pixels are alike (needs no data, and tells far more)
--pick      which rows of --queries: spread (unlike each other, found without
            asking), random (as the paper does), or blend (halves of two such
            rows each, with smooth noise on top: the most told per query)
--stretch   how many times as far from the rows' mean points are asked. By
            itself only under SmoothGrad with --sigma, whose noise reaches far
            points less; inputs then leave their usual range. 1: never
"""


def command(
    target: Target,
    student: Annotated[str, typer.Option("--student", help="logistic, two-layer, mlp, conv, vgg11, resnet18, or "
                                         "torch:pkg.mod:factory.")] = "two-layer",
    width: Annotated[int | None, typer.Option("--width", min=1, help="Width of the student: wider than "
                                              "the target's learns more from the same queries.")] = None,
    hidden: Annotated[int | None, typer.Option("--hidden", min=1, help="Hidden dense units of a conv "
                                               "student.")] = None,
    queries: Annotated[str, typer.Option("--queries", metavar="FROM", help="A data set, gaussian, smooth, or a "
                                         "file.")] = "digits",
    pick: Annotated[str, typer.Option("--pick", help="spread, random or blend: which rows are asked.")] = "spread",
    stretch: Annotated[float | None, typer.Option("--stretch", min=1.0, help="Ask that many times as far from the "
                                                  "rows' mean.")] = None,
    unlabelled: Annotated[bool, typer.Option(help="Learn from the rows that --queries does not ask as well, where few "
                                             "explained queries leave a student sure of enough.")] = True,
    committee: Annotated[int | None, typer.Option("--committee", min=1, help="Students whose mean is taken; 3 for up "
                                                  "to 32 explained queries, else 1. With 3, unlabelled rows help more "
                                                  "queries and values too.")] = None,
    mean: Annotated[float, typer.Option("--mean", help="Of gaussian and smooth queries.")] = 0.0,
    std: Annotated[float, typer.Option("--std", min=0.0, help="Of gaussian and smooth queries.")] = 1.0,
    count: Annotated[list[int] | None, typer.Option("--count", "-n", min=1, help="How many queries; may be "
                                                    "repeated.")] = None,
    explain: Annotated[list[str] | None, typer.Option("--explain", help="What the target explains; may be "
                                                      "repeated.")] = None,
    output: Annotated[str, typer.Option("--output", help="all, top or a number: which outputs are "
                                        "explained.")] = "all",
    link: Annotated[str, typer.Option("--link", help="softmax: the target's outputs pass it before they are "
                                      "answered.")] = "identity",
    sigma: Annotated[float | None, typer.Option("--sigma", min=0.0, help="SmoothGrad's noise.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="SmoothGrad's draws.")] = 50,
    form: Annotated[str | None, typer.Option("--form", help="What is shown of an explanation: signed, normalised, "
                                             "8bit, clipped, absolute, image.")] = None,
    test: Annotated[str | None, typer.Option("--test", metavar="FROM", help="Rows to score on (else what --queries "
                                             "does not use).")] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where mnist and cifar10 lie (also "
                                              "FOLDLINE_DATA).")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of the final training.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the last student goes "
                                             "(safetensors).")] = None,
    figure: Annotated[Path | None, typer.Option("--figure", metavar="FILE", help="Accuracy against queries, as "
                                                "SVG.")] = None,
    run: RunFolder = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
) -> None:
    import hashlib

    import foldline as fl
    from foldline.errors import BadInput, Refused
    from foldline.imitation.match import as_row
    from foldline.imitation.queries import placed
    from foldline.imitation.soften import NOISE_SOFTNESS
    from foldline.judge.imitation import queries_needed
    from foldline.networks.files import save
    from foldline.oracles.transcript import identity_of
    from foldline.randomness import Streams
    from foldline.results import plain

    counts = sorted(set(count or [10]))
    kinds = [None if e in ("values", "none") else e for e in (explain or ["gradient"])]
    picked = output if output in ("all", "top") else number(output)
    streams = Streams(fl.generator(seed))
    oracle_dim = fl.value_oracle(target)
    pool, source, held, labels, shape = rows_of(queries, test, data, max(counts), oracle_dim.dim, streams, pick, mean,
                                                std)
    if pool.shape[1] != oracle_dim.dim:
        raise BadInput(f"The target takes {oracle_dim.dim} inputs, but rows of {queries} have {pool.shape[1]}: name "
                       f"another source with --queries.")
    # Rows of a run folder belong to this very command: another target, student or source makes other rows.
    asked_for = hashlib.blake2b(repr((identity_of(target), student, width, hidden, queries, pick, mean, std, picked,
                                      stretch, link, sigma, samples, form, test, steps, unlabelled, committee,
                                      max(counts), seed)).encode(),
                                digest_size=6).hexdigest()
    fresh = make_student(student, width, hidden, shape, pool.shape[1], oracle_dim.outputs, streams)
    keep_points = queries in NOISE or link != "identity" or oracle_dim.box is not None
    factors = {kind: stretch_of(stretch, kind, None if keep_points else sigma, source, fresh, shape) for kind in kinds}
    others = source if unlabelled and queries not in NOISE else None
    rows: list[dict[str, Any]] = []
    last: Any = None
    with progress("imitate") as show:
        for kind in kinds:
            for n in counts:
                place = None if run is None else run / f"row-{kind or 'values'}-{n}-{asked_for}.json"
                kept = finished(place)
                if kept is not None:
                    rows.append(kept)
                    continue
                points, scale = placed(pool[:n], source, factors[kind])
                last = fl.imitate(target, fresh, points, kind, scale=scale, rng=streams(f"{kind} {n}"), output=picked,
                                  link=link, sigma=sigma, samples=samples, form=form, steps=steps,
                                  soft=NOISE_SOFTNESS if queries == "gaussian" else 0.0, unlabelled=others,
                                  committee=committee,
                                  run=None if run is None else run / "answers", progress=show)
                row = {"n": n, "explain": kind, "stretch": factors[kind], "message": str(last.status), **as_row(last)}
                if last.network is not None and held is not None:
                    row |= scored(last.network, target, held, labels)
                rows.append(plain(row))
                keep(place, rows[-1])
    show_table(rows)
    if labels is not None:
        for kind in kinds:
            curve = [(r["n"], r["accuracy"]) for r in rows if r["explain"] == kind and r.get("accuracy") is not None]
            goal = next((r["target_accuracy"] for r in rows if r.get("target_accuracy")), None)
            if curve and goal:
                need = ", ".join(f"{share:.0%}: {n if n is not None else 'more than ' + str(max(counts))}"
                                 for share, n in queries_needed(curve, goal).items())
                say(f"{kind or 'values'}: queries for a share of the target's accuracy ({goal:.4f}): {need}")
    if figure is not None:
        from foldline.reports.figures import draw_alone
        from foldline.reports.figures_imitate import imitation_curves
        paper = paper_case(queries, test, student)
        figure.write_text(draw_alone(imitation_curves(rows, title=f"Imitating {target}", paper=paper)))
        say(f"Wrote {figure}", markup_safe=str(figure))
    if out is not None and last is not None and last.network is not None:
        try:
            save(last.network, out)
            say(f"Wrote {out}", markup_safe=str(out))
        except Refused as error:
            say(f"The student was not written: {error}", markup_safe=str(error))
    emit({"schema_version": 1, "kind": "ImitationCurve", "target": target, "student": student, "rows": rows,
          "result": None if last is None or len(rows) > 1 else last.to_dict()}, json_out)
    if last is not None:
        finish(last.status)


def number(text: str) -> int:
    from foldline.errors import BadInput
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"--output is all, top or a number, not {text!r}.") from None


def paper_case(queries: str, test: str | None, student: str) -> tuple[str, str, str] | None:
    """Which of the paper's points belong into the figure: its students are of the target's class."""
    scored_on = queries if test is None else test
    if scored_on not in ("mnist", "cifar10") or queries not in (scored_on, "gaussian"):
        return None
    return scored_on, student, "gaussian" if queries == "gaussian" else "data"


def rows_of(queries: str, test: str | None, data: Path | None, n: int, dim: int,
            streams: Any, pick: str = "spread", mean: float = 0.0,
            std: float = 1.0) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, tuple[int, ...] | None]:
    """(rows to ask, what they were picked from, rows to score on, their labels, image shape)"""
    from foldline.errors import BadInput
    from foldline.imitation.queries import blended_rows, drawn_rows, gaussian_rows, read_rows, smooth_rows, spread_rows
    from foldline.victims.datasets import NAMES, load_dataset
    shape: tuple[int, ...] | None = None
    held = labels = rows = None
    if test in NAMES:
        found = load_dataset(test, data)
        held, labels, shape = found.x_test, found.y_test, found.image_shape
    elif test is not None:
        held, labels = read_rows(test)
    if queries in NAMES:
        found = load_dataset(queries, data)
        rows, shape = found.x, found.image_shape
        if test is None:
            held, labels = found.x_test, found.y_test
    elif queries not in NOISE and Path(queries).suffix:
        rows, _ = read_rows(queries)
    elif queries not in NOISE:
        raise BadInput(f"--queries is {', '.join((*NAMES, *NOISE))}, or a .npz, .npy or .csv file, not {queries!r}.")
    picture = shape or square(dim)
    rng = streams("queries")
    if pick not in PICKS:
        raise BadInput(f"--pick is {', '.join(PICKS)}, not {pick!r}.")
    if rows is None:
        pool = gaussian_rows(n, dim, rng=rng, mean=mean, std=std) if queries == "gaussian" else \
            smooth_rows(n, picture, rng=rng, mean=mean, std=std)
    elif pick == "blend":
        pool = blended_rows(rows, n, rng=rng, input_shape=shape or square(rows.shape[1]))
    else:
        pool = spread_rows(rows, n, rng=rng) if pick == "spread" else drawn_rows(rows, n, rng=rng)
    return pool, pool if rows is None else rows, held, labels, shape


def stretch_of(given: float | None, kind: str | None, sigma: float | None, source: Tensor, student: Any,
               shape: tuple[int, ...] | None) -> float:
    """What was given, or what SmoothGrad's noise asks for. Noise, and points for a target with a box or behind a
    softmax, which saturates far out, are kept as they are."""
    from foldline.imitation.queries import stretch_against
    if given is not None or kind != "smoothgrad" or sigma is None:
        return given or 1.0
    factor = stretch_against(sigma, source, student, shape)
    if factor > 1:
        say(f"SmoothGrad's noise is large: points are asked {factor:.3g} times as far out (--stretch 1: as they are).")
    return factor


def square(dim: int) -> tuple[int, ...]:
    side = round(dim**0.5)
    return (side, side) if side * side == dim else (dim,)


def make_student(name: str, width: int | None, hidden: int | None, shape: tuple[int, ...] | None, dim: int,
                 outputs: int, streams: Any) -> Any:
    from foldline.errors import BadInput
    from foldline.networks.presets import BUILDERS, build
    from foldline.oracles.targets import target_module
    given = ", ".join(f"--{n}" for n, v in (("width", width), ("hidden", hidden)) if v is not None)
    if ":" in name:
        if given:
            raise BadInput(f"{given} cannot change {name}: such a student brings its own size.")
        found = target_module(name)
        if found is None:
            raise BadInput(f"{name} is not a torch module; a student has to be one.")
        return found
    if name == "unet":
        raise BadInput("A unet answers pictures, not classes; it is no student.")
    if hidden is not None and name in BUILDERS and name != "conv":
        raise BadInput(f"--hidden is for --student conv only (its dense layer); {name} has no such layer."
                       f"{'' if name == 'logistic' else ' Its size is set with --width.'}")
    if width is not None and name == "logistic":
        raise BadInput("A logistic student is one linear layer and has no --width.")
    guessed = shape or square(dim)
    arguments: dict[str, Any] = {} if width is None else ({"widths": (width, width)} if name == "mlp" else
                                                          {"width": width})
    if hidden is not None:
        arguments["hidden"] = hidden
    return build(name, input_shape=guessed, outputs=outputs, rng=streams("student"), **arguments)


def scored(network: Any, target: str, held: Tensor, labels: Tensor | None) -> dict[str, Any]:
    from dataclasses import asdict

    from foldline.judge.imitation import score_imitation
    score: ImitationScore = score_imitation(network, target, held, labels)
    return asdict(score)


def finished(place: Path | None) -> dict[str, Any] | None:
    """A row that an earlier, interrupted command finished."""
    import json
    if place is None or not place.is_file():
        return None
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def keep(place: Path | None, row: dict[str, Any]) -> None:
    import json
    if place is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(place)                                 # whole or not there


def show_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from foldline.cli.common import console
    table = Table("answers", "queries", "accuracy", "target", "agreement", "seconds", "status")
    for r in rows:
        def cell(name: str, row: dict[str, Any] = r) -> str:
            return "" if row.get(name) is None else f"{row[name]:.4f}"
        table.add_row(r["explain"] or "values", f"{r['n']:,}", cell("accuracy"), cell("target_accuracy"),
                      cell("agreement"), f"{r['fit_seconds']:.1f}", r["status"])
    console().print(table)


command.__doc__ = HELP

"""`foldline span TARGET`: which directions of its input a target reads, and which it never sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foldline.cli.common import Budget, Dim, JsonOut, RunFolder, Seed, emit, finish, progress, say

if TYPE_CHECKING:
    from foldline.span.result import SpanResult

HELP = """Recover the span of a target's first layer: the directions of its input
that it reads. Everything orthogonal to them it cannot see (foldline obfuscate).

\b
Examples:
  foldline span demo:digits                         from gradients
  foldline span demo:digits --from values           from outputs alone
  foldline span demo:digits --from labels           from the top class alone
  foldline span weights:model.safetensors --budget 120 --out span.npz

\b
Without a line to the target (Algorithm 1 is not adaptive):
  foldline span --list points.npz --dim 784 --count 100
  (ask the points elsewhere, save value and gradient per row)
  foldline span --points points.npz --answers answers.npy
"""


def command(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="As for foldline probe; none with --list or "
                                                 "--answers.")] = None,
    source: Annotated[str, typer.Option("--from", help="What is asked: gradients, values or labels.")] = "gradients",
    method: Annotated[str, typer.Option("--method", help="adaptive; gaussian (fixed points, Algorithm 1); for labels "
                                        "also paper (Algorithm 2, needs --rank).")] = "adaptive",
    count: Annotated[int | None, typer.Option("--count", min=1, help="Points of --method gaussian or --list.")] = None,
    patience: Annotated[int, typer.Option("--patience", min=1, help="Probes without a new direction that end an "
                                          "adaptive search.")] = 2,
    rank: Annotated[int | None, typer.Option("--rank", min=1, help="From labels: stop at this rank.")] = None,
    output: Annotated[int, typer.Option("--output", min=0, help="Whose gradient is asked.")] = 0,
    threshold: Annotated[float, typer.Option("--threshold", help="One output: label 1 from here on.")] = 0.0,
    dim: Dim = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="FILE", help="Rows like those the target was made "
                                              "for: .npy, .npz or .csv.")] = None,
    list_to: Annotated[Path | None, typer.Option("--list", metavar="FILE", help="Write the points, ask "
                                                 "nothing.")] = None,
    points: Annotated[Path | None, typer.Option("--points", metavar="FILE", help="Points that --list wrote.")] = None,
    answers: Annotated[Path | None, typer.Option("--answers", metavar="FILE", help="What they were answered.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Basis, singular values and all gradients, "
                                             "as .npz.")] = None,
    seed: Seed = 0,
    budget: Budget = None,
    run: RunFolder = None,
    json_out: JsonOut = None,
) -> None:
    from foldline.errors import BadInput
    from foldline.randomness import generator

    choices = {"--from": (source, ("gradients", "values", "labels")),
               "--method": (method, ("adaptive", "gaussian", "paper") if source == "labels" else
                            ("adaptive", "gaussian"))}
    for option, (given, known) in choices.items():
        if given not in known:
            raise BadInput(f"{option} is {', '.join(known)}, not {given!r}.")
    if list_to is not None:
        from foldline.span.offline import STEP, list_points, write_points
        if dim is None or count is None or source == "labels":
            raise BadInput("--list needs --dim and --count, and --from gradients or values.")
        kind = "values" if source == "values" else "gradients"
        rows = list_points(count, dim, rng=generator(seed), kind=kind)      # type: ignore[arg-type]
        write_points(list_to, rows, kind=kind, step=STEP)                   # type: ignore[arg-type]
        say(f"Wrote {len(rows)} points to {list_to}; nothing was asked.", markup_safe=str(list_to))
        return
    if answers is not None or points is not None:
        from foldline.span.offline import read_points, read_rows, span_from_answers
        if answers is None or points is None:
            raise BadInput("--points and --answers belong together: what was asked, and what came back.")
        listed, asked, step = read_points(points)
        found = span_from_answers(listed, read_rows(answers), kind=asked, step=step)
    else:
        if target is None:
            raise BadInput("A TARGET is needed (or --list, or --points with --answers): try foldline span demo:digits.")
        found = recover(target, source, method, count, rank, output, threshold, dim, data, seed, budget, run,
                        patience)
    show(found, json_out)
    if out is not None:
        import numpy as np
        with out.open("wb") as file:
            np.savez_compressed(file, basis=found.basis.numpy(), singular_values=found.singular_values.numpy(),
                                directions=found.directions.numpy(), gradients=found.gradients.numpy(),
                                values=found.values.numpy(), points=found.points.numpy())
        say(f"Wrote {out}", markup_safe=str(out))
    emit(found.to_dict(), json_out)
    finish(found.status)


command.__doc__ = HELP


def recover(target: str, source: str, method: str, count: int | None, rank: int | None, output: int, threshold: float,
            dim: int | None, data: Path | None, seed: int, budget: int | None, run: Path | None,
            patience: int = 2) -> SpanResult:
    import foldline as fl
    from foldline.errors import BadInput
    from foldline.span.gradients import recover_span
    from foldline.span.labels import recover_span_from_labels
    from foldline.span.offline import read_rows
    rng = fl.generator(seed)
    rows = None if data is None else read_rows(data)
    with progress("span") as bar:
        if source == "labels":
            if method == "gaussian":
                raise BadInput("From labels the points depend on the answers: --method is adaptive or paper.")
            lb = fl.label_oracle(target, budget, threshold=threshold, dim=dim, run=run)
            return recover_span_from_labels(lb, rng=rng, method="paper" if method == "paper" else "default", k=rank,
                                            data=rows, progress=bar)
        oracle = fl.value_oracle(target, budget, dim=dim, run=run) if source == "values" else \
            fl.gradient_oracle(target, output, budget, dim=dim, run=run)
        return recover_span(oracle, rng=rng, method="gaussian" if method == "gaussian" else "adaptive",
                            points=count if method == "gaussian" else None, data=rows, patience=patience,
                            progress=bar)


def show(found: SpanResult, json_out: str | None) -> None:
    if json_out == "-":
        return
    from rich.console import Console
    from rich.table import Table
    d = found.directions.shape[1]
    table = Table("what", "found", title="span of the first layer", title_justify="left")
    s = found.singular_values.tolist()
    upper = "confirmed" if found.upper_bound == found.rank else f"at most {found.upper_bound}"
    table.add_row("rank", f"{found.rank} of {d} inputs ({upper})")
    table.add_row("null space", f"{found.null_dimension} dimensions that the target never sees"
                  + ("" if found.status.ok else ", if these are all"))
    table.add_row("asked", f"{found.queries:,} rows, {len(found.gradients)} gradients or normals")
    if s and found.link != "label":
        last = f"{s[found.rank - 1]:.3g}" if found.rank else "none"
        after = f"{s[found.rank]:.3g}" if found.rank < len(s) else "nothing"
        table.add_row("singular values", f"{s[0]:.3g} to {last}, then {after} (noise floor {found.noise_floor:.1e})")
    else:
        table.add_row("error of a direction", f"about {found.noise_floor:.1e}")
    c = found.certificate
    table.add_row("certificate", f"{c.stable} probes in a row stayed in the span: at most {c.fraction_bound:.1%} of "
                  f"such probes leave it ({c.confidence:.0%} confidence)")
    Console().print(table)

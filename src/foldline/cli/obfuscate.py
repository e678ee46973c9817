"""`foldline obfuscate TARGET`: inputs drowned in noise that the target answers as if it were not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foldline.cli.common import Budget, Dim, JsonOut, RunFolder, Seed, emit, finish, progress, say

if TYPE_CHECKING:
    from torch import Tensor

    from foldline.oracles.protocols import ValueOracle
    from foldline.span.result import SpanResult

HELP = """Hide noise where a target cannot see it: in the null space of its first
layer. Recovers the span, moves test inputs by noise of any length, and counts
what changes. DIR gets gallery.png (originals above, obfuscated below, with
prediction and confidence), obfuscated.npz and statistics.json.

\b
Examples:
  foldline obfuscate demo:digits --out noise
  foldline obfuscate weights:m.safetensors --data-set mnist --scale 10 --out noise
  foldline obfuscate demo:digits --from labels --out noise
  foldline obfuscate demo:digits --in-box --out noise     pixels stay in [0, 1]
  foldline obfuscate demo:digits --span span.npz --out noise
"""


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="As for foldline probe.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the gallery and the numbers go.")],
    scale: Annotated[float, typer.Option("--scale", min=0.0, help="Length of the noise over the input's.")] = 10.0,
    source: Annotated[str, typer.Option("--from", help="What the span is recovered from: gradients, values or "
                                        "labels.")] = "gradients",
    span: Annotated[Path | None, typer.Option("--span", metavar="FILE", help="A span that foldline span --out "
                                              "wrote.")] = None,
    data_set: Annotated[str | None, typer.Option("--data-set", help="digits, mnist5k, mnist or cifar10 (else by the "
                                                 "number of inputs).")] = None,
    images: Annotated[Path | None, typer.Option("--images", metavar="FILE", help="Your own inputs: .npy, .npz or "
                                                ".csv rows.")] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where mnist and cifar10 lie (also "
                                              "FOLDLINE_DATA).")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Test inputs.")] = 1000,
    show: Annotated[int, typer.Option("--show", min=1, max=20, help="Pictures in the gallery.")] = 8,
    in_box: Annotated[bool, typer.Option("--in-box", help="Keep every pixel in [0, 1]; says how much noise "
                                         "fits.")] = False,
    dim: Dim = None,
    seed: Seed = 0,
    budget: Budget = None,
    run: RunFolder = None,
    json_out: JsonOut = None,
) -> None:
    import foldline as fl
    from foldline.errors import BadInput
    from foldline.results import Status
    from foldline.span.obfuscate import obfuscate, obfuscate_in_box, output_change, partial_span_curve

    if source not in ("gradients", "values", "labels"):
        raise BadInput(f"--from is gradients, values or labels, not {source!r}.")
    f = fl.value_oracle(target, dim=dim, run=run)
    x, shape = inputs(images, data_set, data, f.dim, count)
    basis, found = known_span(span, target, source, f.dim, seed, budget, run)
    if len(basis) >= f.dim:
        finish(Status("full_rank", f"All {f.dim} directions matter to the target: there is no null space to hide "
                      f"noise in."))
        return
    rng = fl.generator(seed)
    note = ""
    if in_box:
        boxed = obfuscate_in_box(x, basis, scale, rng=rng)
        moved, note = boxed.samples, boxed.status.message
    else:
        moved = obfuscate(x, basis, scale, rng=rng)
    change = output_change(f, x, moved)
    ranks = sorted({0, len(basis) // 4, len(basis) // 2, 3 * len(basis) // 4, max(0, len(basis) - 1), len(basis)})
    curve = partial_span_curve(f, x, basis, ranks, scale, rng=rng)
    out.mkdir(parents=True, exist_ok=True)
    captions = draw_gallery(f, x[:show], moved[:show], shape, out / "gallery.png")
    statistics: dict[str, Any] = {
        "target": target, "rank": len(basis), "null_dimension": f.dim - len(basis), "scale": scale, "in_box": in_box,
        "inputs": change.rows, "predictions_kept": change.kept, "largest_relative_change": change.largest_change,
        "changed_fraction_bound": change.kept_bound, "note": note, "gallery": captions,
        "span_rows": found.queries if found is not None else 0, "value_rows": f.used,
        "partial": [{"rank": r, "kept": c.kept, "largest_relative_change": c.largest_change} for r, c in curve]}
    write(out, moved, statistics)
    if json_out != "-":
        table(statistics)
    emit(statistics, json_out)
    kept = change.kept == change.rows
    long = f"{scale:g}" if not in_box else f"{float((moved - x).norm() / x.norm()):.2g}"
    partly = "" if found is None or found.status.ok else f" The span itself is not confirmed: {found.status.message}"
    finish(Status("ok" if kept and not partly else "changed" if not kept else "partial",
                  f"{change.kept} of {change.rows} predictions kept under noise of {long} times the input's length; "
                  f"the largest output changed by {change.largest_change:.1e}, relative.{partly} {note}".strip()))


command.__doc__ = HELP


def inputs(images: Path | None, data_set: str | None, data: Path | None, d: int,
           count: int) -> tuple[Tensor, tuple[int, ...]]:
    from foldline.errors import BadInput
    if images is not None:
        from foldline.span.offline import read_rows
        x = read_rows(images)
        shape: tuple[int, ...] = square(x.shape[1])
    else:
        from foldline.victims.datasets import load_dataset
        name = data_set or {64: "digits", 784: "mnist5k", 3072: "cifar10"}.get(d)
        if name is None:
            raise BadInput(f"No data set here has {d} inputs: pass --images FILE or --data-set.")
        found = load_dataset(name, data)
        x, shape = found.x_test, found.image_shape
    if x.shape[1] != d:
        raise BadInput(f"The target takes {d} inputs, but these rows have {x.shape[1]}.")
    return x[:count], shape


def square(d: int) -> tuple[int, ...]:
    side = round(d ** 0.5)
    return (side, side) if side * side == d else (1, d)


def known_span(span: Path | None, target: str, source: str, d: int, seed: int, budget: int | None,
               run: Path | None) -> tuple[Tensor, SpanResult | None]:
    import torch

    from foldline.cli.span import recover
    from foldline.errors import BadFile
    from foldline.span.offline import read_arrays
    if span is not None:
        arrays = read_arrays(span)
        if "basis" not in arrays or arrays["basis"].ndim != 2 or arrays["basis"].shape[1] != d:
            raise BadFile(f"{span} holds no basis of {d} inputs: write one with foldline span --out.")
        return torch.as_tensor(arrays["basis"], dtype=torch.float64), None
    found = recover(target, source, "adaptive", None, None, 0, 0.0, d, None, seed, budget, run)
    say(f"span: rank {found.rank} of {d} from {found.queries:,} rows ({found.status.code})")
    return found.basis, found


def draw_gallery(f: ValueOracle, x: Tensor, moved: Tensor, shape: tuple[int, ...], path: Path) -> list[list[str]]:
    from foldline.reports.figures_span import gallery
    with progress("gallery"):
        captions = list(zip(predicted(f, x), predicted(f, moved), strict=True))
        gallery(x, moved, captions, shape, path)
    return [list(c) for c in captions]


def predicted(f: ValueOracle, x: Tensor) -> list[str]:
    """'Pred 7 at 99%', as under the paper's pictures; outputs that are not probabilities pass a softmax first."""
    y = f(x).double()                                                       # (n, k)
    if y.shape[1] == 1:
        return [f"{v:.4g}" for v in y[:, 0].tolist()]
    proper = bool((y >= 0).all()) and bool(((y.sum(1) - 1).abs() < 1e-3).all())
    p = y if proper else y.softmax(1)
    best = p.max(1)
    return [f"Pred {int(i)} at {float(v):.0%}" for i, v in zip(best.indices, best.values, strict=True)]


def write(out: Path, moved: Tensor, statistics: dict[str, Any]) -> None:
    import json

    import numpy as np
    with (out / "obfuscated.npz").open("wb") as file:
        np.savez_compressed(file, obfuscated=moved.numpy())
    (out / "statistics.json").write_text(json.dumps(statistics, indent=1) + "\n")
    say(f"Wrote gallery.png, obfuscated.npz and statistics.json to {out}", markup_safe=str(out))


def table(statistics: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    shown = Table("directions respected", "predictions kept", "largest change of an output", title="partial spans",
                  title_justify="left")
    for row in statistics["partial"]:
        shown.add_row(str(row["rank"]), f"{row['kept']} of {statistics['inputs']}",
                      f"{row['largest_relative_change']:.1e}")
    Console().print(shown)

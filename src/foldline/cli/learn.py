"""`foldline learn TARGET`: a network with a certified error, from values, whatever the target's weights are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foldline.cli.common import Budget, Dim, JsonOut, RunFolder, Seed, Target, emit, finish, progress, say

if TYPE_CHECKING:
    from foldline.extract.learn_result import LearnResult

HELP = """Learn a one-hidden-layer ReLU target from its values: close, cancelling and
superfluous units and narrow bumps included. Ends with a bound on the error
under Gaussian inputs, or says what was reached.

\b
Examples:
  foldline learn weights:model.safetensors
  foldline learn py:mymodel:predict --dim 20 --epsilon 1e-2
  foldline learn weights:model.safetensors --out learnt.safetensors --plot line.svg
  foldline learn weights:model.safetensors --budget 50000 --json result.json

\b
The literal algorithm of the paper, on a tiny target (r and tau are its own):
  foldline learn py:mymodel:tiny --dim 2 --method theory --units 3 --r 0.02 --tau 6
"""


def command(
    target: Target,
    epsilon: Annotated[float, typer.Option("--epsilon", help="L2 error under x ~ N(0, I), relative to the target's "
                                           "standard deviation.")] = 1e-3,
    delta: Annotated[float, typer.Option("--delta", help="The bound may fail with this probability.")] = 0.05,
    absolute: Annotated[bool, typer.Option("--absolute", help="epsilon is an absolute error.")] = False,
    kurtosis: Annotated[float | None, typer.Option("--kurtosis", help="Heaviest tails of the error that the bound "
                                                   "must cover; more is more probes.")] = None,
    resolution: Annotated[float, typer.Option("--resolution", help="Folds closer than this on a line are one.")] = 1e-7,
    method: Annotated[str, typer.Option("--method", help="practical, or theory (the paper's own, tiny targets).")]
        = "practical",
    units: Annotated[int, typer.Option("--units", min=1, help="theory: k.")] = 1,
    norm: Annotated[float, typer.Option("--norm", help="theory: R, a bound on the units' weights.")] = 1.0,
    bias: Annotated[float, typer.Option("--bias", help="theory: B, a bound on the biases.")] = 1.0,
    r: Annotated[float | None, typer.Option("--r", help="theory: length of an interval.")] = None,
    tau: Annotated[float | None, typer.Option("--tau", help="theory: half the line.")] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="theory: step of a difference.")] = None,
    dim: Dim = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The network, as safetensors.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="One line with its folds, as .svg or "
                                              ".png.")] = None,
    seed: Seed = 0,
    budget: Budget = None,
    run: RunFolder = None,
    json_out: JsonOut = None,
) -> None:
    from foldline.errors import BadInput
    if method not in ("practical", "theory"):
        raise BadInput(f"--method is practical or theory, not {method!r}.")
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise BadInput(f"--plot writes .svg or .png, not {plot.suffix or 'a file without an ending'}.")
    for path in (out, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{path.parent} is not a folder, so {path.name} could not be written. Nothing was asked.")

    import foldline as fl
    from foldline.extract.worst_case import Theory
    theory = Theory(k=units, R=norm, B=bias, r=r, tau=tau, alpha=alpha)
    with progress("learn") as bar:
        f = fl.value_oracle(target, budget, dim=dim, run=run)
        found = fl.learn_from_queries(f, epsilon, delta, rng=fl.generator(seed), relative=not absolute,
                                      kurtosis=kurtosis, resolution=resolution, theory=theory, progress=bar,
                                      method="theory" if method == "theory" else "practical")
    show(found, json_out)
    if out is not None:
        fl.save(found.network, out)
        say(f"Wrote {out}", markup_safe=str(out))
    if plot is not None and found.trace is not None:
        draw(found, plot)
        say(f"Wrote {plot}", markup_safe=str(plot))
    emit(found.to_dict(), json_out)
    finish(found.status)


command.__doc__ = HELP


def show(found: LearnResult, json_out: str | None) -> None:
    if json_out == "-":
        return
    from rich.console import Console
    from rich.table import Table
    c = found.certificate
    table = Table("what", "found", title="learnt network", title_justify="left")
    table.add_row("units", f"{found.units}" + (" (by exact extraction)" if found.handed_over else ""))
    if c.probes:
        table.add_row("error", f"{c.relative_error:.2e} of the standard deviation on {c.probes} fresh probes")
        table.add_row("certificate", f"at most {c.bound:.2e} with {c.confidence:.1%} confidence, for errors of "
                      f"kurtosis up to {c.kurtosis:.3g}; at most {c.fraction_bound:.2%} of Gaussian inputs are off by "
                      f"more than epsilon")
    else:
        table.add_row("certificate", "none: no rows were left for fresh probes")
    table.add_row("asked", f"{found.queries:,} rows, {found.lines} lines")
    if found.merged:
        sizes = ", ".join(str(len(g)) for g in sorted(found.merged, key=len, reverse=True)[:12])
        table.add_row("merged", f"{len(found.merged)} groups of close units, of {sizes} units"
                      + (" and more" if len(found.merged) > 12 else ""))
    if found.dropped:
        table.add_row("out of reach", f"{found.dropped} units that Gaussian inputs never fold")
    if found.tangles:
        table.add_row("tangles", f"{found.tangles} stretches of lines narrower than the resolution, each taken as one "
                      f"fold")
    table.add_row("answers' noise", f"{found.noise:.1e}")
    steps = [found.history[i] for i in sorted({round(i * (len(found.history) - 1) / 7) for i in range(8)})] \
        if found.history else []
    table.add_row("error on the way", "  ".join(f"{rows:,}: {error:.1e}" for rows, error in steps))
    Console().print(table)


def draw(found: LearnResult, path: Path) -> None:
    """The first line: what was seen, what was learnt, folds as ticks."""
    from matplotlib.figure import Figure
    trace = found.trace
    assert trace is not None
    reach = 6 * float(found.network.in_features) ** 0.5
    near = trace.t.abs() <= reach
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(trace.t[near], trace.learnt[near], color="tab:blue", label="learnt")
    axes.plot(trace.t[near], trace.value[near], ".", color="black", markersize=3, label="seen")
    folds = trace.folds[trace.folds.abs() <= reach]
    axes.plot(folds, [axes.get_ylim()[0]] * len(folds), "|", color="tab:red", markersize=10, label="folds")
    axes.set_xlabel("t on the line x0 + t v")
    axes.set_ylabel("output")
    axes.legend(frameon=False)
    figure.savefig(path)

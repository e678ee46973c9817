"""`foldline extract TARGET`: the whole network, if it has one hidden layer, from its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from foldline.cli.common import Budget, Dim, JsonOut, RunFolder, Seed, Target, emit, finish, say

if TYPE_CHECKING:
    from foldline.extract.result import Extraction

HELP = """Extract a one-hidden-layer ReLU network exactly, from its values or from
its input gradients, near the least number of rows that can determine it.

\b
Examples:
  foldline extract demo:digits                            from values
  foldline extract demo:digits --from gradients           one output's gradients
  foldline extract weights:model.safetensors --out stolen.safetensors
  foldline extract weights:stolen.safetensors             what was saved is a target
  foldline extract demo:digits --plot line.svg --json result.json

\b
The published algorithms, for comparison (they must be told h):
  foldline extract weights:model.safetensors --from gradients --method bisection --hidden 16
"""


def command(
    target: Target,
    source: Annotated[str, typer.Option("--from", help="What is asked: values or gradients.")] = "values",
    method: Annotated[str, typer.Option("--method", help="crossing (ours) or bisection (paper 000's Algorithms 1 and "
                                        "1-MQ).")] = "crossing",
    hidden: Annotated[int | None, typer.Option("--hidden", min=1, help="Hidden units, for bisection.")] = None,
    link: Annotated[str, typer.Option("--link", help="auto, identity, sigmoid or softmax: what the target ends "
                                      "in.")] = "auto",
    output: Annotated[int, typer.Option("--output", min=0, help="Whose gradient is asked.")] = 0,
    probes: Annotated[int | None, typer.Option("--probes", min=1, help="Fresh points that the certificate rests "
                                               "on.")] = None,
    dim: Dim = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Save the network as safetensors; it is a "
                                             "target again.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="One line through the network with its "
                                              "folds, as SVG.")] = None,
    seed: Seed = 0,
    budget: Budget = None,
    run: RunFolder = None,
    json_out: JsonOut = None,
) -> None:
    from foldline.errors import BadInput

    links = ("auto", "identity", "sigmoid") if source == "gradients" else ("auto", "identity", "sigmoid", "softmax")
    for option, given, known in (("--from", source, ("values", "gradients")), ("--link", link, links),
                                 ("--method", method, ("crossing", "bisection"))):
        if given not in known:
            raise BadInput(f"{option} is {', '.join(known)}, not {given!r}.")
    found = extract(target, source, method, hidden, link, output, probes, dim, seed, budget, run)
    show(found, json_out)
    if out is not None:
        import foldline as fl
        fl.save(found.network, out)
        say(f"Wrote {out}", markup_safe=str(out))
    if plot is not None and found.line is not None:
        from foldline.reports.figures_extract import line_plot
        line_plot(found.line.t, found.line.y, found.line.folds, plot)
        say(f"Wrote {plot}", markup_safe=str(plot))
    emit(found.to_dict(), json_out)
    finish(found.status)


command.__doc__ = HELP


def extract(target: str, source: str, method: str, hidden: int | None, link: str, output: int, probes: int | None,
            dim: int | None, seed: int, budget: int | None, run: Path | None) -> Extraction:
    import foldline as fl
    from foldline.cli.extract_display import Display
    from foldline.extract.gradients import extract_from_gradients
    from foldline.extract.values import extract_from_values
    rng = fl.generator(seed)
    chosen = cast(Any, method)                                       # checked by the caller
    if source == "gradients":
        g = fl.gradient_oracle(target, output, budget, dim=dim, run=run)
        with Display(g) as live:
            return extract_from_gradients(g, rng=rng, method=chosen, hidden=hidden, link=cast(Any, link),
                                          probes=probes or 3, progress=live.progress)
    f = fl.value_oracle(target, budget, dim=dim, run=run)
    with Display(f) as live:
        return extract_from_values(f, rng=rng, method=chosen, hidden=hidden, link=cast(Any, link),
                                   probes=probes or 8, progress=live.progress)


def show(found: Extraction, json_out: str | None) -> None:
    if json_out == "-":
        return
    from rich.console import Console
    from rich.table import Table

    from foldline.reports.figures_extract import summary
    table = Table("what", "found", title="one hidden layer", title_justify="left")
    table.add_row("network", summary(found.network))
    table.add_row("asked", f"{found.queries:,} rows; at least {found.limit:,} are needed for that many numbers "
                           f"({found.ratio:.2f} times)")
    c = found.certificate
    if c.probes:
        table.add_row("certificate", f"worst of {c.probes} fresh probes off by {c.worst:.2g} (allowed "
                                     f"{c.tolerance:.2g}); at most {c.fraction_bound:.0%} of {c.distribution} can "
                                     "be off")
    signs = "unique" if found.signs_unique else "not unique: the rows are dependent"
    table.add_row("signs", signs + ("" if found.affine_free else "; written with an affine term"))
    a = found.assumptions
    table.add_row("theorem", f"rank {a.rank} of {found.units}, smallest angle {a.smallest_angle:.2g}, smallest gap on "
                             f"a line {a.smallest_gap:.2g}; its bound would be {a.query_bound:,.0f} gradient rows")
    Console().print(table)

"""`foldline probe TARGET`: what a target is like, before anything is tried on it."""

from __future__ import annotations

from foldline.cli.common import Budget, Dim, JsonOut, Seed, Target, emit, finish, progress


def command(
    target: Target,
    seed: Seed = 0,
    budget: Budget = None,
    json_out: JsonOut = None,
    dim: Dim = None,
) -> None:
    """What a target answers: dims, dtype, output kind, rounding, noise, determinism, speed.

    Costs about 1,200 rows.

    Examples:

        foldline probe demo:digits

        foldline probe weights:model.safetensors --json -

        foldline probe torch:victims.mnist:make_network --budget 2000
    """
    from foldline.oracles.probe import probe
    from foldline.randomness import generator
    with progress("probe"):
        found = probe(target, rng=generator(seed), budget=budget, dim=dim)
    if json_out != "-":
        from rich.console import Console
        from rich.table import Table
        table = Table("what", "found", title=target.replace("[", "\\["), title_justify="left")
        for name, text in lines(found):
            table.add_row(name, text)
        Console().print(table)
    emit(found.to_dict(), json_out)
    finish(found.status)


def lines(found: object) -> list[tuple[str, str]]:
    from foldline.oracles.probe import TargetProbe
    assert isinstance(found, TargetProbe)

    def number(value: float | None, unknown: str = "not measured") -> str:
        return unknown if value is None else f"{value:.4g}"

    same = {None: "not measured", True: "yes, the same bits", False: "no"}[found.deterministic]
    return [
        ("inputs", f"{found.dim} ({found.dtype})"),
        ("box", f"[{found.box[0]:g}, {found.box[1]:g}]" if found.box else "none declared"),
        ("outputs", f"{found.outputs if found.outputs is not None else 'not measured'}, {found.output_kind}"),
        ("range seen", f"{number(found.low)} to {number(found.high)}"),
        ("input gradients", "yes" if found.gradients else "no"),
        ("deterministic", same),
        ("moves with the batch", number(found.batch_effect)),
        ("rounded to", "no rounding seen" if found.decimals is None else f"{found.decimals} decimals"),
        ("noise", "none seen" if found.noise == 0 else f"standard deviation {number(found.noise)}"),
        ("speed", "not measured" if found.rows_per_second is None else f"{found.rows_per_second:,.0f} rows/s"),
        ("rows asked", f"{found.queries:,}"),
    ]

"""foldline train: make a victim to attack, by a named recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foldline.cli.common import JsonOut, Seed, emit, progress, say

if TYPE_CHECKING:
    from foldline.victims.train import Victim

HELP = """Train a victim by a named recipe, to attack it and to judge the attack.

DIR gets victim.safetensors (the network), victim.json (how it was made, how
near it came to its KKT point) and, for your eyes only, owner.npz (its
training images, and as many unseen ones; no attack reads it). Ctrl-C keeps
what was done: the same command goes on from there.

\b
Examples:
  foldline train everyday --n 50 --out victim      50 MNIST digits
  foldline train small-start --n 20 --out victim   the paper's way of starting
  foldline train conv --data-set mnist --data ~/data --out target
  foldline train list                              every recipe in one line

\b
Recipes for data reconstruction:
  everyday         d-500-500-1: default start, SGD, momentum, weight decay
  everyday-wide    the same, d-1000-1000-1
  everyday-batches, everyday-wide-batches, everyday-ten    in mini-batches
  adamw, no-decay, dp-sgd    other everyday training, and a defence
  small-start      d-1000-1000-1, first layer N(0, 1e-4), quickly to loss 1e-6
  small-start-100, -deep4, -deep5, -biases    the other rows of Table 1
  small-start-gd, epochs-10k    the paper's plain gradient descent
  standard-start, standard-start-gd    the default start, to loss 1e-6
  mini-batch, mini-batch-1000, -100, -deep4, -deep5    batches of 50 (Table 2)
Targets for extraction and imitation (ten classes, all of a data set):
  logistic, two-layer, conv, vgg11, resnet18
"""


def command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from the table above, or 'list'.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the victim goes.")] = None,
    n: Annotated[int | None, typer.Option("--n", min=2, help="Training images (else the recipe's own "
                                          "number).")] = None,
    data_set: Annotated[str | None, typer.Option("--data-set", help="digits, mnist5k, mnist or cifar10.")] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where mnist and cifar10 lie (also "
                                              "FOLDLINE_DATA).")] = None,
    width: Annotated[int | None, typer.Option("--width", min=1, help="Another width: of every hidden layer of an MLP, "
                                              "or the width of two-layer, conv, vgg11, resnet18.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=0, help="Another number of steps.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", min=0, help="Another number of epochs.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Another learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option("--weight-decay", min=0.0, help="Another decay.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Another batch size.")] = None,
    inputs: Annotated[str | None, typer.Option("--inputs", help="mean (rows minus the training mean), raw, or a number "
                                               "to subtract.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or float64.")] = None,
    in_span: Annotated[bool, typer.Option("--in-span", help="Train in the coordinates of the rows' span: the same "
                                          "network up to rounding, faster where images are large and few. SGD and "
                                          "log-loss recipes of dense networks.")] = False,
    seed: Seed = 0,
    json_out: JsonOut = None,
) -> None:
    if recipe == "list":
        list_recipes()
        return
    from foldline.errors import BadInput
    from foldline.randomness import generator
    from foldline.victims.kkt_report import report_of
    from foldline.victims.recipes import preset
    from foldline.victims.store import ABOUT, CHECKPOINT, write_victim
    from foldline.victims.train import train_victim

    plan = preset(recipe)
    if out is None:
        raise BadInput("Where should the victim go? Give --out DIR.")
    if (out / ABOUT).exists():
        raise BadInput(f"{out} holds a finished victim already; choose another --out, or delete it first.")
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file; --out names a folder.")
    if dtype not in (None, "float32", "float64"):
        raise BadInput(f"--dtype must be float32 or float64, not {dtype!r}.")
    if steps is not None and epochs is not None:
        raise BadInput("Give --steps or --epochs, not both.")
    changed = plan.recipe.changed(steps=steps, epochs=epochs, lr=lr, weight_decay=weight_decay, batch=batch,
                                  inputs=inputs, dtype=dtype)
    arguments: dict[str, Any] = {}
    if width is not None:
        if plan.network == "logistic":
            raise BadInput("Logistic regression has no width.")
        arguments = {"widths": (width,) * len(plan.arguments["widths"])} if plan.network == "mlp" else {"width": width}
    with progress(f"train {recipe}") as show:
        victim = train_victim(recipe, rng=generator(seed), n=n, data_set=data_set, data=data, recipe=changed,
                              arguments=arguments, checkpoint=out / CHECKPOINT, in_span=in_span, progress=show)
        show("measuring", {})
        write_victim(victim, out, report=report_of(victim))
    tell(victim, out)
    import json
    emit(json.loads((out / ABOUT).read_text()), json_out)
    if not victim.info["reached"]:
        say(f"[yellow]The loss {victim.info['train_loss']:.2g} is still above {changed.stop_loss:g}[/]: take more "
            f"--steps, into another --out.")
        raise typer.Exit(3)


def tell(victim: Victim, out: Path) -> None:
    import json

    from foldline.victims.store import ABOUT, OWNER
    info = json.loads((out / ABOUT).read_text())
    say(f"{info['network']} on {info['n']} rows of {info['data_set']}: loss {info['train_loss']:.3g}, accuracy "
        f"{info['train_accuracy']:.1%}, on the test set {info['test_accuracy']:.1%}, {info['steps']:,} steps in "
        f"{info['seconds']:.1f} s.")
    if "epsilon" in info:
        say(f"Differential privacy: epsilon {info['epsilon']:.3g} at delta {info['delta']:.2g}.")
    k = info.get("kkt")
    if k:
        layers = ", ".join(f"{r:.2g}" for r in k["residual_per_layer"])
        say(f"KKT: stationarity residual by layer {layers}; {k['on_margin']} of {info['n']} rows on the margin, "
            f"{k['active']} multipliers.")
        edge = "" if k["above_edge"] is None else f"{k['above_edge']} values stand above what is left of the start, "
        say(f"First layer: n = {info['n']}; {edge}the spectrum falls by {k['ratio_at_n'] or 0:.3g} after value n, and "
            f"most (by {k['gap_ratio'] or 0:.3g}) after value {k['gap_at']}.")
    secret = f", and for your eyes only {OWNER}" if (out / OWNER).exists() else ""
    say(f"Wrote {out}: victim.safetensors, {ABOUT}{secret}.", markup_safe=str(out))


def list_recipes() -> None:
    from foldline.victims.recipes import PRESETS
    for name, plan in PRESETS.items():
        size = "all" if plan.n is None else f"n = {plan.n}"
        typer.echo(f"{name:<22} {plan.data_set:<8} {size:<8} {plan.summary}")


command.__doc__ = HELP

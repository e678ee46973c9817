"""How victims are trained: recipes, and named victims (a network, a recipe, a data set).

Sources: paper 003 (Section 5 and Appendix C.3) for the small start, plain gradient descent, and Tables 1 and 2;
METHODS.md for the everyday recipe and the fast way to the KKT point; paper 000 for the targets of imitation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from foldline.errors import BadInput
from foldline.victims.datasets import Task

Optimiser = Literal["sgd", "adam", "adamw", "log-loss"]


@dataclass(frozen=True)
class Recipe:
    """`batch` None is full-batch; training ends after `steps` or `epochs`, or once the loss is below `stop_loss`.

    optimiser "log-loss": gradient descent on the logarithm of the loss with step min(lr, drop / |gradient|^2), so that
    a step lowers log(loss) by about `drop` at most. Its path is the gradient flow's, which only sees time
    differently, so it ends near the same KKT point in hundreds of steps where a constant rate takes a million.
    """

    optimiser: Optimiser = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    drop: float = 0.2
    steps: int | None = None
    epochs: int | None = None
    batch: int | None = None
    stop_loss: float | None = None
    first_layer_std: float | None = None        # None: PyTorch's default start for every layer
    inputs: str = "mean"                        # rows minus the training mean, "raw", or minus a constant: "0.5"
    dtype: Literal["float32", "float64"] = "float32"
    noise_multiplier: float | None = None       # DP-SGD where given
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise BadInput("A recipe needs either steps or epochs.")
        if not 0 < self.lr < math.inf or not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise BadInput(f"A recipe needs a positive learning rate, a momentum in [0, 1) and a decay of at least 0, "
                           f"not {self.lr}, {self.momentum} and {self.weight_decay}.")
        if (self.steps or self.epochs or 0) < 0:
            raise BadInput("A recipe cannot take a negative number of steps or epochs.")
        if self.inputs not in ("mean", "raw"):
            try:
                finite = math.isfinite(float(self.inputs))
            except ValueError:
                finite = False
            if not finite:
                raise BadInput(f"inputs must be 'mean', 'raw' or a number to subtract, not {self.inputs!r}.")
        if self.batch is not None and self.batch < 1:
            raise BadInput(f"The batch must hold at least one row, not {self.batch}.")
        if self.batch is not None and self.stop_loss is not None:
            raise BadInput("stop_loss is the loss on all rows: it needs full-batch training (leave batch out).")
        if self.optimiser == "log-loss" and self.batch is not None:
            raise BadInput("Steps on the logarithm of the loss are full-batch: leave batch out.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def changed(self, **changes: Any) -> Recipe:
        """The recipe with what is not None changed; steps replace epochs and the other way round."""
        changes = {k: v for k, v in changes.items() if v is not None}
        if "steps" in changes:
            changes["epochs"] = None
        elif "epochs" in changes:
            changes["steps"] = None
        return replace(self, **changes)


@dataclass(frozen=True)
class VictimPreset:
    """A victim by name. n None: the whole training set."""

    summary: str
    network: str
    arguments: Mapping[str, Any]
    recipe: Recipe
    data_set: str = "mnist5k"
    task: Task = "binary"
    n: int | None = 50


EVERYDAY = Recipe(lr=0.05, momentum=0.9, weight_decay=5e-3, steps=6000)
ADAMW = Recipe(optimiser="adamw", lr=1e-3, weight_decay=1e-2, steps=3000)
NO_DECAY = EVERYDAY.changed(weight_decay=0.0)
SMALL_START = Recipe(optimiser="log-loss", lr=0.5, drop=0.2, steps=20_000, stop_loss=1e-6, first_layer_std=1e-4)
PAPER_GD = Recipe(lr=0.01, steps=1_000_000, stop_loss=1e-6, first_layer_std=1e-4)
STANDARD_GD = replace(PAPER_GD, first_layer_std=None)
MINI_BATCH = Recipe(lr=0.01, epochs=10_000, batch=50)
DP = Recipe(lr=0.1, momentum=0.9, steps=2000, batch=25, noise_multiplier=1.0, clip_norm=1.0)
SUPERVISED = Recipe(optimiser="adam", lr=1e-3, epochs=5, batch=128, inputs="raw")


def deep(*widths: int, biases: str = "first") -> dict[str, Any]:
    return {"widths": widths, "biases": biases}


PRESETS: dict[str, VictimPreset] = {
    # Data reconstruction: everyday recipes.
    "everyday": VictimPreset("d-500-500-1, PyTorch's default start, SGD with momentum and weight decay, 6,000 steps",
                             "mlp", deep(500, 500, biases="all"), EVERYDAY),
    "everyday-wide": VictimPreset("the same, d-1000-1000-1", "mlp", deep(1000, 1000, biases="all"), EVERYDAY),
    "everyday-batches": VictimPreset("everyday in mini-batches of 25", "mlp", deep(500, 500, biases="all"),
                                     EVERYDAY.changed(batch=25)),
    "everyday-wide-batches": VictimPreset("d-1000-1000-1 in mini-batches of 100", "mlp",
                                          deep(1000, 1000, biases="all"), EVERYDAY.changed(batch=100)),
    "everyday-ten": VictimPreset("d-500-500-10, ten classes, mini-batches of 25, inputs minus 0.5", "mlp",
                                 deep(500, 500, biases="all"), EVERYDAY.changed(batch=25, inputs="0.5"), task="ten"),
    "adamw": VictimPreset("d-500-500-1, AdamW (lr 1e-3, decay 1e-2), 3,000 steps", "mlp", deep(500, 500, biases="all"),
                          ADAMW),
    "no-decay": VictimPreset("everyday without weight decay", "mlp", deep(500, 500, biases="all"), NO_DECAY),
    "dp-sgd": VictimPreset("d-500-500-1 with DP-SGD (opacus): noise 1, clip 1", "mlp", deep(500, 500, biases="all"),
                           DP),
    # Data reconstruction: the paper's victims, first layer from N(0, 1e-4^2), bias in the first layer only.
    "small-start": VictimPreset("d-1000-1000-1, small first layer, fast way to the KKT point (loss 1e-6)", "mlp",
                                deep(1000, 1000), SMALL_START),
    "small-start-gd": VictimPreset("the same by plain gradient descent at 0.01, at most 1,000,000 steps (hours)", "mlp",
                                   deep(1000, 1000), PAPER_GD),
    "small-start-100": VictimPreset("d-100-100-1, small start (Table 1)", "mlp", deep(100, 100), SMALL_START, n=500),
    "small-start-deep4": VictimPreset("d-1000-500-100-1, small start (Table 1)", "mlp", deep(1000, 500, 100),
                                      SMALL_START, n=500),
    "small-start-deep5": VictimPreset("d-1000-500-100-50-1, small start (Table 1)", "mlp", deep(1000, 500, 100, 50),
                                      SMALL_START, n=500),
    "small-start-biases": VictimPreset("d-1000-1000-1, small start, biases in all hidden layers (Table 1)", "mlp",
                                       deep(1000, 1000, biases="hidden"), SMALL_START, n=500),
    "standard-start": VictimPreset("d-1000-1000-1, default start, steps on log(loss) to 1e-6 (Table 2)", "mlp",
                                   deep(1000, 1000), replace(SMALL_START, first_layer_std=None), n=50),
    "standard-start-gd": VictimPreset("the same by plain gradient descent (hours)", "mlp", deep(1000, 1000),
                                      STANDARD_GD, n=50),
    "epochs-10k": VictimPreset("d-1000-1000-1, small start, plain gradient descent, 10,000 epochs (Table 2)", "mlp",
                               deep(1000, 1000), PAPER_GD.changed(steps=10_000), n=500),
    "mini-batch": VictimPreset("d-1000-1000-1, small start, SGD in batches of 50, 10,000 epochs (Table 2)", "mlp",
                               deep(1000, 1000), replace(MINI_BATCH, first_layer_std=1e-4), n=500),
    "mini-batch-1000": VictimPreset("d-1000-1000-1, default start, biases in all hidden layers, batches of 50, "
                                    "10,000 epochs", "mlp", deep(1000, 1000, biases="hidden"), MINI_BATCH, n=500),
    "mini-batch-100": VictimPreset("the same, d-100-100-1", "mlp", deep(100, 100, biases="hidden"), MINI_BATCH, n=500),
    "mini-batch-deep4": VictimPreset("the same, d-1000-500-100-1", "mlp", deep(1000, 500, 100, biases="hidden"),
                                     MINI_BATCH, n=500),
    "mini-batch-deep5": VictimPreset("the same, d-1000-500-100-50-1", "mlp",
                                     deep(1000, 500, 100, 50, biases="hidden"), MINI_BATCH, n=500),
    # Targets of extraction and imitation, trained on all of a data set, ten classes, Adam.
    "logistic": VictimPreset("logistic regression, ten classes, the whole data set", "logistic", {}, SUPERVISED,
                             task="ten", n=None),
    "two-layer": VictimPreset("two-layer ReLU network, width 128", "two-layer", {"width": 128}, SUPERVISED, task="ten",
                              n=None),
    "conv": VictimPreset("two convolutions with max-pool and two dense layers, width 32", "conv", {"width": 32},
                         SUPERVISED, task="ten", n=None),
    "vgg11": VictimPreset("VGG-11 at width 16", "vgg11", {"width": 16}, SUPERVISED, "cifar10", "ten", None),
    "resnet18": VictimPreset("ResNet-18 at width 16", "resnet18", {"width": 16}, SUPERVISED, "cifar10", "ten", None),
}


def preset(name: str) -> VictimPreset:
    if name not in PRESETS:
        from difflib import get_close_matches
        near = get_close_matches(name, PRESETS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"There is no victim preset {name!r}.{hint} There are {', '.join(PRESETS)}.")
    return PRESETS[name]

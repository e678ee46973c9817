"""The embedded default's victims: trained on the spot, served on loopback, asked like strangers' models.

The main victim is an everyday one: 784-300-300-1 on 50 digits (odd or even), PyTorch's default start, SGD with momentum
and weight decay. Beside it stands a network with one hidden layer, which can be extracted exactly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foldline.auditing.retrain import RECIPES, recipe_words
from foldline.auditing.spec import AuditFile
from foldline.auditing.subjects import Known, Owner, Subject
from foldline.oracles.protocols import Kind, Source
from foldline.randomness import generator
from foldline.results import Progress, silent

TARGET = "demo:audit"
SAMPLES = 50
WIDTHS = (300, 300)
SMALL_WIDTH, SMALL_SAMPLES = 16, 500
PUBLIC = 200                # unseen digits that an attacker may have


class Centred(nn.Module):
    """The model as it is served: raw pixels in, the training mean taken off inside."""

    mean: Tensor

    def __init__(self, module: nn.Module, mean: Tensor) -> None:
        super().__init__()
        self.module = module
        first = next(module.parameters())
        self.register_buffer("mean", mean.to(first.dtype))

    def forward(self, x: Tensor) -> Any:
        return self.module(x - self.mean)


@contextlib.contextmanager
def demo_subjects(audit: AuditFile, folder: Path, progress: Progress = silent) -> Iterator[dict[str, Subject]]:
    """main and small, each behind a server of its own on loopback; copy is the owner's own main, in this process."""
    from foldline.oracles.authorisation import authorised
    from foldline.oracles.endpoint import open_endpoint
    from foldline.serving.app import make_app
    from foldline.serving.run import serving
    main, small = victim("main", audit.seed, folder, progress), victim("small", audit.seed, folder, progress)
    said = audit.authorised or "The embedded demo attacks only itself."
    with authorised(said), serving(make_app(main.module, name="digits")) as url, \
            serving(make_app(small.module, name="digits, one hidden layer")) as small_url:
        def over_http(address: str) -> Any:
            def opened(kind: Kind) -> Source:
                return open_endpoint(address, kind, output=audit.output, overlap=False)     # one process, one lock
            return opened
        yield {"main": replace(main, open=over_http(url), module=None), "copy": main,
               "small": replace(small, open=over_http(small_url), module=None)}


def victim(name: str, seed: int, folder: Path, progress: Progress = silent) -> Subject:
    """One of the demo's victims by name: trained once, then read back from the run folder."""
    from foldline.oracles.local import source_of
    trained = trained_victim(name, seed, folder, progress)
    served = Centred(trained.module, trained.mean).eval().requires_grad_(False)
    data = trained.data

    def opened(kind: Kind) -> Source:
        source: Source = source_of(served, kind)
        return source

    from foldline.victims.datasets import load_dataset, task_labels
    mnist = load_dataset("mnist5k")
    # The data set is sorted by digit.
    order = torch.randperm(len(mnist.y_test), generator=generator(seed))
    test, labels = mnist.x_test[order], task_labels(mnist, mnist.y_test, "binary")[order]
    # An attacker has digits of his own, and their mean stands in for the one that the model subtracts.
    known = Known(image_shape=(28, 28), mean=test[:PUBLIC].mean(0), inputs=test[:PUBLIC])
    widths = "-".join(str(w) for w in ("784", *network_widths(name), "1"))
    recipe = trained.info["recipe"]
    facts = {"model": f"{widths}, ReLU, {trained.info['n']} training digits, odd against even",
             "training": recipe_words(name, recipe, trained.info),
             "accuracy on unseen digits": f"{trained.info['test_accuracy']:.1%}"}
    return Subject(name=f"digits {widths}", address="http://127.0.0.1 (loopback)",
                   access=("values", "gradients", "labels"), open=opened, known=known,
                   owner=Owner(data.x, data.x_unseen, test, labels, trained.mean), module=served, facts=facts)


def sketch(audit: AuditFile) -> Subject:
    """The main subject as a plan needs it: nothing trained, nothing served, nothing that could be asked."""
    from foldline.oracles.local import source_of
    blank = nn.Sequential(nn.Linear(784, 1))

    def opened(kind: Kind) -> Source:
        source: Source = source_of(blank, kind)
        return source

    rows, public = (torch.zeros(n, 784, dtype=torch.float64) for n in (SAMPLES, PUBLIC))
    access = audit.access or ("values", "gradients", "labels")
    return Subject(f"digits 784-{WIDTHS[0]}-{WIDTHS[1]}-1", "loopback", access, opened,
                   Known(image_shape=(28, 28), inputs=public), Owner(rows, rows, public))


def network_widths(name: str) -> tuple[int, ...]:
    return (SMALL_WIDTH,) if name == "small" else WIDTHS


def trained_victim(name: str, seed: int, folder: Path, progress: Progress) -> Any:
    from foldline.victims.recipes import EVERYDAY, Recipe, VictimPreset, deep
    from foldline.victims.store import ABOUT, read_victim, write_victim
    from foldline.victims.train import train_victim
    home = folder / "victims" / name
    if not (home / ABOUT).is_file():
        recipes = {
            "main": EVERYDAY, "small": Recipe(lr=0.1, momentum=0.9, steps=400, dtype="float64"), **RECIPES}
        plan = VictimPreset(name, "mlp", deep(*network_widths(name), biases="all"), recipes[name],
                            n=SMALL_SAMPLES if name == "small" else SAMPLES)
        home.mkdir(parents=True, exist_ok=True)
        trained = train_victim(plan, rng=generator(seed), checkpoint=home / "checkpoint.safetensors",
                               progress=progress)
        write_victim(trained, home)
    return read_victim(home)

"""The training loop: any recipe on any module, resumable, the same for the same seed.

The order of mini-batches in epoch e comes from a stream named by e, so a resumed run needs no generator state and
ends bit for bit where an uninterrupted one does (on the same machine with the same number of threads).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.errors import FoldlineError
from foldline.randomness import Streams
from foldline.results import Progress, silent
from foldline.victims.checkpoints import load_checkpoint, save_checkpoint
from foldline.victims.recipes import Recipe

CHECKPOINT_SECONDS = 10.0
REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Fit:
    steps: int
    loss: float             # on all rows, after the last step
    accuracy: float
    seconds: float          # of this process; a resumed run counts only its own part


def fit(module: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, *, streams: Streams, progress: Progress = silent,
        checkpoint: Path | None = None) -> Fit:
    """Train `module` in place on rows x (n, d), already centred and in its dtype, with labels y (n,)."""
    start_time = time.perf_counter()
    optimiser = optimiser_of(module, recipe)
    n = len(x)
    per_epoch = 1 if recipe.batch is None else math.ceil(n / recipe.batch)
    total = recipe.steps if recipe.steps is not None else (recipe.epochs or 0) * per_epoch
    name = fingerprint(module, x, y, recipe, streams) if checkpoint is not None else ""
    done = load_checkpoint(checkpoint, module, optimiser, name) if checkpoint is not None else 0
    module.train()
    step, close = stepper(module, optimiser, x, y, recipe, streams, per_epoch)
    watch = recipe.stop_loss
    last_report = last_save = time.perf_counter()
    with deferred_interrupt(checkpoint is not None) as asked_to_stop:
        while done < total:
            loss = step(done)
            # The loss is the one before the step; the step is taken all the same, so a run ends below its promise.
            done += 1
            if watch is not None and float(loss) <= watch:
                break
            now = time.perf_counter()
            if now - last_report > REPORT_SECONDS:
                last_report = now
                if not math.isfinite(float(loss)):
                    break
                progress("training", {"done": done, "total": total, "loss": float(loss)})
            if checkpoint is not None and (asked_to_stop or now - last_save > CHECKPOINT_SECONDS):
                save_checkpoint(checkpoint, module, optimiser, done, name)
                last_save = time.perf_counter()
            if asked_to_stop:
                raise KeyboardInterrupt
    close()
    module.eval()
    loss_now, accuracy = score(module, x, y)
    if not math.isfinite(loss_now):
        raise FoldlineError(f"Training diverged: the loss is not finite after {done} steps. Lower the learning rate.")
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return Fit(done, loss_now, accuracy, time.perf_counter() - start_time)


@contextlib.contextmanager
def deferred_interrupt(wanted: bool) -> Iterator[list[int]]:
    """Ctrl-C only fills the list: in the middle of a step the parameters would fit no step number.

    A second Ctrl-C interrupts at once. Outside the main thread signals are not ours to catch.
    """
    asked: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def optimiser_of(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer | None:
    p = list(module.parameters())
    # The fused kernels pass over the parameters once; DP-SGD rewrites gradients and wants the plain ones.
    fused = recipe.noise_multiplier is None
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(p, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, fused=fused)
    if recipe.optimiser == "adam":
        return torch.optim.Adam(p, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(p, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
    return None


def stepper(module: nn.Module, optimiser: torch.optim.Optimizer | None, x: Tensor, y: Tensor, recipe: Recipe,
            streams: Streams, per_epoch: int) -> tuple[Callable[[int], Tensor], Callable[[], None]]:
    """step(i) -> the loss before the step, and what is to be called after the last one."""
    if optimiser is None:
        return log_loss_step(module, x, y, recipe), lambda: None
    if recipe.noise_multiplier is not None:
        from foldline.victims.privacy import private_step
        return private_step(module, optimiser, x, y, recipe, loss_of, streams)
    opt = optimiser

    def descend(rows: Tensor, labels: Tensor) -> Tensor:
        loss = loss_of(module(rows), labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.detach()

    if recipe.batch is None:
        return (lambda i: descend(x, y)), lambda: None
    batch, order = recipe.batch, [torch.empty(0, dtype=torch.int64)]

    def mini(i: int) -> Tensor:
        epoch, part = divmod(i, per_epoch)
        if part == 0 or len(order[0]) == 0:
            order[0] = torch.randperm(len(x), generator=streams(f"epoch {epoch}"))
        chosen = order[0][part * batch:(part + 1) * batch]
        return descend(x[chosen], y[chosen])

    return mini, lambda: None


def log_loss_step(module: nn.Module, x: Tensor, y: Tensor, recipe: Recipe) -> Callable[[int], Tensor]:
    params: list[Tensor] = list(module.parameters())

    def step(i: int) -> Tensor:
        loss = loss_of(module(x), y)
        grads = torch.autograd.grad(loss, params)
        value = float(loss.detach())
        squared = float(torch.stack(torch._foreach_norm(grads)).double().square().sum()) / value**2
        # d log(loss) = -eta |g|^2 to first order, g the gradient of log(loss).
        eta = min(recipe.lr, recipe.drop / max(squared, 1e-300))
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-eta / value)
        return loss.detach()

    return step


def loss_of(z: Tensor, y: Tensor) -> Tensor:
    """Logistic loss of one output (y in {0, 1}), cross-entropy of several; the mean over rows."""
    if z.shape[1] == 1:
        sign = 2 * y.to(z.dtype) - 1
        return F.softplus(-sign * z[:, 0]).mean()
    return F.cross_entropy(z, y)


def score(module: nn.Module, x: Tensor, y: Tensor, rows: int = 4096) -> tuple[float, float]:
    """(loss, accuracy) in eval mode as the module stands."""
    if len(x) == 0:
        return math.nan, math.nan
    loss = hits = 0.0
    with torch.no_grad():
        for a, b in zip(torch.split(x, rows), torch.split(y, rows), strict=True):
            z = module(a)
            loss += float(loss_of(z, b)) * len(a)
            guess = z.argmax(1) if z.shape[1] > 1 else (z[:, 0] >= 0).long()
            hits += float((guess == b).sum())
    return loss / len(x), hits / len(x)


def fingerprint(module: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, streams: Streams) -> str:
    digest = hashlib.blake2b(json.dumps([recipe.to_dict(), streams.root, repr(getattr(module, "preset", None)),
                                         list(x.shape)]).encode(), digest_size=16)
    digest.update(x.numpy().tobytes())
    digest.update(y.numpy().tobytes())
    return digest.hexdigest()

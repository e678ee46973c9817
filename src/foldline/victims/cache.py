"""Trained victims shared by benchmarks: every method attacks the same ones, and each is trained once per machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foldline.randomness import generator
from foldline.results import Progress, silent
from foldline.victims.recipes import Recipe, preset
from foldline.victims.store import ABOUT, CHECKPOINT, read_victim, write_victim
from foldline.victims.train import Victim, train_victim

VERSION = 1             # raised when the same request would train to something else


def cache_folder() -> Path:
    given = os.environ.get("FOLDLINE_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "foldline"


def victim(name: str, data_set: str | None = None, n: int | None = None, seed: int = 0, *,
           recipe: Recipe | None = None, arguments: dict[str, Any] | None = None, data: str | Path | None = None,
           in_span: bool = False, progress: Progress = silent) -> Victim:
    """The victim `name` (a preset of recipes.py) on n rows of a data set, from the cache or trained into it.

    A second process that asks for the same victim waits for the first; a killed training goes on where it was.
    """
    folder = folder_of(name, data_set, n, seed, recipe, arguments, in_span)
    if not (folder / ABOUT).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ABOUT).is_file():
                trained = train_victim(name, rng=generator(seed), n=n, data_set=data_set, data=data, recipe=recipe,
                                       arguments=arguments, checkpoint=folder / CHECKPOINT, in_span=in_span,
                                       progress=progress)
                from foldline.victims.kkt_report import report_of
                write_victim(trained, folder, report=report_of(trained))
    return read_victim(folder)


def folder_of(name: str, data_set: str | None, n: int | None, seed: int, recipe: Recipe | None,
              arguments: dict[str, Any] | None, in_span: bool = False) -> Path:
    plan = preset(name)
    data_set = data_set or plan.data_set
    rows = plan.n if n is None else n
    request = {"version": VERSION, "network": plan.network, "arguments": {**plan.arguments, **(arguments or {})},
               "recipe": asdict(recipe or plan.recipe), "data_set": data_set, "task": plan.task, "n": rows,
               "seed": seed, **({"in_span": True} if in_span else {})}
    digest = hashlib.blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=4).hexdigest()
    size = "all" if rows is None else f"n{rows}"
    return cache_folder() / "victims" / f"{name}-{data_set}-{size}-seed{seed}-{digest}"

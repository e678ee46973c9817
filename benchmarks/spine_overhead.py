"""Claim: oracles and metering cost at most 5 % over calling the module, a run folder's transcript at most 1.3x, at
least 50,000 rows/s are kept for a cheap target, and 2 million kept rows are read back within 300 MB.

Ratios are measured in one run, the variants taken in turn so that a busy machine slows all of them alike, and each
round in another order: what one call leaves in the caches must not be one variant's fixed advantage.

    python benchmarks/spine_overhead.py [--quick] [--case overhead|cheap|readback] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import foldline as fl
from foldline.oracles.transcript import open_run

OUT = Path(__file__).parent / "results" / "spine_overhead.jsonl"


def record(**row: object) -> None:
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("a") as file:
        file.write(json.dumps({"benchmark": "spine_overhead", **row, "threads": torch.get_num_threads(),
                               "torch": torch.__version__}) + "\n")
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


def network(dtype: torch.dtype) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1)).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(std=0.03, generator=fl.generator(0))
    return net


def overhead(kind: str, dtype: torch.dtype, rounds: int) -> None:
    """784-1000-1000-1, batches of 1024: the bare module, the oracle, the oracle with a transcript."""
    net = network(dtype)
    x = torch.randn(1024, 784, generator=fl.generator(1), dtype=dtype)

    def bare() -> None:
        if kind == "values":
            with torch.no_grad():
                net(x)
        else:
            leaf = x.clone().requires_grad_(True)
            torch.autograd.grad(net(leaf).sum(), leaf)

    make = fl.value_oracle if kind == "values" else fl.gradient_oracle
    folder = tempfile.mkdtemp(prefix="spine-")
    with open_run(folder) as run:
        plain, kept = make(net), make(net, run=run)
        calls: dict[str, Callable[[], object]] = {"module": bare, "again": bare, "oracle": lambda: plain(x),
                                                  "transcript": lambda: kept(x)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        cpu: dict[str, list[float]] = {name: [] for name in calls}
        for r in range(rounds + 2):
            x[:, 0] = r                                             # new rows each round: nothing is known already
            for name in random.Random(r).sample(list(calls), len(calls)):
                call = calls[name]
                start, start_cpu = time.perf_counter(), time.process_time()
                call()
                if r >= 2:
                    times[name].append(time.perf_counter() - start)
                    cpu[name].append(time.process_time() - start_cpu)
    shutil.rmtree(folder)
    # The ratio of neighbours in time, then the median: what the machine did meanwhile cancels.
    ratio, cpu_ratio = ({name: statistics.median(t / b for t, b in zip(taken[name], taken["module"], strict=True))
                         for name in calls} for taken in (times, cpu))
    record(case="overhead", kind=kind, dtype=str(dtype), ms_module=1e3 * statistics.median(times["module"]),
           module_again_ratio=ratio["again"], oracle_ratio=ratio["oracle"], transcript_ratio=ratio["transcript"],
           oracle_cpu_ratio=cpu_ratio["oracle"], transcript_cpu_ratio=cpu_ratio["transcript"], rounds=rounds,
           holds=ratio["oracle"] <= 1.05 and ratio["transcript"] <= 1.3)


def cheap(rows: int) -> None:
    """A target that costs nothing: how many rows a second the transcript itself keeps, and reads back."""
    folder = tempfile.mkdtemp(prefix="spine-")
    x = torch.randn(rows, 10, generator=fl.generator(2), dtype=torch.float64)
    seconds = []
    for _ in range(2):
        with open_run(folder) as run:
            f = fl.value_oracle(total, dim=10, run=run)
            start = time.perf_counter()
            for part in x.split(1024):
                f(part)
            seconds.append(time.perf_counter() - start)
            sent = run.sent
    shutil.rmtree(folder)
    record(case="cheap", rows=rows, kept_per_second=rows / seconds[0], read_per_second=rows / seconds[1], sent=sent,
           holds=rows / seconds[0] >= 50_000 and sent == rows)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=True)


CHILD = """
import resource, sys, torch, foldline as fl
from foldline.oracles.transcript import open_run
sys.path.insert(0, {here!r})
from spine_overhead import total
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
rng = fl.generator(3)
f = fl.value_oracle(total, dim=10)
f(torch.zeros(1, 10)); before = peak()
with open_run({folder!r}) as run:
    f = fl.value_oracle(total, dim=10, run=run)
    for _ in range({batches}):
        f(torch.randn(1024, 10, generator=rng, dtype=torch.float64))
    print(before, peak(), run.sent, run.kept)
"""


def readback(rows: int) -> None:
    """2 million rows, kept by one process and read back by another; its peak memory with and without torch's own."""
    folder = tempfile.mkdtemp(prefix="spine-")
    batches = rows // 1024
    code = CHILD.format(here=str(Path(__file__).parent), folder=folder, batches=batches)
    said = []
    for _ in range(2):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        said.append(([float(v) for v in done.stdout.split()], time.perf_counter() - start))
    (before, peak, sent, kept), seconds = said[1]
    disk = sum(p.stat().st_size for p in Path(folder).iterdir()) / 2**20
    shutil.rmtree(folder)
    record(case="readback", rows=int(kept), peak_mb=peak, torch_alone_mb=before, added_mb=peak - before, disk_mb=disk,
           seconds=seconds, asked_again=int(sent - kept), holds=peak < 300 and sent == kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds and rows")
    parser.add_argument("--case", choices=["overhead", "cheap", "readback"], help="only this part")
    parser.add_argument("--rounds", type=int, help="rounds of the overhead case (40; 5 with --quick)")
    chosen = parser.parse_args()
    tenth = 10 if chosen.quick else 1
    if chosen.case in (None, "overhead"):
        rounds = chosen.rounds or (5 if chosen.quick else 40)
        for dtype in (torch.float32, torch.float64):
            overhead("values", dtype, rounds)
        overhead("gradient", torch.float32, rounds)
    if chosen.case in (None, "cheap"):
        cheap(500_000 // tenth)
    if chosen.case in (None, "readback"):
        readback(2_000_000 // tenth)
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()

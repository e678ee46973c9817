"""What the extraction benchmarks share: random networks, scores against the truth, rows and tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import foldline as fl
from foldline.extract.result import Extraction

RESULTS = Path(__file__).parent / "results"
D = torch.float64


def network(d: int, h: int, k: int, seed: int, *, bias: bool, affine: bool = False) -> fl.Network:
    rng = torch.Generator().manual_seed(10_000 + seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=D)

    W, b, A = normal(h, d) / d**0.5, 0.3 * normal(h), normal(k, h) / h**0.5
    P, q = normal(k, d) / d**0.5, normal(k)
    return fl.Network(W, b * bias, A, P * affine, q * bias)


def function_error(target: Callable[[Tensor], Tensor], found: fl.Network, x: Tensor) -> float:
    with torch.no_grad():
        y = target(x).double()
        return float((found(x) - y).abs().max() / y.abs().max())


def row_error(target: fl.Network, found: fl.Network) -> float:
    if len(found.W) == 0:
        return float("inf")
    W = target.W / target.W.norm(dim=1, keepdim=True)
    cos = W @ found.W.T
    best = cos.abs().argmax(1)
    return float((W - found.W[best] * cos.gather(1, best[:, None]).sign()).norm(dim=1).max())


def measured(run: Callable[[], Extraction], **about: Any) -> tuple[dict[str, Any], Extraction | None]:
    start, cpu = time.perf_counter(), time.process_time()
    try:
        found = run()
    except Exception as error:                      # a failure is a row
        return {**about, "status": f"{type(error).__name__}: {error}", "rows": 0, "units": 0, "seconds": 0.0}, None
    return {**about, "status": found.status.code, "rows": found.queries, "units": found.units,
            "seconds": round(time.perf_counter() - start, 2), "cpu": round(time.process_time() - cpu, 2)}, found


def record(name: str, rows: Iterable[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def recorded(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]], key: str, limit: Callable[[dict[str, Any]], float],
          allowed: Callable[[dict[str, Any]], float]) -> None:
    """One line per case: how many succeeded within the limits, rows, errors, seconds."""
    print("| case | good | rows, mean (most) | limit | error, worst | allowed | W, worst | seconds (cpu), mean |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in dict.fromkeys(r[key] for r in rows):
        mine = [r for r in rows if r[key] == case]
        good = [r for r in mine if r["status"] == "ok" and r["error"] <= allowed(r) and r["rows"] <= limit(r)]
        mean = sum(r["rows"] for r in mine) / len(mine)
        print(f"| {case} | {len(good)} of {len(mine)} | {mean:,.0f} ({max(r['rows'] for r in mine):,}) "
              f"| {limit(mine[0]):,.0f} | {max(r['error'] for r in mine):.1e} | {allowed(mine[0]):.0e} "
              f"| {max(r.get('row_error', 0.0) for r in mine):.1e} "
              f"| {sum(r['seconds'] for r in mine) / len(mine):.1f} "
              f"({sum(r.get('cpu', 0) for r in mine) / len(mine):.1f}) |", flush=True)
        for r in mine:
            if r not in good:
                print(f"    seed {r['seed']}: {r['status']}, {r['rows']} rows, error {r['error']:.1e}")

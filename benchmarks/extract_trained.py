"""Claim: networks trained on digits (dead inputs, dead units) cost within 1.5 times of random ones, and are exact.

In the cases -dead, inputs that are never lit have no weights at all, and three units start where no image reaches them.
python benchmarks/extract_trained.py --seeds 20 --cases digits,digits-dead,mnist,mnist-dead
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from extract_common import D, function_error, measured, network, record, recorded
from torch import Tensor, nn

import foldline as fl


def data(case: str) -> tuple[Tensor, Tensor]:
    if case.startswith("digits"):
        from sklearn.datasets import load_digits
        bunch = load_digits()
        return torch.tensor(bunch.data / 16.0, dtype=D), torch.tensor(bunch.target)
    file = np.load(Path(os.environ.get("FOLDLINE_DATA", "../shared/data")) / "mnist.npz")
    x, y = (file[next(k for k in file.files if k.startswith(p) and "train" in k)] for p in ("x", "y"))
    return torch.tensor(x[:2000].reshape(2000, -1) / 255.0, dtype=D), torch.tensor(y[:2000].astype(np.int64))


def trained(case: str, seed: int) -> tuple[fl.Network, Tensor]:
    x, y = data(case)
    d, (h, k) = x.shape[1], (32, 1) if case.startswith("digits") else (64, 10)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, k)).double()
    first, last = net[0], net[2]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    if case.endswith("-dead"):
        with torch.no_grad():
            first.bias[:3] = -8.0
            first.weight[:, x.abs().sum(0) == 0] = 0.0
    step = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        z = net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(z[:, 0], (y >= 5).to(D)) if k == 1 \
            else nn.functional.cross_entropy(z, y)
        step.zero_grad()
        loss.backward()                                              # type: ignore[no-untyped-call]
        step.step()
    zero = torch.zeros(k, d, dtype=D)
    return fl.Network(first.weight, first.bias, last.weight, zero, last.bias), x


def one(case: str, seed: int) -> list[dict[str, Any]]:
    net, images = trained(case, seed)
    other = network(net.in_features, len(net.W), net.out_features, seed, bias=True)
    gauss = torch.randn(500, net.in_features, generator=torch.Generator().manual_seed(1), dtype=D)
    rows = []
    for source in ("values", "gradients"):
        about = {"case": case, "source": source, "seed": seed}
        row, found = measured(lambda source=source: extract(net, source, seed), **about)
        compare, _ = measured(lambda source=source: extract(other, source, seed), **about)
        row["random_rows"] = compare["rows"]
        target = net if source == "values" else (lambda x: net(x)[:, :1])
        for where, x in (("images", images[:1000]), ("gauss", gauss)):
            row[where] = function_error(target, found.network, x) if found is not None else float("inf")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="digits,digits-dead,mnist,mnist-dead")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="two seeds of digits")
    parser.add_argument("--report", action="store_true", help="run nothing: the table of all recorded rows")
    args = parser.parse_args()
    cases = ["digits"] if args.quick else args.cases.split(",")
    rows: list[dict[str, Any]] = recorded("extract_trained") if args.report else []
    for case in () if args.report else cases:
        for seed in range(args.first, args.first + (2 if args.quick else args.seeds)):
            rows += one(case, seed)
            record("extract_trained", rows[-2:])                     # one by one: a long case may be cut off
    print("| case | source | good | rows, mean (most) | random network | most, as a ratio | error on images "
          "| error on Gaussian |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in cases:
        for source in ("values", "gradients"):
            mine = [r for r in rows if r["case"] == case and r["source"] == source]
            if mine:
                line(mine, case, source)


def line(rows: list[dict[str, Any]], case: str, source: str) -> None:
    good = [r for r in rows if r["status"] == "ok" and max(r["images"], r["gauss"]) <= 1e-7
            and r["rows"] <= 1.5 * r["random_rows"]]
    mean, base = (sum(r[k] for r in rows) / len(rows) for k in ("rows", "random_rows"))
    print(f"| {case} | {source} | {len(good)} of {len(rows)} | {mean:,.0f} ({max(r['rows'] for r in rows):,}) "
          f"| {base:,.0f} | {max(r['rows'] / max(r['random_rows'], 1) for r in rows):.2f} "
          f"| {max(r['images'] for r in rows):.1e} | {max(r['gauss'] for r in rows):.1e} |", flush=True)
    for r in rows:
        if r not in good:
            print(f"    seed {r['seed']}: {r['status']}, {r['rows']} rows, {r['images']:.1e}, {r['gauss']:.1e}")


def extract(net: fl.Network, source: str, seed: int) -> Any:
    if source == "values":
        return fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(seed))
    return fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(seed))


if __name__ == "__main__":
    main()

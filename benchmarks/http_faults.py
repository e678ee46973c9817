"""Claim: with 10 % of requests failing in seven ways, 100,000 rows arrive right, none asked twice unless it was lost.

A real server on loopback behind a middleware that stalls, answers 429 and 500, drops connections, truncates replies,
loses rows and answers NaN. The client goes through oracle, ledger and run folder. Compared with the same run without
faults: answers bit for bit, what the run folder kept, and, by the server's own count, how often each row was computed.

    python benchmarks/http_faults.py [--rows 100000] [--seeds 1] [--quick]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from http_common import DIM, record, table, victim_network
from torch import Tensor

import foldline as fl
from foldline.oracles.authorisation import authorised
from foldline.oracles.transcript import open_run
from foldline.randomness import generator
from foldline.serving.app import make_app
from foldline.serving.faults import KINDS, Faulty
from foldline.serving.run import serving

BATCH, PER_REQUEST = 5000, 100


def counted(app: Any) -> Counter[bytes]:
    seen: Counter[bytes] = Counter()
    ask = app.state.victim.ask

    def spy(kind: Any, x: Tensor, **options: Any) -> Tensor:
        seen.update(hashlib.blake2b(row.numpy().tobytes(), digest_size=16).digest() for row in x)
        return ask(kind, x, **options)

    app.state.victim.ask = spy
    return seen


def ask_all(app: Any, kind: str, rows: int, seed: int, folder: Path, timeout: float) -> dict[str, Any]:
    """Batches that depend on the answers before them, as a method's do: one wrong bit would change all that follows."""
    digest, rng = hashlib.blake2b(digest_size=16), generator(seed)
    with serving(app) as url, authorised("my own server"):
        oracle: Any = {"values": fl.value_oracle, "gradient": fl.gradient_oracle, "labels": fl.label_oracle}[kind](
            url, run=folder)
        import httpx
        source = oracle.source.source
        source.caller.client.timeout = httpx.Timeout(timeout)
        shift, started = 0.0, time.perf_counter()
        for _ in range(rows // BATCH):
            x = torch.rand(BATCH, DIM, generator=rng, dtype=torch.float64) + shift
            block = oracle(x)
            block = torch.cat([block[0][:, None], block[1]], 1) if isinstance(block, tuple) else block
            digest.update(block.contiguous().numpy().tobytes())
            shift = float(block.double().mean()) % 0.1
        seconds, bill, run = time.perf_counter() - started, source.bill, open_run(folder)
        kept, sent = run.kept, run.sent
        run.close()
    return {"digest": digest.hexdigest(), "used": oracle.used, "kept": kept, "folder_sent": sent, "bill": bill,
            "seconds": seconds}


def compare(kind: str, rows: int, seed: int, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        network = victim_network()
        clean = ask_all(make_app(network, max_rows=PER_REQUEST), kind, rows, seed, Path(temporary) / "clean", 30.0)
        app = make_app(network, max_rows=PER_REQUEST)
        seen = counted(app)
        faulty = Faulty(app, rate=rate, seed=seed, stall=3.0, kinds=[k for k in KINDS if k != "order"])
        rough = ask_all(faulty, kind, rows, seed, Path(temporary) / "rough", 2.0)
    bill, repeats = rough["bill"], sum(seen.values()) - len(seen)
    return {"kind": kind, "rows": rows, "seed": seed, "requests": bill.requests, "failed": sum(faulty.hit.values()),
            "lost_rows": bill.lost, "refused_rows": bill.refused, "same_bits": rough["digest"] == clean["digest"],
            "same_used": rough["used"] == clean["used"] == rows, "computed_once": len(seen) == rows,
            "repeats": repeats, "repeats_are_losses": repeats == bill.lost == rough["folder_sent"] - rough["kept"],
            "clean_s": clean["seconds"], "faulty_s": rough["seconds"], "hits": dict(faulty.hit)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--kind", choices=["values", "gradient", "labels"], nargs="+", default=["values"])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = 10_000 if options.quick else options.rows
    found = []
    for kind in options.kind:
        for seed in range(options.seeds):
            row = compare(kind, rows, seed, options.rate)
            record("http_faults", **row)
            print(row["hits"])
            found.append({k: v for k, v in row.items() if k != "hits"})
    table(found)


if __name__ == "__main__":
    main()

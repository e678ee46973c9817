"""Claim: at least 5,000 rows/s for 784-dimensional inputs through client, server and ledger, client overhead < 20 %.

The server is a child process (`foldline serve`), the client this one, both on the same two cores; answers go through
a metered oracle into a run folder (hashed, kept in SQLite). Overhead is the share of the wall time in which no request
was under way, so that the client and not the server was waited for. Beside it stands the client's processor time
(encoding, checking, sockets, ledger, also while a request is under way) over the wall time, at full speed and at the
pace of 5,000 rows/s that the claim names.

    python benchmarks/http_speed.py [--rows 20000] [--dtype float32] [--kind values] [--quick]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from http_common import DIM, record, table, victim_network

import foldline as fl
from foldline.oracles.authorisation import authorised
from foldline.oracles.transcript import open_run
from foldline.randomness import generator
from foldline.serving.run import serving_process


def measure(url: str, kind: str, rows: int, batch: int, folder: Path | None) -> dict[str, Any]:
    oracle: Any = {"values": fl.value_oracle, "gradient": fl.gradient_oracle, "labels": fl.label_oracle}[kind](
        url, run=folder)
    rng = generator(1)
    oracle(torch.rand(64, DIM, generator=rng, dtype=torch.float64))         # the server opens its source here
    batches = [torch.rand(batch, DIM, generator=rng, dtype=torch.float64) for _ in range(max(1, rows // batch))]
    inner = oracle.source
    while not hasattr(inner, "bill"):
        inner = inner.source
    before, cpu, started = inner.bill.under_way, time.process_time(), time.perf_counter()
    for x in batches:
        oracle(x)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    waited = inner.bill.under_way - before
    if folder is not None:
        open_run(folder).close()
    n = len(batches) * batch
    return {"rows_per_s": n / wall, "overhead": 1 - waited / wall, "client_us_per_row": 1e6 * cpu / n,
            "processor": cpu / wall, "processor_at_5000": 5000 * cpu / n}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dtype", choices=["float32", "float64"], nargs="+", default=["float32", "float64"])
    parser.add_argument("--kind", choices=["values", "gradient", "labels"], nargs="+",
                        default=["values", "gradient", "labels"])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = 4000 if options.quick else options.rows
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for dtype in options.dtype:
            weights = folder / f"{dtype}.safetensors"
            fl.save(victim_network(getattr(torch, dtype)), weights)
            with serving_process(f"weights:{weights}", "--stop-after", "300") as url, authorised("my own server"):
                for kind in options.kind:
                    for ledger in (True, False):
                        for batch in (2000,) if options.quick else (1000, 5000):
                            run = folder / f"{dtype}-{kind}-{batch}" if ledger else None
                            row = {"dtype": dtype, "kind": kind, "batch": batch, "rows": rows,
                                   "ledger": "run folder" if ledger else "count only",
                                   **measure(url, kind, rows, batch, run), "load": os.getloadavg()[0]}
                            found.append(row)
                            print(f"{row['rows_per_s']:,.0f} rows/s", flush=True)
                            record("http_speed", **row)
    table(found)


if __name__ == "__main__":
    main()

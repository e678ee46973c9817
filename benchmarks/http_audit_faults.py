"""Claim: an audit over HTTP reports the same, to the last bit, whether or not 10 % of its requests fail.

A 20-8-1 network behind a real server on loopback is audited (span, obfuscation, exact extraction) once undisturbed and
once per seed behind a middleware that stalls, refuses, drops, truncates, loses rows and answers NaN. Few rows go into
one request, so that there are many to fail. Compared: the reports without their times and counts of resent rows.

    python benchmarks/http_audit_faults.py [--seeds 3] [--rate 0.1] [--quick]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from http_common import record, table, victim_network

import foldline as fl
from foldline.oracles import endpoint
from foldline.reports.files import read_report
from foldline.serving.app import make_app
from foldline.serving.faults import KINDS, Faulty
from foldline.serving.run import serving

PER_REQUEST, TIMEOUT = 8, 2.0


def audited(app: Any, port: int, out: Path) -> Any:
    with serving(app, port=port) as url:
        spec = out.parent / "audit.yaml"
        spec.write_text(json.dumps({"version": 1, "name": "faults", "target": url, "authorised": "my own server",
                                    "methods": ["span", "obfuscate", "extract"]}))
        fl.audit(str(spec), out=out)
    return read_report(out)


def free_port() -> int:
    """The report names the address, so both audits must see the same one."""
    with serving(make_app(victim_network(torch.float64, (2, 2, 1)))) as url:
        return int(url.rsplit(":", 1)[1])


def impatient(open_endpoint: Any) -> Any:
    def opened(*arguments: Any, **options: Any) -> Any:
        return open_endpoint(*arguments, **{"timeout": TIMEOUT, **options})
    return opened


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    endpoint.open_endpoint = impatient(endpoint.open_endpoint)      # a stalled reply should cost 2 s, not 30
    network, found = victim_network(torch.float64, (20, 8, 1)), []
    with tempfile.TemporaryDirectory() as temporary:
        folder, port = Path(temporary), free_port()
        app = make_app(network, max_rows=PER_REQUEST)
        calm = audited(app, port, folder / "calm")
        asked = app.state.counts.rows
        for seed in range(1 if options.quick else options.seeds):
            app = make_app(network, max_rows=PER_REQUEST)
            faulty = Faulty(app, rate=options.rate, seed=seed, stall=3.0, kinds=[k for k in KINDS if k != "order"])
            started = time.perf_counter()
            rough = audited(faulty, port, folder / f"rough-{seed}")
            row = {"seed": seed, "rows_calm": asked, "rows_faulty": app.state.counts.rows,
                   "requests": app.state.counts.requests, "failed": sum(faulty.hit.values()),
                   "same_report": rough.comparable() == calm.comparable(), "seconds": time.perf_counter() - started}
            found.append(row)
            record("http_audit_faults", **row, hits=dict(faulty.hit))
    table(found)


if __name__ == "__main__":
    main()

"""Claim: an audit over HTTP reports the same, to the last bit, whether or not 10 % of its requests fail.

tiny: a 20-8-1 network behind a real server on loopback is audited (span, obfuscation, exact extraction) once
undisturbed and once per seed behind a middleware that stalls, refuses, drops, truncates, loses rows and answers NaN.
Few rows go into one request, so that there are many to fail. demo: the embedded default whole, both its servers behind
that middleware, against an undisturbed audit of the same code (--calm FOLDER, or one made here). Compared: the reports
without their times and counts of resent rows.

    python benchmarks/http_audit_faults.py [--case tiny|demo] [--seeds 3] [--rate 0.1] [--calm FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from http_common import record, table, victim_network

import foldline as fl
from foldline.oracles import endpoint
from foldline.reports.files import read_report
from foldline.serving import app as serving_app
from foldline.serving.app import make_app
from foldline.serving.faults import KINDS, Faulty
from foldline.serving.run import serving

PER_REQUEST, TIMEOUT = 8, 2.0
KINDS_ASKED = [k for k in KINDS if k != "order"]


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


def tiny(options: Any, folder: Path) -> list[dict[str, Any]]:
    network, port, found = victim_network(torch.float64, (20, 8, 1)), free_port(), []
    app = make_app(network, max_rows=PER_REQUEST)
    calm = audited(app, port, folder / "calm")
    asked = app.state.counts.rows
    for seed in range(1 if options.quick else options.seeds):
        app = make_app(network, max_rows=PER_REQUEST)
        faulty = Faulty(app, rate=options.rate, seed=seed, stall=3.0, kinds=KINDS_ASKED)
        started = time.perf_counter()
        rough = audited(faulty, port, folder / f"rough-{seed}")
        found.append({"case": "tiny", "seed": seed, "rows_calm": asked, "rows_faulty": app.state.counts.rows,
                      "requests": app.state.counts.requests, "failed": sum(faulty.hit.values()),
                      "same_report": rough.comparable() == calm.comparable(),
                      "seconds": time.perf_counter() - started, "hits": dict(faulty.hit)})
        record("http_audit_faults", **found[-1])
    return found


def demo(options: Any, folder: Path) -> list[dict[str, Any]]:
    """Its report says 127.0.0.1 whatever the port. Victims are copied: training them asks nothing."""
    home = options.calm or folder / "calm"
    calm = read_report(home) if (home / "report.json").exists() else fl.audit(None, out=home).document
    found = []
    for seed in range(1 if options.quick else options.seeds):
        out = folder / f"rough-{seed}"
        shutil.copytree(home / "run" / "victims", out / "run" / "victims")
        servers: list[Faulty] = []

        def faulty(*arguments: Any, servers: list[Faulty] = servers, seed: int = seed, **more: Any) -> Faulty:
            servers.append(Faulty(make_app(*arguments, **more), rate=options.rate, seed=seed, stall=3.0,
                                  kinds=KINDS_ASKED))
            return servers[-1]

        serving_app.make_app = faulty
        started = time.perf_counter()
        try:
            rough = fl.audit(None, out=out).document
        finally:
            serving_app.make_app = make_app
        hits: Counter[str] = sum((Counter(s.hit) for s in servers), Counter())
        found.append({"case": "demo", "seed": seed, "rows_calm": calm.run.rows_sent, "rows_faulty": rough.run.rows_sent,
                      "rows_lost": rough.run.rows_lost, "requests": rough.run.requests, "retries": rough.run.retries,
                      "failed": sum(hits.values()), "same_report": rough.comparable() == calm.comparable(),
                      "seconds": time.perf_counter() - started, "hits": dict(hits)})
        record("http_audit_faults", **found[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=["tiny", "demo"], default="tiny")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--calm", type=Path, help="demo: an undisturbed audit by the same code")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    endpoint.open_endpoint = impatient(endpoint.open_endpoint)      # a stalled reply should cost 2 s, not 30
    with tempfile.TemporaryDirectory() as temporary:
        found = (demo if options.case == "demo" else tiny)(options, Path(temporary))
    table([{k: v for k, v in row.items() if k != "hits"} for row in found])


if __name__ == "__main__":
    main()

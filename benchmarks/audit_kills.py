"""Claim: SIGKILLs at random moments of an audit over HTTP, each resumed, leave the report as it would have been.

    python benchmarks/audit_kills.py [--kills 50] [--case tiny|demo] [--seed 0]

tiny: a 12-5-1 network behind a rate-limited server of ours; demo: the embedded default, its victims trained once and
copied. An audit that ends before its next kill is compared with the undisturbed one, and a fresh one begins, until all
kills are delivered. One row per audit goes to benchmarks/results/audit_kills.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "audit_kills.jsonl"


@contextlib.contextmanager
def target(case: str, folder: Path) -> Iterator[list[str]]:
    """Arguments of `foldline audit` for the case."""
    if case == "demo":
        yield []
        return
    import torch
    from torch import nn

    from foldline.serving.app import make_app
    from foldline.serving.run import serving
    rng = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Linear(12, 5, dtype=torch.float64), nn.ReLU(), nn.Linear(5, 1, dtype=torch.float64))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    with serving(make_app(net, rate_limit=60.0)) as url:
        path = folder / "audit.yaml"
        path.write_text(json.dumps({"version": 1, "name": "tiny", "target": url, "authorised": "own server",
                                    "methods": ["span", "obfuscate", "extract"]}))
        yield [str(path)]


def start(arguments: list[str], out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "foldline", "audit", *arguments, "--out", str(out)],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--case", choices=["tiny", "demo"], default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="five kills")
    options = parser.parse_args()
    kills = 5 if options.quick else options.kills
    from foldline.reports.files import read_report
    chance = random.Random(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as temporary, target(options.case, Path(temporary)) as arguments:
        folder = Path(temporary)
        begun = time.monotonic()
        if start(arguments, folder / "calm").wait() != 0:
            sys.exit("the undisturbed audit failed")
        length = time.monotonic() - begun
        calm = read_report(folder / "calm")
        victims = folder / "calm" / "run" / "victims"
        delivered = audits = 0
        while delivered < kills:
            out = folder / f"killed-{audits}"
            if victims.exists():
                shutil.copytree(victims, out / "run" / "victims")
            here, ended = 0, False
            while not ended:
                child = start(arguments, out)
                if delivered < kills:
                    try:
                        child.wait(chance.uniform(0.3, 1.0) * min(length, 20.0))
                    except subprocess.TimeoutExpired:
                        child.send_signal(signal.SIGKILL)
                        here, delivered = here + 1, delivered + 1
                ended = child.wait() == 0
            found = read_report(out)
            same = found.comparable() == calm.comparable()
            row = {"case": options.case, "seed": options.seed, "audit": audits, "kills": here, "same": same,
                   "rows": found.ledger.total, "rows_sent": found.run.rows_sent, "calm_rows_sent": calm.run.rows_sent,
                   "seconds_calm": round(length, 1)}
            rows.append(row)
            print(row, flush=True)
            shutil.rmtree(out)
            audits += 1
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.writelines(json.dumps(r) + "\n" for r in rows)
    same = sum(r["same"] for r in rows)
    print(f"{sum(r['kills'] for r in rows)} kills in {len(rows)} audits: {same} of {len(rows)} reports as undisturbed")
    return 0 if same == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

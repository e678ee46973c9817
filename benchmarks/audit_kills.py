"""Claim: SIGKILLs at random moments of an audit over HTTP, each resumed, leave the report as it would have been.

    python benchmarks/audit_kills.py [--kills 50] [--case tiny|demo] [--seed 0] [--folder DIR --seconds 800]

tiny: a 12-5-1 network behind a rate-limited server of ours; demo: the embedded default from nothing, training of its
victims included. A child is killed after a random time: processor time for demo, so that a busy machine changes
nothing; a random part of the undisturbed audit's length for tiny, which mostly waits. An audit that ends before its
next kill is compared with the undisturbed one, and a fresh one begins, until all kills are delivered. With --folder the
state is kept there, and a run stopped by --seconds goes on from it: 50 kills of the demo take longer than a job may.
One row per audit goes to results/audit_kills.jsonl.
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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "audit_kills.jsonl"
DEMO_LIFE = (1.0, 18.0)         # seconds of processor time between start and kill; a start takes about four


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
    with (out.parent / f"{out.name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "foldline", "audit", *arguments, "--out", str(out)],
                                stdout=subprocess.DEVNULL, stderr=log)


def processor_seconds(child: subprocess.Popen[bytes]) -> float:
    with contextlib.suppress(OSError, IndexError):
        parts = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def lived(child: subprocess.Popen[bytes], case: str, limit: float) -> bool:
    """Waits until the child ends (False) or has lived as long as it may (True)."""
    begun = time.monotonic()
    while child.poll() is None:
        if (time.monotonic() - begun if case == "tiny" else processor_seconds(child)) >= limit:
            return True
        time.sleep(0.02)
    return False


def stage_of(out: Path) -> str:
    """Where a kill hit: the last stage that this life had begun."""
    lines = (out.parent / f"{out.name}.log").read_text("utf-8", "replace").splitlines()
    return next((line.partition("] ")[2].removesuffix(" ...") for line in reversed(lines) if line.endswith(" ...")),
                "preparing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--case", choices=["tiny", "demo"], default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="five kills")
    parser.add_argument("--folder", type=Path, help="keep the state here and go on from it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; needs --folder")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        return run(options, folder, stack.enter_context(target(options.case, folder)))


def run(options: Any, folder: Path, arguments: list[str]) -> int:
    from foldline.reports.files import read_report
    stop, kept = time.monotonic() + options.seconds, folder / "state.json"
    kills = 5 if options.quick else options.kills
    if not (folder / "calm" / "report.json").exists():
        shutil.rmtree(folder / "calm", ignore_errors=True)              # undisturbed means from start to end
        begun = time.monotonic()
        if start(arguments, folder / "calm").wait() != 0:
            sys.exit("the undisturbed audit failed")
        (folder / "calm" / "length").write_text(str(time.monotonic() - begun))
        print(f"undisturbed: {time.monotonic() - begun:.0f} s", flush=True)
    calm, length = read_report(folder / "calm"), float((folder / "calm" / "length").read_text())
    shortest, longest = DEMO_LIFE if options.case == "demo" else (0.3 * length, length)
    state: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"delivered": 0, "audit": 0, "hits": []}
    while state["delivered"] < kills:
        out = folder / f"killed-{state['audit']}"
        ended = False
        while not ended:
            child = start(arguments, out)
            if state["delivered"] < kills:
                chance = random.Random(f"{options.seed} {state['delivered']}")
                if lived(child, options.case, chance.uniform(shortest, longest)):
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                    state["delivered"] += 1
                    state["hits"].append(stage_of(out))
                    kept.write_text(json.dumps(state))
                    print(f"{state['delivered']} kills, the last in: {state['hits'][-1]}", flush=True)
                    if time.monotonic() > stop:
                        print("stopped; run again to go on", flush=True)
                        return 3
            ended = child.wait() == 0
        found = read_report(out)
        row = {"case": options.case, "seed": options.seed, "audit": state["audit"], "kills": len(state["hits"]),
               "same": found.comparable() == calm.comparable(), "rows": found.ledger.total,
               "rows_sent": found.run.rows_sent, "rows_lost": found.run.rows_lost, "calm_rows_sent": calm.run.rows_sent,
               "resumed": found.run.resumed, "seconds_calm": calm.run.seconds, "hits": Counter(state["hits"])}
        print(row, flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if row["same"]:
            shutil.rmtree(out)
        state |= {"audit": state["audit"] + 1, "hits": [], "same": state.get("same", 0) + row["same"]}
        kept.write_text(json.dumps(state))
    print(f"{state['delivered']} kills in {state['audit']} audits: {state['same']} of {state['audit']} reports as "
          f"undisturbed")
    return 0 if state["same"] == state["audit"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Claim: 5,000 requests of schemathesis against `foldline serve` bring no 5xx and no crash.

Two servers, one open and one with a key and every defence that changes numbers; schemathesis reads their OpenAPI and
sends valid and invalid requests to each. All its checks are on but one: `positive_data_acceptance` cannot know that ids
and rows have the same length, nor that a model may overflow on 1e308.

    python benchmarks/http_fuzz.py [--requests 5000] [--case open defended] [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

import httpx
import torch
from http_common import record, table, victim_network

from foldline.serving.app import make_app
from foldline.serving.run import serving
from foldline.serving.victim import Switches

KEY = "fuzz-key"
SERVERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "open": ({}, []),
    "defended": ({"switches": Switches(decimals=4, noise=0.01, clip=1.0, bits=8, smoothgrad=True),
                              "api_key": KEY}, ["-H", f"X-API-Key: {KEY}"]),
}


def counting(app: Any, statuses: Counter[int]) -> Any:
    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses[message["status"]] += 1
            await send(message)
        await app(scope, receive, noted)
    return outer


def fuzz(name: str, requests: int) -> dict[str, Any]:
    options, headers = SERVERS[name]
    network = victim_network(torch.float64, (4, 8, 3))
    statuses: Counter[int] = Counter()
    with serving(counting(make_app(network, max_rows=16, **options), statuses)) as url, \
            tempfile.TemporaryDirectory() as folder:
        code, seed, failures = 0, 0, ""
        while sum(statuses.values()) < requests and seed < 20:
            per_door = max(20, (requests - sum(statuses.values())) // 3)
            seed += 1
            done = subprocess.run(
                [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "-n", str(per_door),
                 "--seed", str(seed), "--checks", "all", "--exclude-checks", "positive_data_acceptance",
                 "--continue-on-failure", "--no-color", *headers], cwd=folder, check=False,
                capture_output=True, text=True)
            code |= done.returncode
            failures += done.stdout.partition("= FAILURES =")[2][:4000] + done.stdout.partition("= ERRORS =")[2][:4000]
        print(failures)
        alive = httpx.get(f"{url}/health").status_code == 200
    return {"server": name, "requests": sum(statuses.values()), "5xx": sum(n for s, n in statuses.items() if s >= 500),
            "alive": alive, "all_checks_pass": code == 0, "statuses": {str(s): n for s, n in sorted(statuses.items())}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=5000, help="in all, over both servers")
    parser.add_argument("--case", choices=list(SERVERS), nargs="+", default=list(SERVERS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    total = 400 if options.quick else options.requests
    found = []
    for name in options.case:
        row = fuzz(name, total // len(SERVERS))
        record("http_fuzz", **row)
        found.append(row)
    table(found)


if __name__ == "__main__":
    main()

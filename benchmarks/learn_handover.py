"""Claim: on well-separated networks learning asks no more rows than exact extraction with as many probes.

Networks of several shapes; for each: rows of extract_from_values as it is (8 probes), with the certificate's number of
probes, and rows of learn_from_queries, all from the same seed. Failures are rows.
python benchmarks/learn_handover.py --part 0 --parts 2
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from learn_instances import D, generic, parameters, relative_error, trained
from torch import nn

import foldline as fl
from foldline.networks.one_hidden import Network

RESULTS = Path(__file__).parent / "results" / "learn_handover.jsonl"


def several(k: int, d: int, m: int, seed: int) -> Network:
    g = fl.generator(seed)
    W = torch.randn(k, d, generator=g, dtype=D) / d**0.5
    return Network(W, 0.5 * torch.randn(k, generator=g, dtype=D), torch.randn(m, k, generator=g, dtype=D),
                   torch.zeros(m, d, dtype=D), torch.zeros(m, dtype=D))


def as_float32(net: Network) -> nn.Module:
    model = nn.Sequential(nn.Linear(net.in_features, len(net.W)), nn.ReLU(), nn.Linear(len(net.W), net.out_features))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), (net.W, net.b, net.A, net.q), strict=True):
            parameter.copy_(value)
    return model


# name: (network of a seed, in float32)
CASES: dict[str, tuple[Callable[[int], Network], bool]] = {
    "20 x 1": (lambda s: generic(20, 1, s), False),
    "20 x 3": (lambda s: generic(20, 3, s), False),
    "32 x 10": (lambda s: generic(32, 10, s), False),
    "100 x 10": (lambda s: generic(100, 10, s), False),
    "200 x 10": (lambda s: generic(200, 10, s), False),
    "8 x 20": (lambda s: generic(8, 20, s), False),
    "60 x 20": (lambda s: generic(60, 20, s), False),
    "200 x 40": (lambda s: generic(200, 40, s), False),
    "64 x 64": (lambda s: generic(64, 64, s), False),
    "32 x 100": (lambda s: generic(32, 100, s), False),
    "128 x 100": (lambda s: generic(128, 100, s), False),
    "256 x 100": (lambda s: generic(256, 100, s), False),
    "16 x 784": (lambda s: generic(16, 784, s), False),
    "64 x 784": (lambda s: generic(64, 784, s), False),
    "32 x 20, 3 outputs": (lambda s: several(32, 20, 3, s), False),
    "64 x 100, 10 outputs": (lambda s: several(64, 100, 10, s), False),
    "trained 512 x 64": (trained, False),
    "trained 512 x 64, 10 outputs": (lambda s: trained(s, outputs=10), False),
    "20 x 10, float32": (lambda s: generic(20, 10, s), True),
    "32 x 100, float32": (lambda s: generic(32, 100, s), True),
}


def run(case: str, seed: int) -> dict[str, object]:
    make, single = CASES[case]
    net = make(seed)
    target = as_float32(net) if single else net
    start = time.perf_counter()
    learnt = fl.learn_from_queries(fl.value_oracle(target), rng=fl.generator(seed))
    seconds = time.perf_counter() - start
    probes = learnt.certificate.probes
    plain = fl.extract_from_values(fl.value_oracle(target), rng=fl.generator(seed))
    equal = fl.extract_from_values(fl.value_oracle(target), rng=fl.generator(seed), probes=probes)
    return {"case": case, "seed": seed, "parameters": parameters(net), "probes": probes,
            "extraction": plain.queries, "extraction_status": plain.status.code, "extraction_equal": equal.queries,
            "learn": learnt.queries, "learn_status": learnt.status.code, "handed_over": learnt.handed_over,
            "more": learnt.queries - equal.queries, "seconds": seconds,
            "relative_error": relative_error(net, learnt.network, 40_000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the first six cases")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    cases = list(CASES)[:6] if options.quick else list(CASES)[options.part::options.parts]
    rows = []
    RESULTS.parent.mkdir(exist_ok=True)
    print(f"{'network':30}{'seed':>5}{'probes':>8}{'extraction':>12}{'same probes':>13}{'learn':>9}{'more':>7}"
          f"{'error':>9}{'s':>7}  status")
    for seed in range(options.first, options.first + options.seeds):
        for case in cases:
            row = run(case, seed)
            rows.append(row)
            with RESULTS.open("a") as file:
                file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row}) + "\n")
            print(f"{case:30}{seed:>5}{row['probes']:>8,}{row['extraction']:>12,}{row['extraction_equal']:>13,}"
                  f"{row['learn']:>9,}{row['more']:>7}{row['relative_error']:>9.0e}{row['seconds']:>7.1f}"
                  f"  {row['learn_status']}{', handed over' if row['handed_over'] else ''}", flush=True)
    print(f"no more than extraction: {sum(int(str(r['more'])) <= 0 for r in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()

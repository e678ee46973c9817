"""Real faults on a real connection: every answer right, none asked twice unless its reply was lost."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import foldline as fl
from foldline.errors import BudgetExhausted, TargetError
from foldline.oracles import endpoint_calls
from foldline.oracles.authorisation import authorised
from foldline.oracles.endpoint import open_endpoint
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import generator
from foldline.serving.app import make_app
from foldline.serving.faults import KINDS, Faulty
from foldline.serving.run import serving
from foldline.serving.victim import Switches, Victim

ME = "my own server in a test"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(endpoint_calls, "FIRST_PAUSE", 0.002)


def watched(app) -> Counter[bytes]:
    """How often each row reached the model."""
    seen: Counter[bytes] = Counter()
    ask = app.state.victim.ask

    def spy(kind, x, **options):
        seen.update(row.numpy().tobytes() for row in x)
        return ask(kind, x, **options)

    app.state.victim.ask = spy
    return seen


@pytest.mark.parametrize("kind", ["values", "gradient", "labels"])
def test_under_all_faults_at_once_nothing_is_wrong_and_nothing_is_asked_for_nothing(net, kind):
    x = torch.randn(2000, 12, generator=generator(0), dtype=torch.float64)
    app = make_app(net, max_rows=10)
    seen = watched(app)
    faulty = Faulty(app, rate=0.2, stall=1.5, seed=2)
    with serving(faulty) as url:
        source = open_endpoint(url, kind, authorised=ME, timeout=0.8)
        got = source.answer(x)
        bill = source.bill
    assert torch.equal(got, Victim(net, Switches()).ask(kind, x))
    assert set(faulty.hit) == set(KINDS)                        # every kind of fault happened
    assert bill.answered == 2000 and bill.sent == bill.answered + bill.lost + bill.refused
    # The server's own count: each row once, and once more for each reply that it lost.
    assert len(seen) == 2000
    assert sum(seen.values()) == 2000 + bill.lost
    lost = {k: n for k, n in faulty.hit.items() if k not in ("429", "order")}
    assert abs(bill.lost - 10 * sum(lost.values())) <= 20       # a fault on /health costs no rows


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("order", "429")])
def test_each_fault_by_itself_ends_in_a_sentence_when_patience_ends(net, kind):
    faulty = Faulty(make_app(net), rate=0.0, stall=0.4, kinds=[kind])
    with serving(faulty) as url:
        source = open_endpoint(url, "values", authorised=ME, timeout=0.1, attempts=2)
        faulty.rate = 1.0
        with pytest.raises(TargetError, match=r"no usable reply to 5 rows in 2 attempts; the last: .+"):
            source.answer(torch.zeros(5, 12))
    assert (source.sent, source.lost, source.bill.refused) == (10, 10, 0)


def test_a_busy_server_is_not_billed(net):
    faulty = Faulty(make_app(net), rate=0.0, kinds=["429"])
    with serving(faulty) as url:
        source = open_endpoint(url, "values", authorised=ME, attempts=3)
        faulty.rate = 1.0
        with pytest.raises(TargetError, match="status 429"):
            source.answer(torch.zeros(5, 12))
    assert (source.sent, source.lost, source.bill.refused) == (15, 0, 15)


def test_lost_replies_count_against_the_budget_but_not_as_queries(net):
    faulty = Faulty(make_app(net, max_rows=10), rate=0.0, kinds=["500"])
    with serving(faulty) as url:
        oracle = ValueOracle(open_endpoint(url, "values", authorised=ME), budget=100)
        faulty.rate = 0.5
        oracle(torch.zeros(40, 12, dtype=torch.float64))
        assert oracle.used == 40 and oracle.ledger.lost == oracle.source.lost > 0
        assert oracle.remaining == 60 - oracle.ledger.lost
        faulty.rate = 1.0
        with pytest.raises(BudgetExhausted):                    # it stops instead of paying for ever
            oracle(torch.zeros(10, 12, dtype=torch.float64))
        assert oracle.source.sent <= 100


def test_a_method_finds_the_same_to_the_last_bit_with_and_without_faults(net, tmp_path):
    """Through client, ledger and run folder: the whole of what is kept is equal too."""
    def run(app, folder):
        with serving(app) as url, authorised(ME):
            oracle = fl.gradient_oracle(url, 1, run=folder)
            oracle.source.source.caller.timeout = 1.0
            rng = generator(5)
            y, g = oracle(torch.randn(90, 12, generator=rng, dtype=torch.float64))
            for _ in range(10):                                 # each batch depends on the answers to the last
                y, g = oracle(g + 0.1 * y[:, None])
            return y, g, oracle.used

    app = make_app(net, max_rows=20)
    y, g, used = run(app, tmp_path / "clean")
    y2, g2, used2 = run(Faulty(app, rate=0.3, kinds=["500", "drop", "truncate", "rows", "nan", "order", "429"], seed=1),
                        tmp_path / "faulty")
    assert torch.equal(y, y2) and torch.equal(g, g2) and used == used2 == 990
    from foldline.oracles.transcript import open_run
    clean, faulty = open_run(tmp_path / "clean"), open_run(tmp_path / "faulty")
    assert clean.kept == faulty.kept == 990
    assert clean.lost == 0 < faulty.lost
    clean.close(), faulty.close()


def test_a_batch_cut_off_in_the_middle_is_resumed_where_it_was(net, tmp_path):
    """The first requests of a batch are kept although a later one failed for good."""
    x = torch.randn(100, 12, generator=generator(1), dtype=torch.float64)
    app = make_app(net, max_rows=10)
    seen = watched(app)
    faulty = Faulty(app, rate=0.0, kinds=["500"])
    expected = Victim(net, Switches()).ask("values", x)
    with serving(faulty) as url, authorised(ME):
        f = fl.value_oracle(url, run=tmp_path / "run")
        f.source.source.caller.attempts = 1
        parts = f.source.source.answer_parts

        def breaking(rows):
            for start, block in parts(rows):
                yield start, block
                if start == 50:
                    faulty.rate = 1.0

        f.source.source.answer_parts = breaking
        with pytest.raises(TargetError):
            f(x)
        kept = f.source.run.kept
        assert 60 <= kept < 100
        f.source.run.close()
        faulty.rate = 0.0
        before = sum(seen.values())
        again = fl.value_oracle(url, run=tmp_path / "run")
        assert torch.equal(again(x), expected)
        assert sum(seen.values()) - before == 100 - kept        # only what was lost
        again.source.run.close()

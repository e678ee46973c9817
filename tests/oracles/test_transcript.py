"""A run folder: killed at any instant, resumed, never asking twice, ending bit-identical."""

import multiprocessing
import random
import subprocess
import sys
from pathlib import Path

import killed_run
import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadAnswer, BadFile, BadInput, TargetError
from foldline.oracles.rowkeys import Counts
from foldline.oracles.transcript import open_run

KILLS = 20


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    # A fork server holds torch, so that each child starts in milliseconds and the kills fall into the run itself.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["foldline.oracles.local", "foldline.oracles.transcript"])
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    whole = context.Process(target=killed_run.search, args=(str(folders[0]),))
    whole.start()
    whole.join(60)
    assert whole.exitcode == 0

    moments = random.Random(5)
    kills = 0
    while kills < KILLS:
        started = context.Event()
        child = context.Process(target=killed_run.search, args=(str(folders[1]), started))
        child.start()
        assert started.wait(60)
        child.join(moments.uniform(0.0, 0.05))
        assert child.exitcode is None, "the run ended before it was killed often enough"
        child.kill()                                                # SIGKILL: nothing of the child's own runs any more
        child.join(60)
        kills += 1
    last = context.Process(target=killed_run.search, args=(str(folders[1]),))
    last.start()
    last.join(60)
    assert last.exitcode == 0

    assert (folders[0] / "result.bin").read_bytes() == (folders[1] / "result.bin").read_bytes()
    logs = [(folder / "asked.log").read_bytes() for folder in folders]
    rows, again = ([log[i:i + 16] for i in range(0, len(log), 16)] for log in logs)
    assert set(rows) == set(again)
    with open_run(folders[1] / "run") as run:
        # Only a batch in flight at a kill is asked again, and the counters say how many rows that was.
        assert 0 <= len(again) - len(rows) <= run.lost <= KILLS * killed_run.ROWS
        assert run.kept == (killed_run.BATCHES + 1) * killed_run.ROWS == run.sent - run.lost
    with open_run(folders[0] / "run") as run:
        assert run.lost == 0 and run.sent == len(rows)


class Asked(nn.Module):
    """Doubles its input and adds how often it was called, so that an answer betrays when it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rows = 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += len(x) > 0
        self.rows += len(x)
        return 2 * x + self.calls


def test_the_same_row_asked_twice_is_two_answers_and_both_come_back(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    first = Asked()
    with open_run(tmp_path) as run:
        f = fl.value_oracle(first, dim=2, run=run)
        answers = [f(x), f(x[:1]), f(x)]
    second = Asked()
    with open_run(tmp_path) as run:
        f = fl.value_oracle(second, dim=2, run=run)
        again = [f(x), f(x[:1]), f(x)]
        assert f.used == 7 and second.rows == 0                     # billed as before, but nobody was asked
        fresh = f(torch.tensor([[3.0, 4.0], [9.0, 9.0]]))           # a third [3, 4] and a new row
        assert second.rows == 2 and fresh.shape == (2, 2)
    assert all(torch.equal(a, b) for a, b in zip(answers, again, strict=True))
    assert not torch.equal(answers[0][0], answers[1][0])            # the noise of the first run is kept, not averaged


def test_a_batch_that_is_half_known_asks_only_the_rest(tmp_path: Path) -> None:
    x = torch.arange(12.0, dtype=torch.float64).reshape(6, 2)
    with open_run(tmp_path) as run:
        fl.value_oracle(Asked(), dim=2, run=run)(x[:4])
    target = Asked()
    with open_run(tmp_path) as run:
        y = fl.value_oracle(target, dim=2, run=run)(x.flip(0))
    assert target.rows == 2
    assert torch.equal(y, 2 * x.flip(0) + 1)


def test_a_run_stopped_early_goes_on_and_then_only_reads(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(300, 2)).double()
    x = torch.randn(3, 500, 300, generator=fl.generator(0), dtype=torch.float64)
    for first, sent in ((2, 1000), (3, 1500), (3, 1500)):               # stopped early, resumed, then only read
        with open_run(tmp_path) as run:
            f = fl.value_oracle(net, run=run)
            for part in x[:first]:
                assert torch.equal(f(part), net(part).detach())
            assert run.sent == run.kept == sent and f.used == 500 * first


def test_kinds_and_targets_do_not_mix(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2)).double()
    other = nn.Sequential(nn.Linear(2, 2)).double()
    x = torch.ones(1, 2, dtype=torch.float64)
    for _ in range(2):
        with open_run(tmp_path) as run:
            assert torch.equal(fl.value_oracle(net, run=run)(x), net(x).detach())
            assert torch.equal(fl.value_oracle(other, run=run)(x), other(x).detach())
            for output in (0, 1):
                assert torch.equal(fl.gradient_oracle(net, output, run=run)(x)[1][0], net[0].weight[output])
            label = fl.label_oracle(net, run=run)(x)
            assert label.dtype == torch.int64 and label[0] == net(x).argmax()


def test_a_target_that_changed_is_another_target(tmp_path: Path) -> None:
    x = torch.ones(1, 2, dtype=torch.float64)
    one, two = nn.Linear(2, 1).double(), nn.Linear(2, 1).double()
    for net in (one, two):
        fl.save(nn.Sequential(net), tmp_path / "n.safetensors")
        with open_run(tmp_path / "run") as run:
            assert torch.equal(fl.value_oracle(str(tmp_path / "n.safetensors"), run=run)(x), net(x).detach())
            assert torch.equal(fl.value_oracle(lambda x, net=net: net(x), dim=2, run=run)(x), net(x).detach())

            def closed(x: Tensor, net: nn.Module = net) -> Tensor:
                return net(x)

            assert torch.equal(fl.value_oracle(closed, dim=2, run=run)(x), net(x).detach())


def test_float32_rows_are_known_by_what_the_target_sees(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    x = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    with open_run(tmp_path) as run:
        y = fl.value_oracle(net, run=run)(x)
    with open_run(tmp_path) as run:
        assert torch.equal(fl.value_oracle(net, run=run)(x.float()), y) and run.sent == 1


def test_a_folder_is_resumed_only_by_what_made_it(tmp_path: Path) -> None:
    with open_run(tmp_path, method="extract", target="demo:digits", seed=1):
        pass
    with open_run(tmp_path, method="extract", target="demo:digits", seed=1):
        pass
    with pytest.raises(BadInput, match="seed was 1 and is now 2"):
        open_run(tmp_path, method="extract", target="demo:digits", seed=2)


def test_answers_that_are_wrong_are_not_kept(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        def broken(x: Tensor) -> Tensor:
            return x[:, :1] / 0

        def raising(x: Tensor) -> Tensor:
            raise RuntimeError("out of luck")

        with pytest.raises(BadAnswer):
            fl.value_oracle(broken, dim=2, run=run)(torch.ones(3, 2))
        with pytest.raises(TargetError, match="out of luck"):
            fl.value_oracle(raising, dim=2, run=run)(torch.ones(3, 2))
        assert run.kept == 0 and run.lost == run.sent == 6


def test_a_broken_or_busy_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "transcript.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 50)
    with pytest.raises(BadFile, match="not a transcript"):
        open_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match="cannot be used"):
        open_run(tmp_path / "file" / "run")
    with open_run(tmp_path / "b"):
        code = f"import fcntl; fcntl.flock(open({str(tmp_path / 'b' / 'sent')!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 1


def test_counting_agrees_with_a_dictionary() -> None:
    rng = random.Random(0)
    counts, slow = Counts(), {}
    import numpy as np
    for _ in range(200):
        keys = np.array([rng.randrange(40) for _ in range(rng.randrange(1, 30))], dtype="<u8")
        expected = []
        for key in keys.tolist():
            expected.append(slow.get(key, 0))
            slow[key] = slow.get(key, 0) + 1
        assert counts.occurrences(keys).tolist() == expected
    assert len(counts.runs) < 12

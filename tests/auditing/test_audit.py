"""The audit from end to end on a tiny target: plan, stages, budgets, resuming, exit codes, and a kill over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import PROBABILITY, TARGET, network

import foldline as fl
from foldline.auditing.plan import planned_only
from foldline.auditing.run import resolved
from foldline.errors import BadInput, FoldlineError, NotAuthorised
from foldline.oracles.authorisation import authorised
from foldline.reports.files import read_report
from foldline.serving.app import make_app
from foldline.serving.run import serving

METHODS = ["span", "obfuscate", "extract"]


def spec(**more: Any) -> dict[str, Any]:
    return {"version": 1, "name": "tiny", "target": TARGET, "access": ["values", "gradients"], "methods": METHODS,
            **more}


@pytest.fixture
def foldline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process: foldline("audit", ...) -> (exit code, stdout, stderr)"""
    from foldline.cli.main import main

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["foldline", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err.replace("\n", " ")

    return run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fl.audit(spec(), tmp_path_factory.mktemp("audit"))


def test_what_is_found_is_right_and_counted(done: Any) -> None:
    found = {f.id: f for f in done.findings}
    assert found["span"].numbers["rank"] == 5 and found["span"].state == "shown"
    assert found["extraction"].numbers["exact"] == 1 and found["extraction"].severity == "high"
    assert found["obfuscation"].numbers["same_answer"] == 1
    assert done.complete and done.document.ledger.total == sum(r.rows for r in done.document.ledger.rows) > 0
    assert done.document.run.rows_sent == done.document.ledger.total
    assert {r.kind for r in done.document.ledger.rows} == {"explanations", "values"}


def test_the_files_are_there_and_the_json_reads_back(done: Any) -> None:
    assert all(p.stat().st_size > 100 for p in done.files.values())
    assert read_report(done.folder).comparable() == done.document.comparable()
    assert done.files["html"].stat().st_size < 5_000_000


def test_the_same_folder_resumes_without_asking(done: Any) -> None:
    again = fl.audit(spec(), done.folder)
    assert again.document.comparable() == done.document.comparable()
    assert again.document.run.rows_sent == done.document.run.rows_sent and again.document.run.resumed >= 1


def test_a_lost_stage_is_redone_from_the_transcript(done: Any) -> None:
    for name in ("span", "obfuscate"):
        (done.folder / "run" / "stages" / f"{name}.json").unlink()
    again = fl.audit(spec(), done.folder)
    assert again.document.comparable() == done.document.comparable()
    assert again.document.run.rows_sent == done.document.run.rows_sent


def test_a_later_stage_finds_an_earlier_ones_result_after_a_kill(done: Any) -> None:
    (done.folder / "run" / "stages" / "obfuscate.json").unlink()        # span.json stays: its result is recomputed
    again = fl.audit(spec(), done.folder)
    assert again.document.comparable() == done.document.comparable()


def test_another_audit_does_not_resume_in_its_folder(done: Any) -> None:
    with pytest.raises(BadInput, match="another run"):
        fl.audit(spec(seed=1), done.folder)


def test_a_budget_is_never_crossed_and_the_report_says_so(tmp_path: Path) -> None:
    short = fl.audit(spec(budget={"queries": 20}), tmp_path)
    assert short.document.ledger.total <= 20 and not short.complete
    assert "budget" in {m.status.code for m in short.document.methods}
    again = fl.audit(spec(budget={"queries": 20}), tmp_path)
    assert again.document.comparable() == short.document.comparable()


def test_money_is_a_budget_too_and_is_billed(tmp_path: Path) -> None:
    paid = fl.audit(spec(budget={"money": 0.5, "currency": "EUR"}, price_per_query=0.01, methods=["span"]), tmp_path)
    ledger = paid.document.ledger
    assert ledger.money == pytest.approx(0.01 * ledger.total) and ledger.total <= 50 and ledger.budget == 50


def test_time_is_a_budget_too(tmp_path: Path) -> None:
    late = fl.audit(spec(budget={"seconds": 1e-9}), tmp_path)
    assert not late.complete and {m.status.code for m in late.document.methods} == {"time"}
    assert late.document.ledger.total == 0 and "does not mean" in late.document.headline


def test_values_alone_still_give_the_span(tmp_path: Path) -> None:
    found = fl.audit(spec(access=["values"], methods=["span"]), tmp_path)
    assert found.findings[0].numbers["rank"] == 5 and found.document.ledger.total > 5 * 12


def test_defences_change_what_is_found(tmp_path: Path) -> None:
    x = torch.randn(30, 12, generator=fl.generator(0), dtype=torch.float64)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    found = fl.audit(spec(methods=["span"], defences=["round-2", "label-only"],
                          reference={"inputs": str(tmp_path / "x.npz")}), tmp_path / "out")
    rows = {r.name: r for r in found.document.defences.rows}
    assert rows["no defence"].rank == 5 and rows["no defence"].explanation_change == pytest.approx(0, abs=1e-12)
    assert rows["round to 2 decimals"].explanation_change > 0
    assert rows["labels only"].rank == 5 and rows["labels only"].rows > 1000        # slower, not closed
    assert rows["labels only"].decisions_changed == 0 == rows["no defence"].decisions_changed
    assert found.document.ledger.total == sum(r.rows for r in found.document.ledger.rows if r.stage.startswith("The"))


def test_labels_of_a_probability_change_at_the_threshold_of_the_file(tmp_path: Path) -> None:
    plain, told = (fl.audit(spec(target=PROBABILITY, access=["labels"], methods=["labels"], **more), tmp_path / name)
                   for name, more in (("at zero", {}), ("at a half", {"threshold": 0.5})))
    ranks = [next(f.numbers["rank"] for f in a.findings if f.id == "label-span") for a in (plain, told)]
    assert ranks == [0, 5]                                              # above zero there is one class and no boundary


def test_a_finished_student_is_not_taught_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spec(methods=["imitate"], students=[3])
    calm = fl.audit(wanted, tmp_path / "calm")
    taught: list[Any] = []
    imitate = fl.imitate

    def killed_at_the_second(*arguments: Any, **options: Any) -> Any:
        taught.append(arguments[3])
        if len(taught) == 2:
            raise KeyboardInterrupt
        return imitate(*arguments, **options)

    monkeypatch.setattr(fl, "imitate", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        fl.audit(wanted, tmp_path / "killed")
    again = fl.audit(wanted, tmp_path / "killed")
    assert taught == ["gradient", None, None]                   # only the second is taught again
    assert again.document.comparable() == calm.document.comparable()
    assert again.document.run.rows_sent == calm.document.run.rows_sent


def test_a_plan_asks_nothing() -> None:
    plan = planned_only(resolved(spec())[0])
    assert [p.stage.name for p in plan.stages] == METHODS and all(p.estimate.rows > 0 for p in plan.stages)
    demo = planned_only(resolved(None)[0])
    rows = {p.stage.name: p.estimate.rows for p in demo.stages}
    assert len(rows) > 10 and rows["labels"] <= 750_000 and rows["learn"] <= 100_000
    assert sum(n for name, n in rows.items() if name not in ("labels", "learn")) < 2_000
    assert not planned_only(resolved({**spec(), "methods": ["labels"], "access": ["labels"],
                                      "budget": {"queries": 900}})[0]).stages[0].estimate.rows


def test_a_plan_says_what_is_then_asked(tmp_path: Path) -> None:
    """Over HTTP, where defences ask the target again: exact numbers are exact, and no other is crossed."""
    x = torch.rand(60, 12, generator=fl.generator(0), dtype=torch.float64)
    np.savez(tmp_path / "x.npz", x=x.numpy())
    with serving(make_app(network())) as url:
        wanted = spec(target=url, authorised="a test's own server", access=["values", "gradients", "labels"],
                      methods=["span", "imitate", "obfuscate", "extract"], students=[3, 20],
                      defences=["round-2", "budget-half", "label-only", "smoothgrad"],
                      reference={"inputs": str(tmp_path / "x.npz")})
        with authorised("a test's own server"):
            planned = {p.stage.title: p.estimate for p in planned_only(resolved(wanted)[0]).stages}
        found = fl.audit(wanted, tmp_path / "out")
    asked = dict.fromkeys(planned, 0)
    for row in found.document.ledger.rows:
        asked[row.stage] += row.rows
    exact = {title for title, e in planned.items() if e.exact}
    assert {"A student from few explanations", "Noise that the model cannot see", "Defence: labels only"} <= exact
    assert {t: asked[t] for t in exact} == {t: planned[t].rows for t in exact}
    assert asked["A student from few explanations"] == 40 + 2 * (3 + 20 + 1)        # one row of the larger, twice
    assert all(0 < asked[t] <= (planned[t].most or 0) for t in planned.keys() - exact)


def test_labels_and_values_alone_are_tried_within_their_share(tmp_path: Path) -> None:
    found = fl.audit(spec(methods=["span", "learn", "labels"], access=["values", "gradients", "labels"],
                          budget={"queries": 20_000}), tmp_path / "rich")
    shown = {f.id: f for f in found.findings}
    assert shown["label-span"].numbers["rank"] == 5 and shown["label-span"].state == "shown"
    assert "1.0000 of the worst" in shown["label-span"].evidence[1].text
    assert shown["learning"].numbers["certified"] == 1 and shown["learning"].numbers["bound"] < 1e-6
    rows = {r.kind: r.rows for r in found.document.ledger.rows}
    assert 1000 < rows["labels"] <= 10_000 and rows["values"] <= 5000 and found.complete
    poor = fl.audit(spec(methods=["learn", "labels"], access=["values", "labels"], budget={"queries": 100}),
                    tmp_path / "poor")
    # A share that is too small is a result about this budget, neither an incomplete audit nor a pass.
    assert poor.complete and {f.state for f in poor.findings} == {"incomplete", "not-shown"}
    assert poor.document.ledger.total <= 25 and all(f.limits for f in poor.findings)


def test_an_http_target_needs_a_statement(tmp_path: Path) -> None:
    with pytest.raises(NotAuthorised):
        fl.audit("http://127.0.0.1:9/", tmp_path)


def test_a_target_that_cannot_be_opened_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(FoldlineError, match=r"no file.*none\.safetensors"):
        fl.audit(f"weights:{tmp_path / 'none.safetensors'}", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fl.audit(spec(methods=["span"]), tmp_path / "out")
    with pytest.raises(BadInput, match=r"seed was 0 and is now 3.*give a new folder"):
        fl.audit(spec(methods=["span"], seed=3), tmp_path / "out")


def test_faults_change_the_wire_and_not_the_report(tmp_path: Path) -> None:
    """The budget is the larger for what the network loses, and the report says how much that was."""
    from foldline.serving.faults import Faulty
    found, port = [], 0
    for faulty in (False, True):
        app: Any = make_app(network(), max_rows=8)
        app = Faulty(app, rate=0.3, seed=1, kinds=["429", "500", "drop", "truncate", "rows", "nan"]) if faulty else app
        with serving(app, port=port) as url:
            port = int(url.rsplit(":", 1)[1])                   # the report names the address: the same for both
            # Half of 2,400 rows is less than labels want: a share that runs out must do so at the same row.
            found.append(fl.audit(spec(target=url, authorised="my own server", budget={"queries": 2400},
                                       methods=[*METHODS, "learn", "labels"], access=["values", "gradients", "labels"]),
                                  tmp_path / str(faulty)).document)
    calm, rough = found
    assert next(m.status.code for m in calm.methods if m.id == "labels") == "share"
    assert rough.comparable() == calm.comparable()
    assert calm.run.retries == calm.run.rows_lost == 0 and calm.run.rows_sent == calm.ledger.total
    assert rough.run.retries > 3 and rough.run.rows_lost > 0 and rough.run.requests > calm.run.requests
    assert rough.run.rows_sent == rough.ledger.total + rough.run.rows_lost


def test_lost_rows_are_paid_for_also_in_the_next_life(tmp_path: Path) -> None:
    from foldline.auditing.run import make_session
    from foldline.auditing.subjects import subject_of
    from foldline.oracles.transcript import open_run
    audit, _ = resolved(spec(budget={"queries": 100}))
    with open_run(tmp_path / "run") as run:
        run.about_to_send(30)                                   # and killed before the reply
        session = make_session(audit, {"main": subject_of(audit)}, run, fl.results.silent)
        assert session.ledger.remaining == 70 and session.left == 100


def test_an_api_without_a_budget_is_not_asked_a_million_labels() -> None:
    from dataclasses import replace

    from foldline.auditing.session import Session
    from foldline.auditing.stages.labels import allowed
    from foldline.auditing.subjects import subject_of
    audit, _ = resolved(spec())
    local = subject_of(audit)
    remote = replace(local, address="https://api.example.com")
    assert [allowed(Session(audit, {"main": s}, None)) for s in (local, remote)] == [1_000_000, 100_000]
    assert allowed(Session(audit, {"main": remote}, None, budget=900_000)) == 450_000


def test_the_command_plans_audits_reports_and_fails_on(tmp_path: Path, foldline: Any) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(json.dumps(spec()))
    code, said, _ = foldline("audit", path, "--plan", "--out", tmp_path / "none")
    assert code == 0 and "Nothing was asked" in said and not (tmp_path / "none").exists()
    code, result, told = foldline("audit", path, "--out", tmp_path / "out", "--fail-on", "high", "--json", "-")
    assert code == 1 and json.loads(result)["kind"] == "foldline-report"
    assert "report.html" in told and "\x1b[" not in told and "The span of the training data: ok" in told
    assert foldline("audit", path, "--out", tmp_path / "out", "--fail-on", "critical")[0] == 0
    assert foldline("audit", path, "--out", tmp_path / "short", "--budget", "20")[0] == 3
    assert foldline("report", tmp_path / "out", "--redact", "--out", tmp_path / "copy")[0] == 0
    assert json.loads((tmp_path / "copy" / "report.json").read_text())["redacted"]


@pytest.mark.parametrize(("arguments", "says"), [
    (["audit", "none.yaml"], "cannot be read"), (["audit", "weigths:m.safetensors"], "Did you mean weights"),
    (["audit", "--fail-on", "awful"], "one of info"), (["report", "nowhere"], "There is no report")])
def test_a_typo_ends_in_a_sentence_and_exit_code_two(arguments: list[str], says: str, tmp_path: Path,
                                                     foldline: Any) -> None:
    code, _, told = foldline(*arguments, *(["--out", tmp_path / "o"] if arguments[0] == "audit" else []))
    assert code == 2 and says in told and "Traceback" not in told


def test_kills_over_http_leave_the_same_report(tmp_path: Path) -> None:
    """Three SIGKILLs at random moments, each resumed; a slow server makes sure that there is something to kill."""
    chance = random.Random(3)
    with serving(make_app(network(), rate_limit=60.0)) as url:
        path = tmp_path / "audit.yaml"
        path.write_text(json.dumps(spec(target=url, authorised="the test's own server")))
        undisturbed = fl.audit(str(path), tmp_path / "calm")
        command = [sys.executable, "-m", "foldline", "audit", str(path), "--out", str(tmp_path / "killed")]
        killed = 0
        for number in range(3):
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     env={**os.environ, "OMP_NUM_THREADS": "1"})
            starts = tmp_path / "killed" / "run" / "starts"         # one dot for every start
            begun = time.monotonic()
            while time.monotonic() - begun < 60 and child.poll() is None \
                    and not (starts.exists() and starts.stat().st_size > number):
                time.sleep(0.02)
            time.sleep(chance.uniform(0.05, 0.8))
            killed += child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait()
        last = fl.audit(str(path), tmp_path / "killed")
    assert killed >= 2 and last.document.run.resumed == 3
    assert last.document.comparable() == undisturbed.document.comparable()

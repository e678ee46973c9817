"""The command as a new user meets it: typos, missing files, pipes, Ctrl-C, and never a traceback."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

QUICK = "def f(x):\n    return x.sum(1)\n"
SLOW = "import time\n\ndef f(x):\n    open('asked', 'a').write('x')\n    time.sleep(60)\n    return x.sum(1)\n"


def foldline(*arguments: str, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run([sys.executable, "-m", "foldline", *arguments], capture_output=True, text=True, cwd=cwd,
                          env=environment, input=stdin, timeout=120)


def in_process(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """main() here, without a child's seconds of importing torch."""
    from foldline.cli.main import main
    monkeypatch.setattr(sys, "argv", ["foldline", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_help_fits_a_screen_and_says_what_to_run_first() -> None:
    done = foldline("--help")
    assert done.returncode == 0 and len(done.stdout.splitlines()) <= 45
    assert "Start with foldline audit" in " ".join(done.stdout.split())
    version = foldline("--version")
    assert version.returncode == 0 and version.stdout.startswith("foldline 0.")


def test_every_command_has_help_with_an_example() -> None:
    """In this process: a child for each of eleven commands would only test the import of torch eleven times."""
    from typer.testing import CliRunner

    from foldline.cli.main import COMMANDS, app
    registered = [c.name for c in app.registered_commands]
    for name in COMMANDS:
        if name not in registered:
            continue
        done = CliRunner().invoke(app, [name, "--help"])
        assert done.exit_code == 0, name
        assert f"foldline {name}" in done.stdout.replace("Usage: foldline", "", 1) or "Example" in done.stdout, name
        assert "--json" in done.stdout, name


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (["prob", "demo:digits"], 2, "probe"),
    (["probe", "dmeo:digits"], 2, "Did you mean demo:digits?"),
    (["probe", "weights:none.safetensors"], 2, "There is no file none.safetensors"),
    (["probe", "demo:digits", "--json", "no/such/folder/x.json"], 2, "there is no folder"),
    (["probe", "demo:digits", "--budgt", "3"], 2, "--budget"),
    (["probe", "py:json:dumps", "--dim", "3"], 3, "failed on a batch"),
    (["probe", "demo:digits", "--budget", "70"], 3, "budget"),
])
def test_a_mistake_is_one_sentence_and_the_right_code(
        arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_process(monkeypatch, *arguments) == code
    out, err = capsys.readouterr()
    assert says in " ".join(err.split()) and "Traceback" not in err + out


def test_json_on_stdout_is_only_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quick.py").write_text(QUICK)
    done = foldline("probe", "py:quick:f", "--dim", "3", "--seed", "3", "--json", "-", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["output_kind"] == "one value" and found["provenance"]["seed"] == 3 and done.returncode == 0
    monkeypatch.chdir(tmp_path)
    assert in_process(monkeypatch, "probe", "demo:logistic", "--json", "x.json") == 0
    out, err = capsys.readouterr()
    assert json.loads((tmp_path / "x.json").read_text())["dim"] == 64
    assert "probabilities" in out and "Wrote x.json" in err and "\x1b" not in out


def test_a_run_folder_is_resumed_only_by_the_command_that_made_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from foldline.cli import main as entry
    seen: list[int] = []

    def command(target: str, seed: int = 0, run: Path | None = None) -> None:
        seen.append(seed)

    app = typer.Typer()
    app.command()(entry.guarded(command))
    monkeypatch.setattr(entry, "app", app)
    folder = str(tmp_path / "r")
    assert in_process(monkeypatch, "t", "--seed", "1", "--run", folder) == 0
    assert in_process(monkeypatch, "t", "--seed", "1", "--run", folder) == 0
    assert in_process(monkeypatch, "t", "--seed", "2", "--run", folder) == 2
    assert seen == [1, 1] and "seed was 1 and is now 2" in " ".join(capsys.readouterr().err.split())


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(QUICK)
    command = f"{sys.executable} -m foldline probe py:quick:f --dim 3 --json - | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout == "{" and "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_a_bug_of_ours_says_where_the_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("class Odd:\n    dim = 3\n    def __call__(self, x):\n        return x\n"
                                        "    @property\n    def box(self):\n        raise KeyError('deep inside')\n"
                                        "f = Odd()\n")
    assert in_process(monkeypatch, "probe", "py:broken:f") == 70
    said = capsys.readouterr().err
    assert "Traceback" not in said and "bug of its own: KeyError" in said
    log = next(word for word in said.replace(";", " ").split() if "foldline-crash-" in word)
    assert "deep inside" in Path(log).read_text()
    Path(log).unlink()
    monkeypatch.setattr(sys, "argv", ["foldline", "probe", "py:broken:f", "--debug"])
    from foldline.cli.main import main
    with pytest.raises(KeyError, match="deep inside"):
        main()


def test_ctrl_c_ends_within_a_second(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    times = []
    for _ in range(3):                                              # the clock is the machine's, which may be busy
        (tmp_path / "asked").unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-m", "foldline", "probe", "py:slow:f", "--dim", "3"], cwd=tmp_path,
                                 stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, said = child.communicate(timeout=30)
        times.append(time.monotonic() - start)
        assert child.returncode == 130 and "Stopped" in said and "Traceback" not in said
        if times[-1] < 1.0:
            return
    pytest.fail(f"Ctrl-C took {times} s")


def cpu_seconds(*command: str) -> float:
    """Of the child, not of the clock: other work on the machine must not fail this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_and_help_are_quick() -> None:
    assert min(cpu_seconds("-c", "import foldline") for _ in range(2)) < 0.3
    assert min(cpu_seconds("-m", "foldline", "--help") for _ in range(2)) < 0.5
    done = subprocess.run([sys.executable, "-c", "import foldline, sys; print('torch' in sys.modules)"],
                          capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_the_public_names_are_there() -> None:
    import foldline as fl
    assert set(fl.__all__) <= set(dir(fl))
    assert all(getattr(fl, name) is not None for name in fl.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = fl.nothing
    assert issubclass(fl.errors.BadInput, ValueError) and issubclass(fl.errors.BadInput, fl.errors.FoldlineError)

"""`foldline extract` as a user runs it."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import foldline as fl
from foldline.cli.main import app
from foldline.errors import BadInput


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = torch.Generator().manual_seed(0)
    W, b, a, q = (torch.randn(*s, generator=rng, dtype=torch.float64) for s in ((4, 9), (4,), (1, 4), (1,)))
    fl.save(fl.Network(W, b, a, torch.zeros(1, 9), q), tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("source", ["values", "gradients"])
def test_it_writes_a_target_a_plot_and_json(model: Path, source: str) -> None:
    out, plot, result = (model.parent / n for n in ("stolen.safetensors", "line.svg", "r.json"))
    done = CliRunner().invoke(app, ["extract", f"weights:{model}", "--from", source, "--out", str(out), "--plot",
                                    str(plot), "--json", str(result)])
    assert done.exit_code == 0
    assert json.loads(result.read_text())["units"] == 4 and "<svg" in plot.read_text()
    x = torch.randn(20, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(fl.load(out)(x), fl.load(model)(x), rtol=1e-8, atol=1e-8)


def test_a_small_budget_leaves_with_code_3(model: Path) -> None:
    done = CliRunner().invoke(app, ["extract", f"weights:{model}", "--budget", "30"])
    assert done.exit_code == 3


def test_a_typo_is_a_sentence(model: Path) -> None:
    done = CliRunner().invoke(app, ["extract", f"weights:{model}", "--from", "gradient"])
    assert isinstance(done.exception, BadInput) and "values, gradients" in str(done.exception)


def test_plain_lines_in_a_pipe_say_what_was_found_and_asked(model: Path) -> None:
    done = CliRunner().invoke(app, ["extract", f"weights:{model}", "--budget", "500"])
    assert done.exit_code == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert any("breakpoints found 4" in line and "of 500" in line for line in lines)
    assert "units confirmed 4" in lines[-1] and "residual" in lines[-1]
    assert "\x1b" not in "".join(lines)


def test_the_live_table_holds_the_four_numbers(model: Path) -> None:
    from rich.console import Console

    from foldline.cli.extract_display import Display
    f = fl.value_oracle(f"weights:{model}", 100)
    d = Display(f)
    d.progress("check", {"folds": 4, "units": 4, "residual": 1e-9})
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as text:
        console.print(d.table())
    assert all(word in text.get() for word in ("breakpoints found", "units confirmed", "residual", "0 of 100"))

"""The commands on an HTTP target, and serve's own mistakes; in this process, since starting Python is the slow part."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from foldline.cli.main import app
from foldline.cli.serve import is_loopback
from foldline.errors import BadFile, BadInput, BadSpec, Missing, NotAuthorised, TargetError
from foldline.oracles import authorisation
from foldline.serving.app import make_app
from foldline.serving.run import serving


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.delenv(authorisation.VARIABLE, raising=False)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_command_asks_an_http_target_only_with_leave(net):
    with serving(make_app(net)) as url:
        assert isinstance(run("probe", url).exception, NotAuthorised)
        assert isinstance(run("probe", url, "--i-am-authorised", " ").exception, NotAuthorised)
        done = run("probe", url, "--i-am-authorised", "my own server", "--json", "-")
        assert done.exit_code == 0, done.output
    assert authorisation.statement() is None                        # said for that command alone
    for name in ("probe", "audit"):
        assert "--i-am-authorised" in run(name, "--help").output


def test_serve_starts_says_where_and_ends_by_itself(tmp_path):
    told = tmp_path / "serve.json"
    done = run("serve", "demo:logistic", "--port", "0", "--stop-after", "0.2", "--decimals", "2", "--top-label",
               "--json", str(told))
    assert done.exit_code == 0, done.output
    found = json.loads(told.read_text())
    assert found["url"].startswith("http://127.0.0.1:") and found["defences"] == {"decimals": 2, "top_label": True}


@pytest.mark.parametrize(("arguments", "error", "says"), [
    (["demo:nothing"], BadSpec, "There is no demo:nothing"),
    (["missing.safetensors"], BadFile, r"no file missing\.safetensors"),
    (["demo:digits", "--key-from", "NOT_SET_HERE"], Missing, "NOT_SET_HERE"),
    (["demo:digits", "--rate-limit", "0"], BadInput, "--rate-limit"),
    (["demo:digits", "--host", "256.0.0.1"], TargetError, "cannot listen"),
])
def test_serve_says_what_is_wrong(arguments, error, says):
    with pytest.raises(error, match=says):
        raise run("serve", *arguments, "--port", "0", "--stop-after", "0.1").exception


def test_only_loopback_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))
    warned = run("serve", "demo:logistic", "--host", "0.0.0.0", "--port", "0", "--stop-after", "0.1")
    assert "not loopback" in warned.output and "no API key" in " ".join(warned.output.split())

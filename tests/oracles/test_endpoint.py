"""HTTP targets: who may ask, what a description may say, and what is done with replies."""

from __future__ import annotations

import email.utils
import shutil
import ssl
import subprocess
import textwrap
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

import foldline as fl
from foldline.errors import BadFile, BadSpec, Missing, NotAuthorised, TargetError
from foldline.oracles import authorisation, endpoint_calls
from foldline.oracles.authorisation import authorised
from foldline.oracles.endpoint import open_endpoint
from foldline.oracles.endpoint_calls import parse_retry_after
from foldline.oracles.endpoint_spec import read_spec
from foldline.oracles.endpoint_wire import numbers, ordered, put, take
from foldline.serving.app import make_app
from foldline.serving.run import serving

ME = "my own server in a test"
X = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(10, 4)
A = torch.arange(8, dtype=torch.float64).reshape(2, 4) / 7


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(endpoint_calls, "FIRST_PAUSE", 0.002)
    monkeypatch.delenv(authorisation.VARIABLE, raising=False)


def spec_file(tmp_path, text: str) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(textwrap.dedent(text))
    return f"http:{path}"


# Who may ask

def test_nothing_is_opened_without_a_statement(monkeypatch):
    with pytest.raises(NotAuthorised, match="--i-am-authorised"):
        fl.value_oracle("https://example.invalid/predict")
    with pytest.raises(NotAuthorised, match="empty"), authorised("  "):
        pass
    with authorised("outer"):
        with authorised("inner"):
            assert authorisation.statement() == "inner"
        assert authorisation.statement() == "outer"
    assert authorisation.statement() is None
    monkeypatch.setenv(authorisation.VARIABLE, "the owner, by letter")
    assert authorisation.required(None, "https://h") == "the owner, by letter"
    assert authorisation.required("explicit", "https://h") == "explicit"


# What a description may say

GOOD = """
    url: http://127.0.0.1:1/predict
    dim: 4
    outputs: 2
    values: {answers: out}
"""


@pytest.mark.parametrize(("change", "line", "says"), [
    (("dim: 4", "dim: four"), 3, "dim"),
    (("dim: 4", "dim: 0"), 3, "dim"),
    (("dim: 4", "dimension: 4"), 3, "dimension"),
    (("outputs: 2", "rate_limit: 0"), 4, "rate_limit"),
    (("outputs: 2", ""), 1, "values need outputs"),
    (("values: {answers: out}", "price_per_query: 1"), 1, "at least one of values"),
    (("values: {answers: out}", "gradient: {answers: g}"), 1, "gradient needs value"),
    (("outputs: 2", "headers: {X-Api-Key: abc}\n    outputs: 2"), 1, "looks like a secret"),
    (("http://127.0.0.1:1", "ftp://x"), 1, "not an http or https address"),
    (("http://127.0.0.1:1", "http://user:pw@h"), 1, "must not hold a user"),
    (("outputs: 2", "outputs: 2\n    box: [1, 0]"), 1, "low < high"),
    (("outputs: 2", "outputs: 2\n    request: {shape: [3, 3]}"), 1, "does not have dim"),
    (("outputs: 2", "outputs: 2\n    request: {single: true}"), 1, "rows_per_request: 1"),
    (("values: {answers: out}", "values: {answers: [out]}"), 5, "values.answers"),
    (("values: {answers: out}", "verify: false\n    values: {answers: out}"), 5, "verify"),
])
def test_a_wrong_description_names_its_line(tmp_path, change, line, says):
    path = spec_file(tmp_path, GOOD.replace(*change))
    with pytest.raises(BadSpec, match=says) as caught:
        open_endpoint(path, "values", authorised=ME)
    shift = 1 if line > 1 else 0                        # the text starts with an empty line; whole-file errors say 2
    assert f"line {line if shift else 2}:" in str(caught.value), str(caught.value)


def test_a_broken_file_is_a_sentence(tmp_path):
    with pytest.raises(BadFile, match="cannot be read"):
        read_spec(tmp_path / "none.yaml")
    with pytest.raises(BadSpec, match="line 2"):
        open_endpoint(spec_file(tmp_path, "url: x\ndim: [}"), "values", authorised=ME)
    with pytest.raises(BadSpec, match="is a mapping"):
        open_endpoint(spec_file(tmp_path, "- 1"), "values", authorised=ME)


def test_secrets_come_from_the_environment_and_never_show(tmp_path, monkeypatch):
    text = spec_file(tmp_path, GOOD + '    headers: {Authorization: "Bearer ${MY_TOKEN}"}\n')
    with pytest.raises(Missing, match="MY_TOKEN"):
        open_endpoint(text, "values", authorised=ME)
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    source = open_endpoint(text, "values", authorised=ME, attempts=1)
    assert source.caller.client.headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(source.spec)
    with pytest.raises(TargetError) as caught:
        source.answer(X)                                # nobody listens there
    assert "s3cret" not in str(caught.value)
    assert source.lost == 0 and source.bill.refused == 10
    away = GOOD.replace("127.0.0.1:1", "api.example.invalid") + '    headers: {A: "${MY_TOKEN}"}\n'
    with pytest.raises(BadSpec, match="not https"):
        open_endpoint(spec_file(tmp_path, away), "values", authorised=ME)


# Somebody's API

def foreign() -> FastAPI:
    app = FastAPI()
    app.state.bodies = []

    @app.post("/v1/predict")
    async def predict(request: Request) -> Response:
        body = await request.json()
        app.state.bodies.append((body, dict(request.headers)))
        rows = torch.tensor(body["input"]["instances"], dtype=torch.float64).reshape(-1, 4)
        y = (rows @ A.T).tolist()
        return JSONResponse({"predictions": [
            {"index": i, "scores": {"dog": b, "cat": a}, "label": "cat" if a >= b else "dog"}
            for i, (a, b) in reversed(list(enumerate(y)))]})

    @app.put("/v1/explain")
    async def explain(request: Request) -> Response:
        body = await request.json()
        row = torch.tensor(body["x"], dtype=torch.float64)
        j = body["target"]["class"]
        return JSONResponse({"score": float(row @ A[j]), "saliency": A[j].tolist()})

    @app.post("/moved")
    async def moved() -> Response:
        return RedirectResponse("https://elsewhere.invalid/", 307)

    return app


FOREIGN = """
    url: {url}/v1/predict
    headers: {{X-Client: "test ${{FOREIGN_ID}}"}}
    dim: 4
    outputs: 2
    rows_per_request: 3
    price_per_query: 0.25
    request: {{rows: input.instances, shape: [2, 2], extra: {{model: v2, input: {{kind: image}}}}}}
    values: {{answers: predictions.*.scores, ids: predictions.*.index, classes: [cat, dog]}}
    labels: {{answers: predictions.*.label, ids: predictions.*.index, classes: [cat, dog]}}
"""
EXPLAIN = """
    url: {url}/v1/explain
    method: PUT
    dim: 4
    rows_per_request: 1
    request: {{rows: x, single: true}}
    gradient: {{answers: saliency, value: score, output: target.class}}
"""


def test_a_foreign_api_by_description(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREIGN_ID", "7")
    app = foreign()
    with serving(app) as url, authorised(ME):
        f = fl.value_oracle(spec_file(tmp_path, FOREIGN.format(url=url)))
        torch.testing.assert_close(f(X), X @ A.T, rtol=0, atol=1e-15)   # back in order, columns by name
        assert f.used == 10 and f.source.sent == 10 and f.source.price_per_query == 0.25
        assert f.source.statement == ME
        bodies = [b for b, _ in app.state.bodies]
        assert sorted(len(b["input"]["instances"]) for b in bodies) == [1, 3, 3, 3]
        assert all(b["model"] == "v2" and b["input"]["kind"] == "image" for b in bodies)
        assert torch.tensor(bodies[0]["input"]["instances"]).shape[1:] == (2, 2)
        assert app.state.bodies[0][1]["x-client"] == "test 7"
        sent = torch.cat([torch.tensor(b["input"]["instances"], dtype=torch.float64).reshape(-1, 4) for b in bodies])
        assert {tuple(r) for r in sent.tolist()} == {tuple(r) for r in X.tolist()}     # not one bit lost on the way
        lb = fl.label_oracle(spec_file(tmp_path, FOREIGN.format(url=url)))
        assert torch.equal(lb(X), (X @ A.T).argmax(1))
        with pytest.raises(BadSpec, match="does not answer gradient, only values, labels"):
            fl.gradient_oracle(spec_file(tmp_path, FOREIGN.format(url=url)))
        g = fl.gradient_oracle(spec_file(tmp_path, EXPLAIN.format(url=url)), 1)
        y, grad = g(X)
        torch.testing.assert_close(y, X @ A[1])
        assert torch.equal(grad, A[1].expand(10, 4))
        moved = FOREIGN.format(url=url).replace("/v1/predict", "/moved")
        with pytest.raises(TargetError, match="redirects to https://elsewhere"):
            fl.value_oracle(spec_file(tmp_path, moved))(X)
        with pytest.raises(TargetError, match="404"):
            fl.value_oracle(spec_file(tmp_path, FOREIGN.format(url=url).replace("v1", "v2")))(X)
        with pytest.raises(TargetError, match="YAML file"):
            fl.value_oracle(url)                        # not ours: it has no /health


def test_labels_are_read_off_values_where_the_api_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREIGN_ID", "7")
    text = "\n".join(line for line in FOREIGN.splitlines() if "labels" not in line)
    with serving(foreign()) as url, authorised(ME):
        lb = fl.label_oracle(spec_file(tmp_path, text.format(url=url)))
        assert torch.equal(lb(X), (X @ A.T).argmax(1))


# What is done with replies

def scripted(*replies):
    """An API on bare sockets that gives these replies in turn: (status, headers, body), or None to hang up."""
    left = list(replies)
    times: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            times.append(time.monotonic())
            reply = left.pop(0)
            if reply is None:
                self.close_connection = True            # not one byte
                return
            status, headers, body = reply
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler, times


@contextmanager
def listening(handler, context=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}/predict"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


OK = (200, {}, b'{"out": [[1.0, 2.0]]}')
ONE = torch.zeros(1, 4, dtype=torch.float64)


def plain(tmp_path, url, more=""):
    return open_endpoint(spec_file(tmp_path, GOOD.replace("http://127.0.0.1:1/predict", url) + more), "values",
                         authorised=ME)


@pytest.mark.parametrize("bad", [
    None, (502, {}, b""), (408, {}, b""), (200, {}, b""), (200, {}, b'{"out": [[1.0, 2.'), (200, {}, b'{"o": 1}'),
    (200, {}, b'{"out": [[1.0, 2.0], [1.0, 2.0]]}'), (200, {}, b'{"out": [[1.0]]}'),
    (200, {}, b'{"out": [["1", "2"]]}'),
    (200, {}, b'{"out": [[1.0, null]]}'), (200, {}, b'{"out": [[1.0, Infinity]]}'), (200, {}, b'{"out": 3}'),
    (200, {}, b'{"out": [[1.0], [2.0, 3.0]]}'), (200, {}, b"\xff\xfe"), (200, {}, b"[" * 50_000),
    (200, {}, b'{"out": [[true, false]]}'), (200, {}, b" " * 200_000), (200, {"content-encoding": "gzip"}, b"zip"),
    (200, {}, b'{"out": [[1.0, 1' + b"0" * 400 + b"]]}"),
])
def test_a_bad_reply_is_asked_again_and_counted_as_lost(tmp_path, bad):
    handler, _ = scripted(bad, OK)
    with listening(handler) as url:
        source = plain(tmp_path, url)
        assert source.answer(ONE).tolist() == [[1.0, 2.0]]
        assert (source.sent, source.lost) == (2, 1)
        source.close()


def test_retry_after_is_honoured_in_seconds_and_as_a_date(tmp_path):
    when = email.utils.formatdate(time.time() + 2, usegmt=True)
    handler, times = scripted((429, {"retry-after": "1"}, b""), (503, {"retry-after": when}, b""), OK)
    with listening(handler) as url:
        source = plain(tmp_path, url)
        source.answer(ONE)
        source.close()
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[0] >= 0.9 and source.lost == 0 and source.bill.refused == 2
    assert parse_retry_after("soon") == parse_retry_after("-3") == parse_retry_after("nan") == 0.0
    handler, _ = scripted((429, {"retry-after": "86400"}, b""))
    with listening(handler) as url, pytest.raises(TargetError, match="only after 86400 s"):
        plain(tmp_path, url).answer(ONE)


def test_the_rate_limit_spaces_requests(tmp_path):
    handler, times = scripted(*[OK] * 6)
    with listening(handler) as url:
        source = plain(tmp_path, url, "    rows_per_request: 1\n    rate_limit: 20\n")
        source.answer(ONE.expand(6, 4))
        source.close()
    assert max(times) - min(times) >= 5 / 20 - 0.02


def test_concurrency_is_bounded(tmp_path):
    now, most, lock = 0, 0, threading.Lock()
    handler, _ = scripted(*[OK] * 12)
    post = handler.do_POST

    def counted(self):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        post(self)
        with lock:
            now -= 1

    handler.do_POST = counted
    with listening(handler) as url:
        source = plain(tmp_path, url, "    rows_per_request: 1\n    concurrency: 3\n")
        source.answer(ONE.expand(12, 4))
        source.close()
    assert 1 < most <= 3


def test_batches_are_cut_so_that_requests_overlap_where_more_of_them_cost_nothing(tmp_path):
    source = plain(tmp_path, "http://127.0.0.1:1/predict", "    rows_per_request: 64\n")
    assert [source.request_size(n) for n in (1, 60, 1000)] == [64, 64, 64]
    source = plain(tmp_path, "http://127.0.0.1:1/predict", "    rows_per_request: 64\n    least_rows: 10\n")
    assert [source.request_size(n) for n in (1, 60, 160, 1000)] == [10, 10, 20, 64]         # four may be under way
    net = torch.nn.Linear(4, 1, dtype=torch.float64)
    x = torch.randn(1000, 4, generator=fl.generator(0), dtype=torch.float64)
    with serving(make_app(net)) as url, serving(make_app(net, rate_limit=100.0)) as limited:
        for address, requests in ((url, 4), (limited, 1)):                                  # a limit counts requests
            own = open_endpoint(address, "values", authorised=ME)
            assert torch.allclose(own.answer(x), net(x).detach(), atol=1e-12) and own.bill.requests == requests
            own.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_is_verified(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    handler, _ = scripted(OK)
    with listening(handler, context) as url:
        source = plain(tmp_path, url, "    attempts: 1\n")
        with pytest.raises(TargetError, match="CERTIFICATE_VERIFY_FAILED"):
            source.answer(ONE)
        known = plain(tmp_path, url, f"    verify: {cert}\n")
        assert known.answer(ONE).tolist() == [[1.0, 2.0]]
        source.close(), known.close()
    with pytest.raises(BadSpec, match="cannot be read"):
        plain(tmp_path, url, "    verify: nowhere.pem\n")


def test_httpx_is_an_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(Missing, match=r"foldline\[http\]"):
        open_endpoint("http://127.0.0.1:1", "values", authorised=ME)
    monkeypatch.undo()
    assert httpx.Client is endpoint_calls.client_library()


def test_paths_and_numbers():
    assert take({"a": [{"b": [1, 2]}, {"b": [3, 4]}]}, "a.*.b.1") == [2, 4]
    assert take([5], "") == [5]
    body: dict = {"a": {"z": 1}}
    put(body, "a.b.c", 3)
    assert body == {"a": {"z": 1, "b": {"c": 3}}}
    x = torch.tensor([0.1, 1e-320, 1.7976931348623157e308, 2**-52 + 1], dtype=torch.float64)
    assert torch.equal(numbers(x.tolist()), x)
    assert ordered([0, 1, 2], 3) is None and ordered([2, 0, 1], 3).tolist() == [1, 2, 0]
    for wrong in ([0, 1], [0, 0, 1], [1, 2, 3]):
        with pytest.raises(TargetError, match="ids"):
            ordered(wrong, 3)

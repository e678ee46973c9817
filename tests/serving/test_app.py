"""The doors of `foldline serve`: a real server on loopback, asked by plain httpx and by our own client."""

from __future__ import annotations

import json

import httpx
import pytest
import torch

from foldline.errors import BudgetExhausted, TargetError
from foldline.oracles.endpoint import open_endpoint
from foldline.oracles.endpoint_wire import SAFETENSORS, pack, unpack
from foldline.serving.app import make_app
from foldline.serving.run import serving
from foldline.serving.steady import Steady
from foldline.serving.victim import Switches, Victim

from .conftest import small_net

ME = "my own server in a test"


def truth(net, x, output=0):
    """What torch says, to rounding: the server's products have other shapes."""
    leaf = x.to(next(net.parameters()).dtype).clone().requires_grad_(True)
    y = net(leaf)
    return y.detach(), torch.autograd.grad(y[:, output].sum(), leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_client_reads_what_the_server_computed_to_the_last_bit(dtype, x):
    net = small_net(dtype)
    y, g = truth(net, x, 2)
    victim = Victim(net, Switches())
    with serving(make_app(net, max_rows=64)) as url:
        values = open_endpoint(url, "values", authorised=ME)
        assert (values.dim, values.width, values.dtype, values.rows_per_request) == (12, 3, dtype, 64)
        got = values.answer(x)
        assert got.dtype == dtype and torch.equal(got, victim.ask("values", x))
        torch.testing.assert_close(got, y, rtol=1e-5, atol=1e-5)
        explained = open_endpoint(url, "gradient", output=2, authorised=ME).answer(x)
        assert torch.equal(explained, victim.ask("gradient", x, output=2))
        torch.testing.assert_close(explained, torch.cat([y[:, 2:], g], 1), rtol=1e-5, atol=1e-5)
        labels = open_endpoint(f"{url}/label", "labels", authorised=ME).answer(x)
        assert labels.dtype == torch.int64 and torch.equal(labels[:, 0], y.argmax(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_json_loses_no_bits_either_way(dtype, x):
    net = small_net(dtype)
    x = torch.cat([x, x * 1e-300, x.nextafter(torch.ones_like(x))])
    expected = Victim(net, Switches()).ask("gradient", x, output=1)
    with serving(make_app(net)) as url:
        reply = httpx.post(f"{url}/explain?output=1", json={"rows": x.tolist(), "ids": list(range(5, 5 + len(x)))})
    found = reply.json()
    block = torch.cat([torch.tensor(found["values"], dtype=torch.float64)[:, None],
                       torch.tensor(found["gradients"], dtype=torch.float64)], 1)
    assert torch.equal(block, expected.double())
    assert found["ids"] == list(range(5, 5 + len(x)))


def test_a_row_has_one_answer_whatever_it_is_asked_with():
    net = small_net(torch.float32, (784, 50, 50, 1))
    x = torch.rand(500, 784, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for kind in ("values", "gradient"):
        whole = Victim(net, Switches()).ask(kind, x)
        for low, high in ((0, 1), (3, 20), (7, 491), (499, 500), (63, 66)):
            assert torch.equal(Victim(net, Switches()).ask(kind, x[low:high]), whole[low:high])


def test_without_fixed_blocks_it_would_not(net):
    """Why steady.py exists: if this ever fails, the padding may go."""
    net = small_net(torch.float32, (784, 50, 50, 1))
    x = torch.rand(500, 784, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = Steady(Victim(net, Switches()).bare("values", 0).source, 500)
    moved = [torch.equal(source.source.answer(x[i:i + 1]), source.answer(x)[i:i + 1]) for i in range(40)]
    assert not all(moved)


BAD = [
    ({"content": b""}, 422),
    ({"content": b"{"}, 422),
    ({"content": b"[" * 60_000}, 422),
    ({"json": {}}, 422),
    ({"json": {"rows": []}}, 422),
    ({"json": {"rows": [[]]}}, 422),
    ({"json": {"rows": [[1.0] * 12, [1.0] * 11]}}, 422),
    ({"json": {"rows": [[1.0] * 11]}}, 422),
    ({"json": {"rows": [["1"] * 12]}}, 422),
    ({"json": {"rows": [[None] * 12]}}, 422),
    ({"json": {"rows": [[1.0] * 12], "ids": [1, 2]}}, 422),
    ({"json": {"rows": [[1.0] * 12], "ids": [2**70]}}, 422),
    ({"json": {"rows": [[1.0] * 12], "more": 1}}, 422),
    ({"json": {"rows": [[1.0] * 12] * 9}}, 413),
    ({"content": json.dumps({"rows": [[1e999] * 12]}).encode()}, 422),
    ({"content": b'{"rows": [[NaN,0,0,0,0,0,0,0,0,0,0,0]]}'}, 422),
    ({"content": b'{"rows": [[' + b"9" * 5000 + b',0,0,0,0,0,0,0,0,0,0,0]]}'}, 422),
    ({"json": {"rows": [[1e308] * 12]}}, 422),                  # the model overflows: no finite answer
    ({"content": b"x" * 200_000}, 413),
    ({"content": b"rows", "headers": {"content-type": "text/plain"}}, 415),
    ({"content": b"rows", "headers": {"content-type": "application/json", "content-encoding": "gzip"}}, 415),
    ({"content": b"rows", "headers": {"content-type": SAFETENSORS}}, 422),
    ({"content": pack(rows=torch.ones(2, 12))[:-3], "headers": {"content-type": SAFETENSORS}}, 422),
    ({"content": pack(rows=torch.ones(2, 12, dtype=torch.int64)), "headers": {"content-type": SAFETENSORS}}, 422),
    ({"content": pack(rows=torch.full((2, 12), float("nan"))), "headers": {"content-type": SAFETENSORS}}, 422),
    ({"content": pack(other=torch.ones(2, 12)), "headers": {"content-type": SAFETENSORS}}, 422),
]


def test_nonsense_is_refused_with_a_reason_and_the_server_lives(net):
    with serving(make_app(net, max_rows=8)) as url, httpx.Client() as client:
        for request, status in BAD:
            for door in ("predict", "label", "explain"):
                reply = client.post(f"{url}/{door}", **request)
                if door == "label" and request.get("json") == {"rows": [[1e308] * 12]}:
                    continue                                    # a label of an overflow is still a label
                assert reply.status_code == status, (door, request, reply.text)
                assert reply.json()["detail"]
        for query in ("output=3", "output=-1", "output=x", "method=magic"):
            assert client.post(f"{url}/explain?{query}", json={"rows": [[0.5] * 12]}).status_code == 422

        def endless():
            for _ in range(1000):
                yield b"x" * 10_000

        assert client.post(f"{url}/predict", content=endless()).status_code == 413
        assert client.get(f"{url}/predict").status_code == 405
        assert client.get(f"{url}/health").json()["status"] == "ok"


def test_a_model_that_fails_is_a_500_that_says_nothing_of_its_inside():
    def broken(x):
        raise RuntimeError("secret path")

    broken.dim, broken.outputs = 12, 1
    with serving(make_app(broken)) as url:
        reply = httpx.post(f"{url}/predict", json={"rows": [[0.5] * 12]})
    assert reply.status_code == 500 and "secret" not in reply.text


def test_the_key_is_asked_for_and_never_sent_in_the_clear(net, monkeypatch):
    with serving(make_app(net, api_key="hunter2 ü")) as url:
        assert httpx.post(f"{url}/predict", json={"rows": [[0.5] * 12]}).status_code == 401
        with pytest.raises(TargetError, match="API key"):
            open_endpoint(url, "values", authorised=ME).answer(torch.zeros(1, 12))
        monkeypatch.setenv("FOLDLINE_API_KEY", "wrong")
        with pytest.raises(TargetError, match="401"):
            open_endpoint(url, "values", authorised=ME).answer(torch.zeros(1, 12))
        monkeypatch.setenv("FOLDLINE_API_KEY", "hunter2 ü")
        assert open_endpoint(url, "values", authorised=ME).answer(torch.zeros(1, 12)).shape == (1, 3)
    with pytest.raises(ValueError, match="not https"):
        open_endpoint("http://example.invalid/predict", "values", authorised=ME)


def test_the_rate_limit_holds_and_the_client_obeys_it(net, x):
    app = make_app(net, max_rows=100, rate_limit=2.0)
    with serving(app) as url:
        source = open_endpoint(url, "values", authorised=ME)
        got = source.answer(x)                                  # three requests: two at once, the third after a wait
        assert torch.equal(got, Victim(net, Switches()).ask("values", x))
        assert source.bill.refused >= 100 and source.lost == 0
        with httpx.Client() as client:
            replies = [client.post(f"{url}/predict", json={"rows": [[0.5] * 12]}) for _ in range(4)]
        refused = [r for r in replies if r.status_code == 429]
        assert refused and all(int(r.headers["retry-after"]) >= 1 for r in refused)


def test_a_query_budget_ends_the_run_as_a_budget_does(net, x):
    with serving(make_app(net, switches=Switches(query_budget=250))) as url:
        source = open_endpoint(url, "values", authorised=ME)
        source.answer(x[:200])
        with pytest.raises(BudgetExhausted) as caught:
            source.answer(x[:51])
        assert (caught.value.wanted, caught.value.used, caught.value.budget) == (51, 200, 250)
        source.answer(x[:50])


def test_top_label_and_no_explanations_close_their_doors(net, x):
    def statuses(url):
        doors = ("predict", "explain", "label")
        return [httpx.post(f"{url}/{door}", json={"rows": [[0.5] * 12]}).status_code for door in doors]

    with serving(make_app(net, switches=Switches(top_label=True))) as url:
        assert statuses(url) == [403, 403, 200]
        assert httpx.get(f"{url}/health").json()["answers"] == ["labels"]
        assert open_endpoint(url, "labels", authorised=ME).answer(x).shape == (300, 1)
        with pytest.raises(ValueError, match="does not answer gradient"):
            open_endpoint(url, "gradient", authorised=ME)
    with serving(make_app(net, switches=Switches(no_explanations=True))) as url:
        assert statuses(url) == [200, 403, 200]


def test_explanations_by_name(net, x):
    y, g = truth(net, x, 1)
    with serving(make_app(net)) as url:
        def ask(method):
            return open_endpoint(f"{url}/explain?method={method}", "gradient", output=1, authorised=ME).answer(x)
        torch.testing.assert_close(ask("gradient"), torch.cat([y[:, 1:2], g], 1))
        torch.testing.assert_close(ask("gradient_x_input"), torch.cat([y[:, 1:2], g * x], 1))
        # Completeness: integrated gradients add up to f(x) - f(0), up to the quadrature across folds.
        total = ask("integrated_gradients")[:, 1:].sum(1)
        assert float((total - (y[:, 1] - net(torch.zeros(1, 12).double())[0, 1].item())).abs().median()) < 0.02
        smooth = ask("smoothgrad")
        assert torch.equal(smooth[:40], open_endpoint(f"{url}?method=smoothgrad", "gradient", output=1,
                                                      authorised=ME).answer(x[:40]))
        assert not torch.equal(smooth[:, 1:], g)
        cosine = torch.nn.functional.cosine_similarity(smooth[:, 1:], g)
        assert float(cosine.median()) > 0.8
    with serving(make_app(net, switches=Switches(smoothgrad=True))) as url:
        forced = open_endpoint(url, "gradient", output=1, authorised=ME).answer(x)
        assert torch.equal(forced, smooth)


def test_openapi_names_every_door_and_every_refusal(net):
    with serving(make_app(net)) as url:
        api = httpx.get(f"{url}/openapi.json").json()
    assert set(api["paths"]) == {"/predict", "/label", "/explain", "/health"}
    for door in ("/predict", "/label", "/explain"):
        assert {"200", "401", "403", "413", "415", "422", "429"} <= set(api["paths"][door]["post"]["responses"])


def test_safetensors_in_json_out_and_the_other_way(net, x):
    with serving(make_app(net)) as url:
        binary = pack(rows=x)
        a = httpx.post(f"{url}/predict", content=binary, headers={"content-type": SAFETENSORS}).json()["values"]
        b = httpx.post(f"{url}/predict", json={"rows": x.tolist()}, headers={"accept": SAFETENSORS}).content
    assert torch.equal(torch.tensor(a, dtype=torch.float64), unpack(b)["values"])


def test_each_defence_does_what_it_says_and_only_that(net, x):
    y, g = truth(net, x, 0)

    def ask(switches, kind, door=""):
        with serving(make_app(net, switches=switches)) as url:
            return open_endpoint(f"{url}{door}", kind, authorised=ME).answer(x)

    rounded = ask(Switches(decimals=2), "values")
    assert float((rounded - y).abs().max()) <= 0.005 + 1e-12
    assert torch.equal(rounded, torch.round(rounded, decimals=2))
    noisy = ask(Switches(noise=0.1, seed=1), "values")
    assert 0.08 < float((noisy - y).std()) < 0.12
    assert torch.equal(noisy, ask(Switches(noise=0.1, seed=1), "values"))       # repeating does not average it away
    assert not torch.equal(noisy, ask(Switches(noise=0.1, seed=2), "values"))
    clipped = ask(Switches(clip=0.1), "gradient")
    torch.testing.assert_close(clipped[:, 1:], g.clamp(-0.1, 0.1))
    torch.testing.assert_close(clipped[:, 0], y[:, 0])
    coarse = ask(Switches(bits=2), "gradient")[:, 1:]
    assert all(len(row.unique()) <= 3 for row in coarse)
    both = ask(Switches(bits=8, decimals=1, smoothgrad=True, noise=0.01, clip=1.0), "gradient")
    assert torch.equal(both, torch.round(both, decimals=1))
    for switches in (Switches(decimals=0), Switches(noise=5.0), Switches(clip=0.1), Switches(bits=1)):
        assert torch.equal(ask(switches, "labels")[:, 0], y.argmax(1))


def test_all_outputs_explained_at_once(net, x):
    victim = Victim(net, Switches())
    each = [victim.ask("gradient", x, output=j) for j in range(3)]
    with serving(make_app(net, max_rows=64)) as url:
        block = open_endpoint(url, "gradient", output="all", authorised=ME).answer(x)
        assert httpx.post(f"{url}/explain?output=all", json={"rows": x[:2].tolist()}).json()["gradients"][1][2] == \
            each[2][1, 1:].tolist()
    assert torch.equal(block[:, :3], torch.stack([e[:, 0] for e in each], 1))
    assert torch.equal(block[:, 3:].reshape(300, 3, 12), torch.stack([e[:, 1:] for e in each], 1))


def test_imitation_asks_a_server_for_its_explanations(net, x, tmp_path):
    """One call, the same student: from a module and from the server that serves it, with a run folder."""
    import foldline as fl
    from foldline.oracles.authorisation import authorised
    from foldline.randomness import generator

    def imitated(target, **run):
        student = small_net(sizes=(12, 3))
        return fl.imitate(target, student, x[:20], explain="gradient", rng=generator(0), steps=30, **run)

    here = imitated(net)
    with serving(make_app(net)) as url, authorised(ME):
        there = imitated(url, run=tmp_path / "run")
    assert there.queries == here.queries == 21          # one row is asked twice, to notice random answers
    torch.testing.assert_close(there.network(x), here.network(x), rtol=1e-4, atol=1e-4)

"""schemathesis against the server's own OpenAPI; benchmarks/http_fuzz.py sends 5,000 requests, this a few."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from foldline.serving.app import make_app
from foldline.serving.run import serving
from foldline.serving.victim import Switches

from .conftest import small_net


@pytest.mark.filterwarnings("ignore::DeprecationWarning:schemathesis.*", "ignore::DeprecationWarning:jsonschema.*")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_brings_the_server_down(mode):
    app = make_app(small_net(sizes=(3, 4, 2)), max_rows=4, switches=Switches(decimals=3, noise=0.1, clip=1.0, bits=4))
    statuses: set[int] = set()
    with serving(app) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for path in ("/predict", "/label", "/explain"):
            @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
            @settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))
            def ask(case):
                reply = case.call()
                statuses.add(reply.status_code)
                assert reply.status_code < 500, reply.text

            ask()
    assert statuses & {200, 422}

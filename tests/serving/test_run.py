"""Servers end: with their block, with their parent, by themselves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import httpx
import pytest
import torch

from foldline.errors import TargetError
from foldline.oracles.endpoint import open_endpoint
from foldline.serving.app import make_app
from foldline.serving.run import bound_socket, serving, serving_process

ME = "my own server in a test"


def closed(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0


def test_a_server_ends_with_its_block_even_if_the_block_fails(net):
    threads = threading.active_count()
    url = ""

    def fails():
        nonlocal url
        with serving(make_app(net)) as url:
            assert url.startswith("http://127.0.0.1:") and httpx.get(f"{url}/health").status_code == 200
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fails()
    assert closed(url) and threading.active_count() <= threads + 1      # anyio keeps one worker for a while


def test_a_taken_port_is_said_at_once(net):
    with serving(make_app(net)) as url, pytest.raises(TargetError, match=r"cannot listen on 127\.0\.0\.1 port"):
        bound_socket("127.0.0.1", int(url.rsplit(":", 1)[1]))


def test_two_servers_at_once(net):
    with serving(make_app(net)) as a, serving(make_app(net)) as b:
        x = torch.ones(3, 12, dtype=torch.float64)
        assert a != b
        assert torch.equal(*(open_endpoint(u, "values", authorised=ME).answer(x) for u in (a, b)))


PARENT = """
    import sys, time
    from foldline.serving.run import serving_process
    with serving_process("demo:logistic", "--stop-after", "60", "--decimals", "3") as url:
        print(url, flush=True)
        time.sleep(60)
"""


def test_a_child_answers_and_dies_with_its_parent_even_by_sigkill():
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PARENT)], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert parent.stdout is not None
    try:
        url = parent.stdout.readline().strip()
        block = open_endpoint(url, "values", authorised=ME).answer(torch.full((4, 64), 0.5, dtype=torch.float64))
        assert block.shape == (4, 10) and torch.equal(block, torch.round(block, decimals=3))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        parent.stdout.close()
    deadline = time.monotonic() + 15
    while not closed(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert closed(url)


def test_a_child_that_cannot_start_says_so(capfd):
    with pytest.raises(TargetError, match="did not start"), serving_process("demo:nothing"):
        pass
    assert "There is no demo:nothing" in capfd.readouterr().err

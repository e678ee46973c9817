"""Servers that are sure to end: in a thread for as long as a `with` lasts, or in a child that dies with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from foldline.errors import Missing, TargetError

START_SECONDS = 60.0


def uvicorn_server(app: Any, host: str, port: int, *, log_level: str = "critical") -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise Missing("foldline serve needs uvicorn and fastapi: pip install 'foldline[serve]'.") from error
    config = uvicorn.Config(app, host=host, port=port, log_level=log_level, lifespan="off", access_log=False,
                            timeout_graceful_shutdown=2, timeout_keep_alive=30, server_header=False)
    return uvicorn.Server(config)


def bound_socket(host: str, port: int) -> socket.socket:
    """Bound before the server starts, so that port 0 has a number and a taken port is an error with a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; without, each small reply waits 40 ms for an ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise TargetError(f"The server cannot listen on {host} port {port}: {error.strerror or error}.") from error
    return sock


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def serving(app: Any, *, port: int = 0) -> Iterator[str]:
    """The address of `app` on loopback; the server ends with the block."""
    sock = bound_socket("127.0.0.1", port)
    server = uvicorn_server(app, "127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="foldline-serve", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise TargetError("The server on loopback did not start.")
            time.sleep(0.005)
        yield address(sock)
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


@contextlib.contextmanager
def serving_process(target: str, *options: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The address of `foldline serve target options...` in a child, which ends with the block or with this process.

    The child watches its standard input: when this process is gone, even by SIGKILL, the pipe closes and it leaves.
    """
    command = [sys.executable, "-m", "foldline", "serve", target, "--port", "0", "--json", "-", "--with-stdin",
               *options]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **(environment or {})})
    assert child.stdin is not None and child.stdout is not None
    try:
        lines: list[str] = []
        for line in child.stdout:
            lines.append(line)
            if line.rstrip() == "}":
                break
        try:
            url: str = json.loads("".join(lines))["url"]
        except (ValueError, KeyError) as error:
            raise TargetError(f"foldline serve {target} did not start (exit code {child.wait(10)}).") from error
        yield url
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def run_until_told(app: Any, sock: socket.socket, *, log_level: str, stop_after: float | None,
                   with_stdin: bool) -> None:
    """Serve until Ctrl-C, SIGTERM, `stop_after` seconds, or (with_stdin) the end of standard input."""
    server = uvicorn_server(app, *sock.getsockname()[:2], log_level=log_level)

    def leave() -> None:
        server.should_exit = True

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        leave()

    if with_stdin:
        threading.Thread(target=watch, name="foldline-parent", daemon=True).start()
    timer = threading.Timer(stop_after, leave) if stop_after is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        server.run(sockets=[sock])
    finally:
        if timer is not None:
            timer.cancel()
        sock.close()

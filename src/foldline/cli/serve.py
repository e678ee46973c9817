"""foldline serve: a model behind an HTTP API."""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated

import typer

from foldline.cli.common import JsonOut, Seed, emit, say
from foldline.errors import BadInput, Missing

Model = Annotated[str, typer.Argument(metavar="MODEL", help="weights:m.safetensors, torch:pkg.mod:factory, "
                                      "onnx:m.onnx, sklearn:m.skops, py:mod:function, demo:digits, or a path.")]
DEFENCES, LIMITS = "Defences (all off unless given)", "Limits"


def command(
    model: Model,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="Loopback unless told otherwise.")] = "127.0.0.1",
    key_from: Annotated[str | None, typer.Option("--key-from", metavar="VARIABLE", rich_help_panel=LIMITS, help=(
        "The environment variable that holds the API key clients must send as X-API-Key."))] = None,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, max=1_000_000, rich_help_panel=LIMITS,
                                          help="Rows per request.")] = 1024,
    max_bytes: Annotated[int | None, typer.Option("--max-bytes", min=1024, rich_help_panel=LIMITS, help=(
        "Bytes per request; what max-rows can need unless given."))] = None,
    rate_limit: Annotated[float | None, typer.Option("--rate-limit", rich_help_panel=LIMITS,
                                                     help="Requests per second and client.")] = None,
    stop_after: Annotated[float | None, typer.Option("--stop-after", metavar="SECONDS", min=0, rich_help_panel=LIMITS,
                                                     help="Leave after so long.")] = None,
    decimals: Annotated[int | None, typer.Option("--decimals", min=0, max=15, rich_help_panel=DEFENCES,
                                                 help="Round values and explanations.")] = None,
    noise: Annotated[float | None, typer.Option("--noise", min=0, rich_help_panel=DEFENCES, help=(
        "Standard deviation of Gaussian noise on values and explanations."))] = None,
    top_label: Annotated[bool, typer.Option("--top-label", rich_help_panel=DEFENCES,
                                            help="Answer labels only.")] = False,
    clip: Annotated[float | None, typer.Option("--clip", min=0, rich_help_panel=DEFENCES, help=(
        "Cut every entry of an explanation to [-CLIP, CLIP]."))] = None,
    bits: Annotated[int | None, typer.Option("--bits", min=1, max=32, rich_help_panel=DEFENCES,
                                             help="Quantise explanations to so many bits.")] = None,
    smoothgrad: Annotated[bool, typer.Option("--smoothgrad", rich_help_panel=DEFENCES, help=(
        "Explain by SmoothGrad whatever is asked for."))] = False,
    no_explanations: Annotated[bool, typer.Option("--no-explanations", rich_help_panel=DEFENCES,
                                                  help="Close /explain.")] = False,
    query_budget: Annotated[int | None, typer.Option("--query-budget", min=0, rich_help_panel=DEFENCES, help=(
        "Rows that may be asked in all."))] = None,
    threshold: Annotated[float, typer.Option("--threshold", help="Label 1 of a single output starts here.")] = 0.0,
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="Inputs, if the model does not say.")] = None,
    seed: Seed = 0,
    json_out: JsonOut = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log requests.")] = False,
    with_stdin: Annotated[bool, typer.Option("--with-stdin", hidden=True)] = False,
) -> None:
    """Serve MODEL over HTTP: /predict, /label, /explain, /health and /openapi.json.

    \b
    foldline serve demo:digits
    foldline serve model.safetensors --port 8080 --decimals 3 --query-budget 2000
    KEY=... foldline serve model.onnx --key-from KEY --rate-limit 20

    Ask it with `foldline span http://127.0.0.1:8000 --i-am-authorised "my own server"`, or with curl:
    curl -s 127.0.0.1:8000/predict -H 'content-type: application/json' -d '{"rows": [[0, 0.5, ...]]}'
    """
    api_key = None
    if key_from is not None:
        api_key = os.environ.get(key_from)
        if not api_key:
            raise Missing(f"--key-from {key_from}: the environment variable {key_from} is not set or empty.")
    if rate_limit is not None and not rate_limit > 0:
        raise BadInput(f"--rate-limit is a positive number of requests per second, not {rate_limit}.")
    try:
        from foldline.serving.app import make_app
        from foldline.serving.run import address, bound_socket, run_until_told
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise Missing("foldline serve needs fastapi and uvicorn: pip install 'foldline[serve]'.") from error
    from foldline.serving.victim import Switches
    switches = Switches(decimals=decimals, noise=noise, top_label=top_label, clip=clip, bits=bits,
                        smoothgrad=smoothgrad, no_explanations=no_explanations, query_budget=query_budget, seed=seed)
    sock = bound_socket(host, port)         # first: a taken port is known at once, before a model is loaded
    try:
        app = make_app(model, switches=switches, api_key=api_key, max_rows=max_rows, max_bytes=max_bytes,
                       rate_limit=rate_limit, threshold=threshold, dim=dim, name=model)
    except BaseException:
        sock.close()
        raise
    url = address(sock)
    if not is_loopback(host):
        say(f"[yellow]Warning:[/] {host} is not loopback: everyone who reaches this machine can ask the model"
            f"{'' if api_key else ', and no API key is set (--key-from)'}. There is no TLS here: put a proxy in front.")
    on = ", ".join(f"{k} {v}" if v is not True else k for k, v in switches.on().items()) or "none"
    say(f"Serving {model} on {url} (defences: {on}). Ctrl-C stops it.", markup_safe=model)
    # Readers of the JSON may ask at once: the socket listens from here on, and the server picks up what waits.
    sock.listen(128)
    emit({"url": url, "openapi": f"{url}/openapi.json", "defences": switches.on(), "pid": os.getpid()}, json_out)
    flush()
    try:
        run_until_told(app, sock, log_level="info" if verbose else "warning", stop_after=stop_after,
                       with_stdin=with_stdin)
    except KeyboardInterrupt:               # how a server is meant to end
        say("Stopped.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def flush() -> None:
    """A parent reads the address from a pipe and waits for it."""
    import sys
    sys.stdout.flush()

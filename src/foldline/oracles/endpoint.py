"""An HTTP API as a source: `https://host` (our own server) or `http:spec.yaml` (anybody's).

A batch is cut into requests at places that depend on nothing but the batch, so a matrix product on the other side
sees the same rows together whatever was lost and asked again, and the answers are the same to the last bit.
Replies are checked for shape, count, order and finiteness before they count; those that fail are asked again
(endpoint_calls.py). Nothing is asked without a statement of authorisation (authorisation.py).

Requests are made by threads. What they compute is done by numpy: torch would start a team of OpenMP threads for each
of them, which spin while they wait and cost more than the work.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from foldline.errors import BadAnswer, BadSpec, TargetError
from foldline.oracles import authorisation, endpoint_wire
from foldline.oracles.endpoint_calls import Bill, Caller, client_library
from foldline.oracles.endpoint_spec import LOOPBACK, AnswerSpec, EndpointSpec, RequestSpec, checked_url, read_spec
from foldline.oracles.endpoint_wire import JSON, SAFETENSORS, numbers, ordered, parse_json, put, take
from foldline.oracles.protocols import Box, Kind, all_finite, joined

if TYPE_CHECKING:
    import httpx

API_KEY_VARIABLE = "FOLDLINE_API_KEY"
DOORS = ("predict", "label", "explain", "health")
REQUEST_BYTES = 8 << 20         # our own server: rows per request are chosen to stay below this
LEAST_ROWS = 256                # our own server: below this a request costs more than it saves by overlapping


def open_endpoint(text: str, kind: Kind, *, output: int | Literal["all"] = 0, threshold: float = 0.0,
                  dim: int | None = None, input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                  authorised: str | None = None, timeout: float | None = None,
                  attempts: int | None = None, overlap: bool = True) -> EndpointSource:
    """`text`: an http(s) address of `foldline serve`, or http:spec.yaml. `authorised`: by whose leave. overlap=False:
    no more requests than rows_per_request makes, for a server that shares this process and so gains nothing by them.

    output="all" asks our own server for the explanations of every output: width k + k d, the k values first.
    """
    said = authorisation.required(authorised, text)
    if text.startswith(("http://", "https://")):
        spec = own_server(text, kind, output, timeout=timeout or 30.0, attempts=attempts or 9)
    else:
        spec = read_spec(text.removeprefix("http:"))
        changes = {k: v for k, v in (("timeout", timeout), ("attempts", attempts)) if v is not None}
        spec = spec.model_copy(update=changes)
    if not overlap:
        spec = spec.model_copy(update={"least_rows": None})
    wanted = dim or (math.prod(input_shape) if input_shape else None)
    if wanted is not None and wanted != spec.dim:
        raise BadSpec(f"{text} takes rows of {spec.dim} numbers, not of {wanted}.")
    return EndpointSource(spec, kind, output=output, threshold=threshold, box=box, statement=said, name=text)


class EndpointSource:
    """Rows over HTTP. `sent`, `lost` and `bill` count what crossed the wire; `statement` is the authorisation."""

    def __init__(self, spec: EndpointSpec, kind: Kind, *, output: int | Literal["all"], threshold: float,
                 box: Box | None, statement: str, name: str) -> None:
        self.spec, self.kind, self.output, self.threshold = spec, kind, output, threshold
        self.statement, self.name = statement, name
        self.asked: Kind = "values" if kind == "labels" and spec.labels is None else kind
        self.part = spec.part(self.asked)
        if output == "all" and (kind != "gradient" or spec.outputs is None or spec.gradient is None
                                or "output=all" not in (spec.gradient.url or "")):
            raise BadSpec("output='all' asks a foldline server for the explanations of every output.")
        if kind == "gradient" and output != "all" and spec.outputs is not None and not 0 <= output < spec.outputs:
            raise BadSpec(f"output={output} was asked for, but the target has {spec.outputs} outputs.")
        if self.asked == "labels" and threshold != 0.0:
            raise BadSpec(f"The API at {spec.url} decides its labels itself: threshold={threshold} cannot be set.")
        self.dim = spec.dim
        explained = (spec.outputs or 1) * (1 + spec.dim) if output == "all" else 1 + spec.dim
        self.width = {"values": spec.outputs or 1, "gradient": explained, "labels": 1}[kind]
        self.dtype = torch.float32 if spec.dtype == "float32" else torch.float64
        self.box = box if box is not None else spec.box
        self.rows_per_request = spec.rows_per_request
        self.price_per_query = spec.price_per_query
        self.caller = caller_for(spec)
        weakref.finalize(self, self.caller.client.close)        # sockets end with the source, also without close()

    @property
    def bill(self) -> Bill:
        return copy.copy(self.caller.bill)

    @property
    def sent(self) -> int:
        """Rows of every attempt, also those asked again."""
        return self.caller.bill.sent

    @property
    def lost(self) -> int:
        """Rows that the target may have answered and billed, but whose reply never arrived whole."""
        return self.caller.bill.lost

    @property
    def on_lost(self) -> Callable[[int], None]:
        """Called with the rows of a lost reply before they are asked again: the oracle's ledger, which may refuse."""
        return self.caller.on_lost

    @on_lost.setter
    def on_lost(self, charge: Callable[[int], None]) -> None:
        self.caller.on_lost = charge

    @property
    def on_sent(self) -> Callable[[int], None]:
        """Called with the rows of every attempt before it leaves, and with minus them if the target refused."""
        return self.caller.on_sent

    @on_sent.setter
    def on_sent(self, note: Callable[[int], None]) -> None:
        self.caller.on_sent = note

    def close(self) -> None:
        self.caller.gate.stop.set()
        self.caller.client.close()

    def answer(self, x: Tensor) -> Tensor:
        return joined([block for _, block in self.answer_parts(x)])

    def answer_parts(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first row, block) of each request, in order, as they become whole: what a transcript may keep."""
        size = self.request_size(len(x))
        chunks = list(torch.split(x.detach().cpu().double(), size))
        starts = range(0, len(x), size)
        if len(chunks) == 1 or self.spec.concurrency == 1:
            for start, chunk in zip(starts, chunks, strict=True):
                yield start, self.ask(chunk)
            return
        self.caller.gate.stop.clear()
        pool = ThreadPoolExecutor(min(self.spec.concurrency, len(chunks)), "foldline-http")
        ahead = 2 * self.spec.concurrency           # requests are encoded when their turn is near, not all at once
        futures: dict[int, Future[Tensor]] = {}
        try:
            for i, start in enumerate(starts):
                for j in range(i, min(i + ahead, len(chunks))):
                    if j not in futures:
                        futures[j] = pool.submit(self.ask, chunks[j])
                yield start, futures.pop(i).result()
            pool.shutdown()
        except BaseException as error:
            self.caller.gate.stop.set()             # the other threads' pauses end
            # What is under way is billed, so it is waited for; but Ctrl-C does not wait.
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise

    def request_size(self, rows: int) -> int:
        """Rows of each request of a batch: as many as may be, or fewer where the target says that this is no worse.

        With two requests for each that may be under way, one is encoded and another checked and kept while the target
        works on the rest. The size depends on the number of rows alone.
        """
        most, least = self.rows_per_request, self.spec.least_rows
        if least is None or self.spec.concurrency == 1:
            return most
        return min(most, max(least, -(-rows // (2 * self.spec.concurrency))))

    def ask(self, x: Tensor) -> Tensor:
        """One request: (n, d) -> (n, width), checked."""
        request = self.part.request or self.spec.request
        content, sent_type = self.encode(x, request)
        largest = (1 << 16) + len(x) * 64 * (self.width if self.asked == "gradient" else 1 + (self.spec.outputs or 64))
        block = self.caller.call(
            self.part.method or self.spec.method, self.part.url or self.spec.url, rows=len(x), largest=largest,
            content=content, headers={"content-type": sent_type, "accept": sent_type},
            read=lambda body, kind: self.decode(body, kind, len(x), request))
        return self.as_labels(block) if self.kind == "labels" else block

    def encode(self, x: Tensor, request: RequestSpec) -> tuple[bytes, str]:
        if request.encoding == "safetensors":
            # A float32 model rounds its input first; sent rounded, the answer is the same and the request half as long.
            rows = x.numpy() if self.dtype == torch.float64 else x.numpy().astype(np.float32)
            return endpoint_wire.pack(rows=torch.from_numpy(rows), ids=torch.arange(len(x))), SAFETENSORS
        shaped = x.reshape(-1, *request.shape) if request.shape else x
        body: dict[str, Any] = copy.deepcopy(request.extra)
        put(body, request.rows, shaped[0].tolist() if request.single else shaped.tolist())
        if request.ids:
            put(body, request.ids, list(range(len(x))))
        if self.asked == "gradient" and self.part.output:
            put(body, self.part.output, self.output)
        return json.dumps(body, allow_nan=False).encode(), JSON

    def decode(self, body: bytes, content_type: str, rows: int, request: RequestSpec) -> Tensor:
        part = self.part
        if SAFETENSORS in content_type:
            try:
                found: Any = endpoint_wire.unpack(body)
            except ValueError as error:
                raise BadAnswer(f"The reply is {error}") from error
            block, value, ids = (found.get(p) if p else None for p in (part.answers, part.value, part.ids))
            if block is None or (part.value and value is None) or (part.ids and ids is None):
                raise BadAnswer(f"The reply holds {sorted(found)}, not what was asked.")
        else:
            found = parse_json(body)
            if request.single:                      # the reply of one row has no list around it: its own row axis
                found = [found]
                block, value, ids = (take(found, f"*.{p}" if p else "*") if p is not None else None
                                     for p in (part.answers, part.value, part.ids))
            else:
                block, value, ids = (take(found, p) if p is not None else None
                                     for p in (part.answers, part.value, part.ids))
            block = numbers(self.named(block, part))
            value = None if value is None else numbers(value)
        return self.checked(block, value, ids, rows)

    def named(self, found: Any, part: AnswerSpec) -> Any:
        """Labels by name -> their number; scores by class name -> a row in the order of `classes`."""
        if part.classes is None or not isinstance(found, list):
            return found
        index = {name: i for i, name in enumerate(part.classes)}
        try:
            return [[row[name] for name in part.classes] if isinstance(row, dict) else index[row] for row in found]
        except (KeyError, TypeError) as error:
            raise BadAnswer("The reply names a class that the description does not, or leaves one out.") from error

    def checked(self, block: Tensor, value: Tensor | None, ids: Any, rows: int) -> Tensor:
        if block.ndim == 0 or len(block) != rows:
            raise BadAnswer(f"The reply has shape {tuple(block.shape)}; {rows} rows were asked.")
        block = block.reshape(rows, -1)
        if value is not None:
            if value.ndim == 0 or len(value) != rows:
                raise BadAnswer(f"The reply has {value.numel()} values; {rows} rows were asked.")
            block = torch.from_numpy(np.concatenate([value.reshape(rows, -1).numpy(),
                                                     block.to(value.dtype).numpy()], 1))
        width = self.spec.outputs if self.asked == "values" else self.width
        if block.shape[1] != width:
            raise BadAnswer(f"The reply has {block.shape[1]} numbers per row, not {width}.")
        if self.asked == "labels":
            whole = block.to(torch.int64)
            if not torch.equal(whole.to(block.dtype), block):
                raise BadAnswer("The reply has labels that are not whole numbers.")
            block = whole
        else:
            block = block if block.is_floating_point() else block.double()
            if not all_finite(block):
                raise BadAnswer("The reply has NaN or infinite numbers.")
        order = ordered(ids.tolist() if isinstance(ids, Tensor) else ids, rows) if ids is not None else None
        return block if order is None else block[order]

    def as_labels(self, block: Tensor) -> Tensor:
        if self.asked == "labels":
            return block
        labels = block.argmax(1) if block.shape[1] > 1 else (block[:, 0] >= self.threshold).to(torch.int64)
        return labels[:, None]


def caller_for(spec: EndpointSpec) -> Caller:
    httpx_client = client_library()
    import httpx
    loopback = all((urlsplit(u).hostname or "") in LOOPBACK
                   for u in (spec.url, *(p.url for p in (spec.values, spec.labels, spec.gradient) if p and p.url)))
    verify: Any = True
    if spec.verify is not None:
        import ssl
        with reading_certificates(spec.verify):
            verify = ssl.create_default_context(cafile=spec.verify)
    client: httpx.Client = httpx_client(
        headers={b"user-agent": b"foldline",
                 **{k.encode("latin-1"): v.encode() for k, v in spec.secret_headers().items()}},
        verify=verify, follow_redirects=False,
        timeout=httpx.Timeout(spec.timeout), trust_env=not loopback,      # a proxy has no business on loopback
        limits=httpx.Limits(max_connections=spec.concurrency, max_keepalive_connections=spec.concurrency))
    return Caller(client, attempts=spec.attempts, timeout=spec.timeout, rate=spec.rate_limit)


@contextlib.contextmanager
def reading_certificates(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:                                    # ssl.SSLError is one
        raise BadSpec(f"The certificates in {path} cannot be read: {error}.") from error


def own_server(url: str, kind: Kind, output: int | Literal["all"], *, timeout: float, attempts: int) -> EndpointSpec:
    """The spec of a `foldline serve`, as its /health tells it. ?method=smoothgrad in the address picks explanations."""
    parts = urlsplit(url)
    folder, _, last = parts.path.rstrip("/").rpartition("/")
    base = urlunsplit((parts.scheme, parts.netloc, folder if last in DOORS else parts.path.rstrip("/"), "", ""))
    headers = {"X-API-Key": f"${{{API_KEY_VARIABLE}}}"} if os.environ.get(API_KEY_VARIABLE) else {}
    common: dict[str, Any] = {"timeout": timeout, "attempts": attempts, "headers": headers}
    try:
        checked_url(url, bool(headers))
        probe = EndpointSpec(url=f"{base}/health", dim=1, outputs=1, values=AnswerSpec(answers=""), **common)
    except (ValueError, ValidationError) as error:
        raise BadSpec(f"The target {url} cannot be asked: {str(error).rstrip('.')}.") from error
    caller = caller_for(probe)
    try:
        health = caller.call("GET", f"{base}/health", rows=0, read=lambda body, _: parse_json(body), largest=1 << 20)
    except BadAnswer as error:
        raise TargetError(str(error)) from error
    except TargetError as error:
        raise TargetError(f"{error} Only a foldline server tells its shape at /health; describe any other API in a "
                          f"YAML file and name it http:spec.yaml.") from error
    finally:
        caller.client.close()
    try:
        fast = "safetensors" in health["encodings"]
        request = RequestSpec(rows="rows", encoding="safetensors" if fast else "json", ids=None if fast else "ids")
        rows = max(1, min(int(health["rows_per_request"]), REQUEST_BYTES // (8 * int(health["dim"]))))
        if output == "all":
            rows = max(1, min(rows, 4 * REQUEST_BYTES // (8 * int(health["dim"]) * int(health["outputs"]))))
        query = {**dict(parse_qsl(parts.query)), "output": str(output)}
        explain = f"{base}/explain?{urlencode(query)}"
        return EndpointSpec(
            url=f"{base}/predict", dim=health["dim"], outputs=health["outputs"], dtype=health["dtype"],
            box=health["box"], rows_per_request=rows, concurrency=2, request=request,
            least_rows=LEAST_ROWS if health.get("rate_limit") is None else None,     # a limit counts requests
            values=AnswerSpec(answers="values", ids="ids") if "values" in health["answers"] else None,
            labels=AnswerSpec(url=f"{base}/label", answers="labels", ids="ids"),
            gradient=AnswerSpec(url=explain, answers="gradients", value="values", ids="ids")
            if "gradient" in health["answers"] else None, **common)
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise BadSpec(f"{base}/health does not describe a foldline server; describe the API in a YAML file and name it "
                      f"http:spec.yaml.") from error

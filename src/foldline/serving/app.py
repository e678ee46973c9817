"""The API: /predict, /label, /explain and /health over one model.

Rows come as JSON lists or as safetensors and leave the way the Accept header asks. Whatever arrives, the answer is
a status below 500 unless the model itself is at fault. Annotations are evaluated here (no __future__ import), since
FastAPI reads those of the functions inside make_app.
"""

import hashlib
import hmac
import json
import logging
import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import Response
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from torch import Tensor

from foldline import __version__
from foldline.errors import BadAnswer, BadInput, FoldlineError
from foldline.oracles.endpoint_wire import JSON, SAFETENSORS, pack, unpack
from foldline.oracles.protocols import Kind
from foldline.serving.limits import RateLimit, RowBudget
from foldline.serving.switching import METHODS
from foldline.serving.victim import Switches, Victim

ROWS = 1024                 # per request, unless told otherwise
KEY_HEADER = "X-API-Key"
TEXT_PER_NUMBER = 26        # bytes: the longest repr of a double, a comma and a space
OPEN = Switches()           # no defence at all
NUMBERS = 1 << 24           # in one reply that explains all outputs
OUTPUT = "^(all|[0-9]{1,6})$"
log = logging.getLogger("foldline.serve")


class RowsBody(BaseModel):
    """Rows as JSON. `ids` are echoed beside the answers."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: list[list[Annotated[float, Field(allow_inf_nan=False)]]] = Field(min_length=1)
    ids: list[Annotated[int, Field(ge=-2**62, le=2**62)]] | None = None


@dataclass
class Counts:
    """What the server did: a test compares it with what the client thinks."""

    requests: int = 0
    rows: int = 0


def make_app(target: Any, *, switches: Switches = OPEN, api_key: str | None = None, max_rows: int = ROWS,
             max_bytes: int | None = None, rate_limit: float | None = None, threshold: float = 0.0,
             dim: int | None = None, input_shape: tuple[int, ...] | None = None,
             box: tuple[float, float] | None = None, name: str = "model") -> FastAPI:
    """`target`: a torch module, a callable or a target string."""
    victim = Victim(target, switches, threshold=threshold, dim=dim, input_shape=input_shape, box=box)
    limit = max_bytes or 65_536 + max_rows * (victim.dim * TEXT_PER_NUMBER + 32)
    rate = RateLimit(rate_limit) if rate_limit is not None else None
    budget = RowBudget(switches.query_budget) if switches.query_budget is not None else None
    counts, body = Counts(), body_schema(victim.dim)
    app = FastAPI(title="foldline serve", version=__version__, docs_url=None, redoc_url=None,
                  description="A model and its explanations over HTTP. The switches of its owner decide what leaves.")
    app.state.counts, app.state.victim = counts, victim
    # Named in OpenAPI only where a key is asked for.
    locks = [Depends(APIKeyHeader(name=KEY_HEADER, auto_error=False))] if api_key is not None else []

    def client(request: Request) -> str:
        """Who is asking: a digest of the key, or the address. 401 and 429 come from here."""
        key = request.headers.get(KEY_HEADER, "")
        if api_key is not None and not hmac.compare_digest(key.encode("latin-1"), api_key.encode("utf-8")):
            raise HTTPException(401, "The header X-API-Key is missing or wrong.", {"WWW-Authenticate": "APIKey"})
        host = request.client.host if request.client else ""
        who = hashlib.sha256(api_key.encode()).hexdigest() if api_key else host
        pause = rate.wait(who) if rate is not None else 0.0
        if pause > 0:
            raise HTTPException(429, "Too many requests.", {"Retry-After": str(math.ceil(pause))})
        return who

    Client = Annotated[str, Depends(client)]

    async def answer(request: Request, who: str, kind: Kind, *, output: int | None = 0,
                     method: str = "gradient") -> Response:
        if kind not in victim.answers:
            raise HTTPException(403, f"This server does not answer {kind}.")
        x, ids = read_rows(await whole_body(request, limit), request.headers.get("content-type", ""))
        if len(x) > max_rows:
            raise HTTPException(413, f"{len(x)} rows in one request; at most {max_rows} are taken.")
        if x.shape[1] != victim.dim:
            raise HTTPException(422, f"Rows need {victim.dim} numbers, not {x.shape[1]}.")
        if output is None and len(x) * victim.outputs * victim.dim > NUMBERS:
            most = NUMBERS // (victim.outputs * victim.dim)
            raise HTTPException(413, f"At most {most} rows are taken when all outputs are explained.")
        if budget is not None:
            used = budget.charge(who if api_key else "", len(x))
            if used is not None:
                raise HTTPException(403, {"code": "query_budget", "used": used, "budget": budget.rows,
                                          "message": "The rows that may be asked are used up."})
        counts.requests += 1
        counts.rows += len(x)
        try:
            block = await (run_in_threadpool(victim.ask_all, x, method=method) if output is None else
                           run_in_threadpool(victim.ask, kind, x, output=output, method=method))
        except (BadInput, BadAnswer) as error:
            raise HTTPException(422, str(error)) from error
        except FoldlineError as error:
            log.exception("the model failed")
            raise HTTPException(500, "The model failed.") from error
        return reply(kind, block, ids, request.headers.get("accept", ""))

    @app.get("/health", responses={200: {"description": "What is served, and how to ask for it."}})
    def health() -> dict[str, Any]:
        return {"status": "ok", "name": name, "foldline": __version__, "dim": victim.dim, "outputs": victim.outputs,
                "dtype": "float32" if victim.dtype == torch.float32 else "float64", "box": victim.box,
                "answers": victim.answers, "explanations": METHODS if "gradient" in victim.answers else [],
                "rows_per_request": max_rows, "bytes_per_request": limit, "rate_limit": rate_limit,
                "encodings": ["json", "safetensors"],
                "api_key": api_key is not None}

    @app.post("/predict", dependencies=locks, openapi_extra=body, responses=said("values", "(n, outputs)"))
    async def predict(request: Request, who: Client) -> Response:
        """Outputs of the model, a row each."""
        return await answer(request, who, "values")

    @app.post("/label", dependencies=locks, openapi_extra=body, responses=said("labels", "(n,)"))
    async def label(request: Request, who: Client) -> Response:
        """The number of the largest output, a row each."""
        return await answer(request, who, "labels")

    @app.post("/explain", dependencies=locks, openapi_extra=body,
              responses=said("gradients", "(n, dim) with values (n,), or (n, outputs, dim) with values (n, outputs)"))
    async def explain(request: Request, who: Client, output: Annotated[str, Query(pattern=OUTPUT)] = "0",
                      method: Annotated[str, Query(json_schema_extra={"enum": METHODS})] = METHODS[0]) -> Response:
        """The value of one output and what moved it; output=all: of every output."""
        if output != "all" and int(output) >= victim.outputs:
            raise HTTPException(422, f"There is no output {output}; the last is {victim.outputs - 1}.")
        if method not in METHODS:
            raise HTTPException(422, f"There is no explanation {method[:40]!r}, only {', '.join(METHODS)}.")
        return await answer(request, who, "gradient", output=None if output == "all" else int(output), method=method)

    return app


async def whole_body(request: Request, limit: int) -> bytes:
    """At most `limit` bytes: what is longer is refused before it is read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise HTTPException(413, f"The request has {length} bytes; at most {limit} are taken.")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "Compressed requests are not taken.")
    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise HTTPException(413, f"The request is longer than {limit} bytes.")
    except ClientDisconnect as error:
        raise HTTPException(400, "The request was not sent to its end.") from error
    return b"".join(parts)


def read_rows(body: bytes, content_type: str) -> tuple[Tensor, Tensor]:
    """(rows (n, d) as they came, ids (n,)), or 415 or 422."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SAFETENSORS:
        try:
            found = unpack(body, aligned=True)
        except ValueError as error:
            raise HTTPException(422, f"The request is {str(error)[:200]}") from error
        x, ids = found.get("rows"), found.get("ids")
        if x is None or x.ndim != 2 or len(x) == 0 or x.dtype not in (torch.float64, torch.float32):
            raise HTTPException(422, "The request needs a tensor 'rows' of shape (n, dim), n > 0, float64 or float32.")
    elif kind in (JSON, ""):
        try:
            parsed = RowsBody.model_validate_json(body)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False, include_context=False)[:10]
            detail = [{"loc": p["loc"], "msg": p["msg"], "type": p["type"]} for p in problems]
            raise HTTPException(422, detail) from error
        if len({len(row) for row in parsed.rows}) != 1:
            raise HTTPException(422, "Rows must all have the same length.")
        x = torch.tensor(parsed.rows, dtype=torch.float64)
        ids = None if parsed.ids is None else torch.tensor(parsed.ids, dtype=torch.int64)
    else:
        raise HTTPException(415, f"Requests are {JSON} or {SAFETENSORS}.")
    if ids is None:
        ids = torch.arange(len(x))
    if ids.dtype != torch.int64 or ids.shape != (len(x),):
        raise HTTPException(422, f"ids need one whole number for each of the {len(x)} rows.")
    return x, ids


def reply(kind: Kind, block: Tensor, ids: Tensor, accept: str) -> Response:
    found = {"values": {"values": block}, "labels": {"labels": block[:, 0]},
             "gradient": {"values": block[..., 0], "gradients": block[..., 1:]}}[kind]
    if SAFETENSORS in accept:
        return Response(pack(ids=ids, **found), media_type=SAFETENSORS)
    # Python writes a double by its shortest exact form; a float32 is first made a double, which is exact too.
    text = json.dumps({**{k: (t.double() if t.is_floating_point() else t).tolist() for k, t in found.items()},
                       "ids": ids.tolist()}, allow_nan=False)
    return Response(text, media_type=JSON)


def body_schema(dim: int) -> dict[str, Any]:
    """The request for OpenAPI, with this model's width. How many rows are too many is a limit (413), not a shape."""
    schema = RowsBody.model_json_schema()
    schema["properties"]["rows"]["items"].update(minItems=dim, maxItems=dim)
    return {"requestBody": {"required": True, "content": {
        JSON: {"schema": schema}, SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}}}


ERROR = {"content": {JSON: {"schema": {"type": "object", "required": ["detail"], "properties": {"detail": {}}}}}}


def said(name: str, shape: str) -> dict[int | str, dict[str, Any]]:
    """The replies of a door, for OpenAPI."""
    schema = {"type": "object", "required": [name, "ids"], "properties": {name: {"type": "array"}, "ids": {
        "type": "array", "items": {"type": "integer"}}}}
    return {200: {"description": f"{name} {shape} and the ids of the rows.", "content": {
                JSON: {"schema": schema}, SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}},
            400: {"description": "The request broke off.", **ERROR},
            401: {"description": "The API key is missing or wrong.", **ERROR},
            403: {"description": "Not served, or the query budget is used up.", **ERROR},
            413: {"description": "Too many rows or bytes.", **ERROR},
            415: {"description": "Neither JSON nor safetensors.", **ERROR},
            422: {"description": "Not a table of finite numbers of the right width.", **ERROR},
            429: {"description": "Too many requests; Retry-After says when.", **ERROR}}

"""A server that misbehaves on purpose, for trying a client against: a middleware around any app.

stall      the model answers, the reply comes after the client has given up
429, 500   refused with Retry-After; failed after the model answered
drop       the connection closes in the middle of the reply
truncate   a whole HTTP reply whose body is half of what it should be
rows       an answer is missing
nan        one number is NaN
order      the rows come back in reverse, with their ids: not a fault if the client reads ids
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import torch

from foldline.oracles.endpoint_wire import SAFETENSORS, pack, unpack

KINDS = ("stall", "429", "500", "drop", "truncate", "rows", "nan", "order")
HARMLESS = frozenset({"order"})
Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Faulty:
    """Of all requests, `rate` go wrong, each in a way drawn from `kinds`. `hit` counts them by kind."""

    def __init__(self, app: Any, *, rate: float = 0.1, seed: int = 0, stall: float = 1.0,
                 kinds: Sequence[str] = KINDS) -> None:
        self.app, self.rate, self.stall, self.kinds = app, rate, stall, tuple(kinds)
        self.draw = random.Random(seed)
        self.hit: Counter[str] = Counter()
        self.state = getattr(app, "state", None)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http" or self.draw.random() >= self.rate:
            await self.app(scope, receive, send)
            return
        kind = self.draw.choice(self.kinds)
        self.hit[kind] += 1
        if kind == "429":
            await say(send, 429, b'{"detail": "slow down"}', "application/json", {"retry-after": "0"})
            return
        status, content_type, body = await self.inner(scope, receive)
        if kind == "500":
            await say(send, 500, b"oops", "text/plain")
        elif kind == "stall":
            await asyncio.sleep(self.stall)
            await say(send, status, body, content_type)
        elif kind == "drop":
            await start(send, status, content_type, len(body) + 1000)
            await send({"type": "http.response.body", "body": body[:len(body) // 2], "more_body": True})
            # Leaving here, with bytes still promised, makes the server close the connection.
        elif kind == "truncate":
            await say(send, status, body[:len(body) // 2], content_type)
        else:
            await say(send, status, spoilt(body, content_type, kind) if status == 200 else body, content_type)

    async def inner(self, scope: Mapping[str, Any], receive: Any) -> tuple[int, str, bytes]:
        """What the app would have answered."""
        status, content_type, parts = 0, "", []

        async def collect(message: Message) -> None:
            nonlocal status, content_type
            if message["type"] == "http.response.start":
                status = message["status"]
                content_type = dict(message["headers"]).get(b"content-type", b"").decode()
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, collect)
        return status, content_type, b"".join(parts)


def spoilt(body: bytes, content_type: str, kind: str) -> bytes:
    if SAFETENSORS in content_type:
        return pack(**{k: spoil(t, kind, k) for k, t in unpack(body).items()})
    found = json.loads(body)
    if "ids" in found:
        found = {k: spoil(torch.tensor(v), kind, k).tolist() for k, v in found.items()}
    return json.dumps(found).encode()


def spoil(t: torch.Tensor, kind: str, name: str) -> torch.Tensor:
    if kind == "order":
        return t.flip(0)
    if kind == "rows":
        return t[:-1] if name != "ids" else t
    if not t.is_floating_point():                           # labels have no NaN; a half label is as wrong
        return t if name == "ids" else t.double() + 0.5
    t = t.clone()
    t.view(-1)[-1] = float("nan")
    return t


async def say(send: Send, status: int, body: bytes, content_type: str,
              headers: Mapping[str, str] | None = None) -> None:
    await start(send, status, content_type, len(body), headers)
    await send({"type": "http.response.body", "body": body})


async def start(send: Send, status: int, content_type: str, length: int,
                headers: Mapping[str, str] | None = None) -> None:
    head = {"content-type": content_type, "content-length": str(length), **(headers or {})}
    await send({"type": "http.response.start", "status": status,
                "headers": [(k.encode(), v.encode()) for k, v in head.items()]})

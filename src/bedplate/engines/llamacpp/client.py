"""HTTP to one card: the handful of llama.cpp server calls that the adapter uses.

Every foreign error is mapped here: no other module of the adapter sees aiohttp's.

No call outlives its card. The process's end is known from its pidfd, perhaps before its sockets'
ends are read, and aiohttp wakes no reader of a body whose session is closed under it. So every
wait here has a lifetime that `fail_calls` ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
import orjson

from bedplate.engines.base import JsonObject
from bedplate.engines.llamacpp.counters import Counters, parse_metrics
from bedplate.errors import (
    BedplateError,
    ContextTooLong,
    EngineError,
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    InvalidRequest,
)

CALL_SECONDS = 30.0
"""Longest wait for a call that does not generate. A slot call waits for the batch in progress."""
LINE_BYTES_MAX = 8 << 20
_DATA = b"data: "
_NO_EVENT = (b"", b":", b"\r")
_Answer = TypeVar("_Answer")


class CardClient:
    """One card's server at `address`, reached with its secret.

    Each call has its own connection: the server closes them after a stream without saying so, and a
    request sent into that moment would be lost.
    """

    def __init__(self, card: str, address: str, secret: str) -> None:
        self.address = address
        self._card = card
        self._gone = False
        self._waits: set[asyncio.Timeout] = set()
        self._http = aiohttp.ClientSession(
            base_url=address,
            headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            read_bufsize=LINE_BYTES_MAX,
        )

    def fail_calls(self) -> None:
        """Fail all calls in flight and all later ones with EngineLost: the process has ended."""
        self._gone = True
        for wait in self._waits:
            wait.reschedule(0.0)

    async def close(self) -> None:
        """Fail what is in flight and close all connections."""
        self.fail_calls()
        await self._http.close()

    async def complete(self, body: JsonObject) -> AsyncGenerator[list[JsonObject]]:
        """Stream one completion; each item holds all server events at hand, in order.

        Closing the iterator closes the connection, at which the server stops.
        """
        with self._mapped():
            post = self._http.post(
                "/completion", data=orjson.dumps(body), timeout=aiohttp.ClientTimeout(total=None)
            )
            async with await self._while_up(post) as response:
                if response.status != 200:
                    body_read = await self._while_up(response.read())
                    raise self._failure(response.status, body_read)
                rest = b""
                while chunk := await self._while_up(response.content.readany()):
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    events = [self._event(line) for line in lines if line[:1] not in _NO_EVENT]
                    if events:
                        yield events

    def _event(self, line: bytes) -> JsonObject:
        if line.startswith(_DATA):
            event = orjson.loads(line[len(_DATA) :])
            if isinstance(event, dict):
                if "error" in event:
                    raise self._failure(event["error"].get("code", 500), orjson.dumps(event))
                return event
        elif line.startswith(b"error: "):
            raise self._failure(500, b'{"error":' + line[len(b"error: ") :] + b"}")
        raise EngineProtocolError(f"card {self._card} sent a line that is not an event")

    async def tokenize(self, content: Sequence[str | int], *, add_special: bool) -> list[int]:
        """Return token ids of texts, one after the other; integers come back as they are."""
        answer = await self._call(
            "/tokenize", {"content": content, "add_special": add_special, "parse_special": True}
        )
        tokens = answer.get("tokens")
        if not isinstance(tokens, list):
            raise EngineProtocolError(f"card {self._card} answered /tokenize without tokens")
        return tokens

    async def save(self, slot: int, file_name: str) -> int:
        """Write the slot to the pool folder; return its tokens. Waits while the slot runs."""
        answer = await self._call(f"/slots/{slot}?action=save", {"filename": file_name})
        return int(answer["n_saved"])

    async def restore(self, slot: int, file_name: str) -> int:
        """Fill the slot from a file of the pool folder; return its tokens."""
        answer = await self._call(f"/slots/{slot}?action=restore", {"filename": file_name})
        return int(answer["n_restored"])

    async def erase(self, slot: int) -> None:
        """Empty the slot. Waits while the slot runs."""
        await self._call(f"/slots/{slot}?action=erase", {})

    async def embed(self, inputs: Sequence[str]) -> tuple[tuple[tuple[float, ...], ...], int]:
        """Return a vector for each input, and the tokens that they took together."""
        answer = await self._call("/v1/embeddings", {"input": list(inputs), "model": self._card})
        rows = sorted(answer["data"], key=lambda row: int(row["index"]))
        return tuple(tuple(row["embedding"]) for row in rows), int(answer["usage"]["prompt_tokens"])

    async def slots(self) -> list[JsonObject]:
        """Return the server's view of its slots, by slot id."""
        with self._mapped():
            rows = orjson.loads(await self._body(self._http.get("/slots")))
            return sorted(rows, key=lambda row: int(row["id"]))

    async def answers(self, path: str, within_s: float) -> bool:
        """Tell whether the server answers a GET in time; whatever it says is a sign of life."""
        try:
            async with asyncio.timeout(within_s):
                with self._mapped():
                    await self._body(self._http.get(path))
        except (TimeoutError, EngineTimeout, EngineLost):
            return False
        except BedplateError:
            pass
        return True

    async def counters(self) -> Counters:
        """Return the server's own totals."""
        with self._mapped():
            page = await self._body(self._http.get("/metrics"))
        return parse_metrics(page.decode())

    async def _call(self, path: str, body: JsonObject) -> JsonObject:
        with self._mapped():
            post = self._http.post(path, data=orjson.dumps(body))
            answer = orjson.loads(await self._body(post))
        if not isinstance(answer, dict):
            raise EngineProtocolError(f"card {self._card} answered {path} with no object")
        return answer

    async def _body(self, request: Awaitable[aiohttp.ClientResponse]) -> bytes:
        """Return the whole answer to a request."""
        async with await self._while_up(request) as response:
            body = await self._while_up(response.read())
            if response.status != 200:
                raise self._failure(response.status, body)
            return body

    async def _while_up(self, wait: Awaitable[_Answer]) -> _Answer:
        """Wait no longer than the card lives."""
        async with asyncio.timeout_at(0.0 if self._gone else None) as lifetime:
            self._waits.add(lifetime)
            try:
                return await wait
            finally:
                self._waits.discard(lifetime)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        if self._gone:
            raise EngineLost(f"card {self._card} is gone")
        try:
            yield
        except TimeoutError as error:
            if self._gone:
                raise EngineLost(f"card {self._card} ended in the middle of a call") from error
            raise EngineTimeout(f"card {self._card} did not answer in time") from error
        except RuntimeError as error:
            if not self._gone:
                raise
            # aiohttp's answer to a read from a connection that was closed here.
            raise EngineLost(f"card {self._card} ended in the middle of a call") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineLost(f"the connection to card {self._card} broke: {error}") from error
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise EngineProtocolError(f"card {self._card} sent what cannot be read") from error

    def _failure(self, status: int, body: bytes) -> BedplateError:
        try:
            error: Any = orjson.loads(body)["error"]
            message, kind = str(error["message"]), str(error.get("type", ""))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            message, kind = f"status {status}", ""
        if kind == "exceed_context_size_error":
            return ContextTooLong(message, param="messages")
        if status == 400:
            return InvalidRequest(f"the model server refused the request: {message}")
        return EngineError(f"card {self._card} failed: {message}")

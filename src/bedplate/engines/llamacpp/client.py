"""HTTP to one card: the handful of llama.cpp server calls that the adapter uses.

Every foreign error is mapped here: no other module of the adapter sees aiohttp's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


class CardClient:
    """One card's server at `address`, reached with its secret.

    Each call has its own connection: the server closes them after a stream without saying so, and a
    request sent into that moment would be lost.
    """

    def __init__(self, card: str, address: str, secret: str) -> None:
        self.address = address
        self._card = card
        self._http = aiohttp.ClientSession(
            base_url=address,
            headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            read_bufsize=LINE_BYTES_MAX,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def complete(self, body: JsonObject) -> AsyncGenerator[list[JsonObject]]:
        """Stream one completion; each item holds all server events at hand, in order.

        Closing the iterator closes the connection, at which the server stops.
        """
        with self._mapped():
            async with self._http.post(
                "/completion", data=orjson.dumps(body), timeout=aiohttp.ClientTimeout(total=None)
            ) as response:
                if response.status != 200:
                    raise self._failure(response.status, await response.read())
                rest = b""
                async for chunk in response.content.iter_any():
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
            async with self._http.get("/slots") as response:
                body = await response.read()
                if response.status != 200:
                    raise self._failure(response.status, body)
                rows = orjson.loads(body)
        return sorted(rows, key=lambda row: int(row["id"]))

    async def counters(self) -> Counters:
        """Return the server's own totals."""
        with self._mapped():
            async with self._http.get("/metrics") as response:
                body = await response.read()
                if response.status != 200:
                    raise self._failure(response.status, body)
        return parse_metrics(body.decode())

    async def _call(self, path: str, body: JsonObject) -> JsonObject:
        with self._mapped():
            async with self._http.post(path, data=orjson.dumps(body)) as response:
                raw = await response.read()
                if response.status != 200:
                    raise self._failure(response.status, raw)
                answer = orjson.loads(raw)
        if not isinstance(answer, dict):
            raise EngineProtocolError(f"card {self._card} answered {path} with no object")
        return answer

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise EngineTimeout(f"card {self._card} did not answer in time") from error
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

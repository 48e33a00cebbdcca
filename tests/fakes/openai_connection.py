"""One connection to a fake engine: HTTP/1.1 by hand, so that a test rules over every byte.

A web framework would hide what these tests are about: where a stream is cut, whether a connection
ends cleanly or by reset, and the moment at which the client hangs up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httptools
import orjson

from tests.fakes.openai_answers import (
    ID_MARK,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Behaviour,
    chunk,
    events,
    whole,
    words_in,
)

if TYPE_CHECKING:
    from tests.fakes.openai_engine import FakeEngine


@dataclass
class Seen:
    """One request: what came, and how it ended. Times are `time.monotonic()`."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    arrived_s: float
    events_sent: int = 0
    ended_s: float | None = None
    aborted_s: float | None = None
    """When the client hung up before the answer was complete."""


class Connection(asyncio.Protocol):
    """One connection: parses requests, runs one at a time, notices when the client leaves."""

    def __init__(self, engine: FakeEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._seen: Seen | None = None
        self._stale = False
        self._writable = asyncio.Event()
        self._writable.set()

    # the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._engine.connected(self)

    def data_received(self, data: bytes) -> None:
        if self._stale:
            self.reset()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.disconnected(self)
        self._transport = None
        if self._seen is not None:
            self._seen.aborted_s = time.monotonic()
            self._engine.aborts += 1
            self._engine.running -= 1
            self._seen = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # the parser's calls

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._path.decode("latin-1")
        raw = b"".join(self._body)
        try:
            body = orjson.loads(raw) if raw else {}
        except orjson.JSONDecodeError:
            self._json(400, {"error": {"message": "the body is not JSON"}})
            return
        engine = self._engine
        engine.asked[path] += 1
        key = engine.api_key
        if path.startswith("/fake/"):
            self._control(path, body)
        elif key is not None and self._headers.get("authorization") != f"Bearer {key}":
            self._json(401, {"error": {"message": f"wrong key, want {key}"}})
        elif path == "/v1/chat/completions":
            self._chat(path, body)
        else:
            self._plain(path, body)

    def reset(self) -> None:
        """Drop the connection as a dying process does."""
        if self._seen is not None:
            self._seen.ended_s = time.monotonic()
            self._engine.running -= 1
            self._seen = None
        if self._transport is not None:
            self._transport.abort()

    def _plain(self, path: str, body: dict[str, Any]) -> None:
        engine = self._engine
        if path == "/v1/models" and engine.healthy:
            self._json(200, {"object": "list", "data": [{"id": engine.model, "object": "model"}]})
        elif path == "/health":
            self._json(200 if engine.healthy else 503, {})
        elif path == "/tokenize":
            count = words_in(body)
            self._json(200, {"count": count, "max_model_len": 32768, "tokens": [1] * count})
        elif path == "/metrics" and engine.metrics:
            self._respond(200, engine.metrics_text().encode(), "text/plain; version=0.0.4")
        elif path == "/v1/embeddings":
            inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [
                {"object": "embedding", "index": at, "embedding": [float(len(text)), 0.5]}
                for at, text in enumerate(inputs)
            ]
            tokens = sum(text.count(" ") + 1 for text in inputs)
            self._json(
                200,
                {
                    "object": "list",
                    "model": engine.model,
                    "data": data[::-1],
                    "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                },
            )
        else:
            self._json(503 if not engine.healthy else 404, {"error": {"message": "not here"}})

    def _control(self, path: str, body: dict[str, Any]) -> None:
        engine = self._engine
        if path == "/fake/default":
            engine.default = Behaviour.of(body)
        elif path == "/fake/next":
            engine.script(Behaviour.of(body))
        elif path == "/fake/reset":
            engine.log.clear()
        elif path != "/fake/log":
            self._json(404, {"error": {"message": "not here"}})
            return
        self._json(
            200,
            {
                "requests": engine.requests,
                "aborts": engine.aborts,
                "running": engine.running,
                "log": [dataclasses.asdict(seen) for seen in engine.log],
            },
        )

    def _chat(self, path: str, body: dict[str, Any]) -> None:
        engine = self._engine
        behaviour = engine.next_behaviour()
        self._stale = behaviour.stale
        self._seen = seen = Seen(path, self._headers, body, time.monotonic())
        engine.log.append(seen)
        engine.requests += 1
        engine.running += 1
        refused = [name for name in behaviour.refuse if name in body]
        if refused:
            self._refuse(refused[0])
            return
        streamed = bool(body.get("stream")) and not behaviour.ignore_stream
        options = body.get("stream_options") or {}
        answer = Answer(
            behaviour,
            engine.model,
            words_in(body),
            int(body.get("max_completion_tokens") or body.get("max_tokens") or 0),
            not streamed or bool(options.get("include_usage")),
            int(body.get("n") or 1),
        )
        if behaviour.status == 200 and not behaviour.hang and behaviour.die_after is None:
            engine.prompt_tokens += answer.prompt_tokens
            engine.cached_tokens += behaviour.cached_tokens or 0
            engine.out_tokens += answer.out_tokens
        if behaviour.waits or (streamed and answer.choices > 1):
            self._task = self._loop.create_task(self._slowly(answer, streamed))
        elif behaviour.status != 200 or not streamed:
            self._at_once(answer)
        else:
            assert self._transport is not None
            self._transport.write(engine.rendered(behaviour, answer, engine.requests))
            seen.events_sent = answer.out_tokens
            self._done(close=behaviour.close)

    def _refuse(self, name: str) -> None:
        message = f"Unrecognized request argument supplied: {name}"
        self._json(
            400,
            {"error": {"message": message, "type": "invalid_request_error", "param": name}},
        )
        self._done()

    def _at_once(self, answer: Answer) -> None:
        behaviour = answer.behaviour
        if behaviour.status == 200:
            self._json(200, whole(answer, self._engine.requests))
        else:
            error = behaviour.error or {"message": "as told", "type": "fake_error"}
            self._json(behaviour.status, {"error": error}, retry_after=behaviour.retry_after)
        self._done(close=behaviour.close)

    async def _slowly(self, answer: Answer, streamed: bool) -> None:
        behaviour = answer.behaviour
        transport = self._transport
        assert transport is not None
        if streamed and behaviour.headers_first:
            transport.write(STREAM_HEAD)
        if behaviour.die_after == -1:
            self.reset()
            return
        if behaviour.first_delay_s:
            await asyncio.sleep(behaviour.first_delay_s)
        if behaviour.hang:
            await asyncio.Event().wait()
        if not streamed or behaviour.status != 200:
            self._at_once(answer)
            return
        if not behaviour.headers_first:
            transport.write(STREAM_HEAD)
        await self._stream(answer, transport)

    async def _stream(self, answer: Answer, transport: asyncio.Transport) -> None:
        behaviour = answer.behaviour
        seen = self._seen
        assert seen is not None
        name = b"chatcmpl-fake-%010d" % self._engine.requests
        kept = bytearray()
        for count, event in enumerate(events(answer)):
            if behaviour.die_after is not None and count >= behaviour.die_after:
                await self._write(transport, bytes(kept), behaviour.split_bytes)
                await asyncio.sleep(0.02)
                self.reset()
                return
            kept += chunk(event.replace(ID_MARK, name))
            if behaviour.chunk_delay_s:
                await self._write(transport, bytes(kept), behaviour.split_bytes)
                kept.clear()
                await asyncio.sleep(behaviour.chunk_delay_s)
            seen.events_sent = count + 1
        kept += LAST_CHUNK
        await self._write(transport, bytes(kept), behaviour.split_bytes)
        self._done(close=behaviour.close)

    async def _write(self, transport: asyncio.Transport, data: bytes, split_bytes: int) -> None:
        size = split_bytes or len(data) or 1
        for at in range(0, len(data), size):
            await self._writable.wait()
            transport.write(data[at : at + size])
            if split_bytes:
                await asyncio.sleep(0)

    def _done(self, *, close: bool = False) -> None:
        """The answer is complete: the next request may come on this connection."""
        if self._seen is not None:
            self._seen.ended_s = time.monotonic()
            self._engine.running -= 1
            self._seen = None
        self._task = None
        if close and self._transport is not None:
            self._transport.close()

    def _json(self, status: int, body: Any, *, retry_after: str | None = None) -> None:
        self._respond(status, orjson.dumps(body), "application/json", retry_after)

    def _respond(
        self, status: int, data: bytes, content_type: str, retry_after: str | None = None
    ) -> None:
        if self._transport is None:
            return
        more = f"retry-after: {retry_after}\r\n" if retry_after is not None else ""
        head = (
            f"HTTP/1.1 {status} Fake\r\nserver: fake\r\ncontent-type: {content_type}\r\n"
            f"{more}content-length: {len(data)}\r\n\r\n"
        )
        self._transport.write(head.encode() + data)

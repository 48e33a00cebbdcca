"""One keep-alive connection that sends requests and checks streamed answers, at little cost.

The end of a chunked body is its last chunk: event streams hold no carriage return, so `0 CR LF CR
LF` at the end of what came can be nothing else. Content is checked by counting its words and
events, which is exact for the fake engine's answers and needs no parser.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import NamedTuple, cast

from bench.load.workload import CHUNKS, EVENTS_MIN
from tests.fakes.openai_answers import WORDS

LAST_CHUNK = b"0\r\n\r\n"
EVENT = b"data:"
EVENT_WINDOW_BYTES = 4_096
_EACH_WORD = CHUNKS // len(WORDS)
_WORDS = tuple(word.strip().encode() for word in WORDS)
_USAGE = re.compile(rb'"completion_tokens": ?%d\b' % CHUNKS)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    """When an answer's first event and its last byte came, and what it was."""

    first_s: float
    last_s: float
    raw: bytes


class Lost(Exception):
    """The connection ended before the answer did."""


class Connection(asyncio.Protocol):
    """A connection; one request at a time."""

    def __init__(self) -> None:
        self.open = True
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._raw = bytearray()
        self._first_s = 0.0
        self._whole = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that runs."""
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                Lost(f"after {len(self._raw)} bytes: {bytes(self._raw[:300])!r}")
            )

    def data_received(self, data: bytes) -> None:
        """Collect; note the first event; end at the last chunk, or at the length."""
        raw = self._raw
        raw += data
        if not self._first_s and raw.find(EVENT, 0, EVENT_WINDOW_BYTES) >= 0:
            self._first_s = time.perf_counter()
        if raw.endswith(LAST_CHUNK) or self._has_length():
            answer, self._answer = self._answer, None
            assert answer is not None, "an answer without a request"
            now = time.perf_counter()
            answer.set_result(Answer(self._first_s or now, now, bytes(raw)))

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future ends with its answer, or with `Lost`."""
        assert self._answer is None, "one request at a time"
        assert self._transport is not None
        self._raw.clear()
        self._first_s = 0.0
        self._whole = -1
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _has_length(self) -> bool:
        """Return whether this is a whole answer with a length, as errors are."""
        if self._whole < 0:
            end = self._raw.find(b"\r\n\r\n")
            if end < 0:
                return False
            length = _LENGTH.search(self._raw, 0, end)
            self._whole = end + 4 + int(length[1]) if length else 0
        return 0 < self._whole <= len(self._raw)


def fault(raw: bytes) -> str | None:
    """Return what is wrong with an answer, None for a perfect one."""
    if not raw.startswith(b"HTTP/1.1 200 "):
        return f"status: {raw[:400]!r}"
    body = raw.find(b"\r\n\r\n")
    if raw.count(b"data: [DONE]", body) != 1:
        return "no [DONE]"
    events = raw.count(b"data: {", body)
    if events < EVENTS_MIN:
        return f"{events} events"
    for word in _WORDS:
        if raw.count(word, body) != _EACH_WORD:
            return f"{raw.count(word, body)} times {word.decode()}"
    if _USAGE.search(raw, len(raw) // 2) is None:
        return "no usage"
    return None

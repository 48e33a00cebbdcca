"""One connection: uvicorn's protocol, with the bounds that it leaves open.

How large and how slow a request's head may be, what may follow its body, how long a reader may take
nothing, how many connections there are. Refusals speak OpenAI's form.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bedplate.errors import BedplateError, CapacityError, InvalidRequest
from bedplate.gateway.errors_http import HeadersTooLarge, error_body, error_headers

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers together, and what follows the body."""
HEAD_WAIT_SECONDS = 15.0
"""From a connection's start, or its first byte of a further request, to the end of the headers."""

log = logging.getLogger("bedplate.gateway")


class Bounds(NamedTuple):
    """Limits of one server's connections."""

    connections_max: int
    stall_s: float


class _HeadHolder:
    """Holds a response's head back until its first body bytes: one write, one packet."""

    __slots__ = ("_head", "_passes", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._passes = False

    def write(self, data: bytes) -> None:
        if self._passes or data.startswith(b"HTTP/1.1 100 "):
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._passes = True
            self._transport.write(self._head + data)

    def close(self) -> None:
        if self._head and not self._passes:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Connection(HttpToolsProtocol):
    """uvicorn's connection with bounds on heads and on readers that stall."""

    bounds: ClassVar[Bounds]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_size = 0
        self._bare_bytes = 0
        self._refusal: BedplateError | None = None
        self._latest: RequestResponseCycle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stalled_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            self._refuse(CapacityError("Too many connections. Come back later.", code="busy"), 503)
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse, and count the bytes that come without an end of the head or a piece of the body.

        That bounds a head or trailer line which the parser still holds.
        """
        if self._in_head and self._head_timer is None:
            self._await_head()
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(_heads_too_large(), 431)

    def on_message_begin(self) -> None:
        """Begin to count the next head."""
        self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request line."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; fields after the body are dropped, since they must not say who calls."""
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body, which the application bounds."""
        self._bare_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the request; its body is bounded by the application."""
        if self.parser.should_upgrade() and _has_body(self.headers):
            # The parser would skip the body, and read what comes of it later as a next request.
            self._refusal = InvalidRequest(
                "The header upgrade is not supported on a request with a body. Send HTTP/1.1 "
                "without it: Java's HttpClient does with version(HTTP_1_1)."
            )
            raise self._refusal
        self._in_head = False
        self._bare_bytes = 0
        self._drop_head_timer()
        super().on_headers_complete()
        self._latest = self.cycle
        if self.scope["method"] != "HEAD":  # its response has no body to wait for
            self.cycle.transport = _HeadHolder(self.transport)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head = True
        self._bare_bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Hold the writer while the reader is behind, and give that one `stall_s` to go on."""
        super().pause_writing()
        self._stalled_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.bounds.stall_s, self._check_stall)

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        self._drop_stall_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timers."""
        self._drop_head_timer()
        self._drop_stall_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or what a bound stopped the parser at, in OpenAI's form."""
        error = self._refusal or InvalidRequest(msg)
        self._refuse(error, error.http_status)

    def _count_head(self, size: int) -> None:
        """Count head and trailers of one request; raising stops the parser."""
        self._head_size += size
        if self._head_size > HEAD_BYTES_MAX:
            self._refusal = _heads_too_large()
            raise self._refusal

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WAIT_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        cycle = self._latest
        if cycle is not None and not cycle.response_complete:
            self._await_head()  # a byte after a request must not cut its answer
        elif not self.transport.is_closing():
            self.transport.close()

    def _check_stall(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left < self._stalled_bytes:
            self._stalled_bytes = left
            self._stall_timer = self.loop.call_later(self.bounds.stall_s, self._check_stall)
            return
        self._stall_timer = None
        log.info("a reader took nothing for %.0f s: cut", self.bounds.stall_s)
        self.transport.abort()

    def _refuse(self, error: BedplateError, status: int) -> None:
        cycle = self._latest
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # a second answer would stand in the middle of the first
            return
        body = error_body(error)
        head = [f"HTTP/1.1 {status} Refused\r\n".encode("ascii")]
        for name, value in error_headers(error):
            head += [name, b": ", value, b"\r\n"]
        head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join(head) + body)
        self.transport.close()

    def _drop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    """Tell whether the headers announce a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )


def _heads_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"Headers may take {HEAD_BYTES_MAX} bytes in all.")

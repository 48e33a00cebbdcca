"""One HTTP exchange over ASGI: headers read once, a bounded body, writes that can be paced.

Everything a request needs of HTTP is here, so that the rooms behind it see no ASGI message. The
`Pacer` is one task for all streams: it opens a stream whose first token is late, and writes
comments while nothing else is written. No stream has a timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bedplate.errors import BodyTooLarge, InvalidRequest
from bedplate.gateway.bodies import Body, BodyRoom
from bedplate.gateway.errors_http import BodyTimeout, Header

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

BODY_WAIT_SECONDS = 30.0
"""Longest time from the end of the headers to the end of the body."""
KEEPALIVE = b": keepalive\n\n"
_TICK_SECONDS = 0.25
_SINGLE = frozenset(
    (
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"transfer-encoding",
        b"x-bedplate-deadline-seconds",
        b"x-bedplate-lane",
        b"x-session-id",
    )
)
"""Headers that carry identity or framing: sent twice, nobody can say which one counts."""


class Exchange:
    """One request and its response.

    `serial` is the random part of the request's and the turn's id. `streams`: the answer is a
    stream of events, so a late failure can be told in one. `started`: the status is sent.
    `complete`: the last byte is handed over. `gone`: the client left.
    """

    __slots__ = (
        "beat",
        "body_read",
        "complete",
        "gone",
        "headers",
        "lane",
        "path",
        "receive",
        "scope",
        "send",
        "serial",
        "started",
        "status",
        "streams",
        "tenant",
        "wrote_at",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, serial: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = {}
        self.serial = serial
        self.tenant = ""
        self.lane = ""
        self.status = 0
        self.streams = False
        self.started = False
        self.complete = False
        self.gone = False
        self.body_read = False
        self.wrote_at = 0.0
        self.beat: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        """Id of this request in responses and logs."""
        return "req_" + self.serial

    @property
    def peer(self) -> str:
        """Address of the client's end of the connection, for logs and audit notes."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def read_headers(self) -> None:
        """Index the headers by name.

        Raises:
            InvalidRequest: one of those that carry identity or framing came twice.
        """
        found = self.headers
        for name, value in self.scope["headers"]:
            if name in found and name in _SINGLE:
                text = name.decode("latin-1")
                raise InvalidRequest(f"The header {text} was sent twice. Send it once.", param=text)
            found[name] = value

    def header(self, name: bytes) -> str | None:
        """Return a header's value, or None. Bytes beyond ASCII are kept one to one."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    async def body(self, *, size_max: int, room: BodyRoom | None = None) -> bytes:
        """Read the whole body, never more than `size_max` bytes of it.

        Args:
            size_max: Bound in bytes.
            room: What bounds the bodies under way together; none for small ones.

        Raises:
            BodyTooLarge, BodyTimeout: the bound, in bytes or in time, was passed.
            CapacityError: bodies under way leave no room for this one.
            ClientGone: the client left before the end.
        """
        length = self.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > size_max:
            raise _too_large(size_max)
        try:
            async with asyncio.timeout(BODY_WAIT_SECONDS):
                data = await self._read(size_max, room)
        except TimeoutError as error:
            raise BodyTimeout(
                f"The body did not arrive within {BODY_WAIT_SECONDS:.0f} seconds. Send it again."
            ) from error
        self.body_read = True
        return data

    async def _read(self, size_max: int, room: BodyRoom | None) -> bytes:
        message = await self.receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body: bytes = message.get("body", b"")
            if len(body) > size_max:
                raise _too_large(size_max)
            return body
        if room is None:
            return await self._read_pieces(message, size_max, None)
        with room.one(self.tenant) as counted:
            return await self._read_pieces(message, size_max, counted)

    async def _read_pieces(
        self, message: dict[str, Any], size_max: int, counted: Body | None
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > size_max:
                raise _too_large(size_max)
            if counted is not None:
                counted.grow(len(piece))
            pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces)
            message = await self.receive()

    async def gone_away(self) -> None:
        """Return when the client is gone or has its whole response. Call once the body is read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole response."""
        assert not self.started
        every = [*headers, (b"content-length", b"%d" % len(body))]
        if self._sends_on():
            every.append((b"connection", b"close"))
        await self.start(status, every)
        await self.write(body, more=False)

    def _sends_on(self) -> bool:
        """Tell whether the client may still be sending a body that nobody wants."""
        if self.body_read:
            return False
        length = self.headers.get(b"content-length", b"0")
        return b"transfer-encoding" in self.headers or len(length) > 5 or not length.isdigit()

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers."""
        assert not self.started
        self.started = True
        self.status = status
        every = [*headers, (b"x-request-id", self.request_id.encode("ascii"))]
        await self.send({"type": "http.response.start", "status": status, "headers": every})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; returns when the connection has room for the next one."""
        assert self.started
        assert not self.complete
        self.complete = not more
        self.wrote_at = time.monotonic()
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def settle(self) -> None:
        """Wait for a write of the pacer that is under way; call before a stream's own write."""
        beat = self.beat
        if beat is not None:
            self.beat = None
            await beat


class ClientGone(Exception):
    """The client left: there is nobody to answer."""


class Pacer:
    """Keeps open streams alive, and opens those whose first token is late.

    A stream without a status for `wait_s` gets 200; one without a byte for `wait_s` gets a comment.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._tick_s = min(_TICK_SECONDS, wait_s / 4)
        self._early: dict[Exchange, list[Header]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, exchange: Exchange, early: list[Header]) -> None:
        """Take care of a stream until `release`; `early` are its headers if its token is late."""
        exchange.wrote_at = time.monotonic()
        self._early[exchange] = early
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="gateway-pacer")

    def release(self, exchange: Exchange) -> None:
        """Stop watching."""
        self._early.pop(exchange, None)

    async def stop(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self.sweep(time.monotonic())

    def sweep(self, now: float) -> None:
        """Look at every stream once. Cost: less than a microsecond each."""
        for exchange, early in self._early.items():
            if now - exchange.wrote_at < self._wait_s:
                continue
            if exchange.beat is None or exchange.beat.done():
                exchange.wrote_at = now
                exchange.beat = asyncio.create_task(_beat(exchange, early))


async def _beat(exchange: Exchange, early: list[Header]) -> None:
    if exchange.complete or exchange.gone:
        return
    if not exchange.started:
        await exchange.start(200, early)
    await exchange.write(KEEPALIVE)


def _too_large(size_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {size_max} bytes, the limit of this service.")

"""HTTP/1.1 to one address: kept connections, one exchange at a time on each.

    Pool.send ──> kept or new Connection ──> Reply: head, then the body piece by piece
        ^                                      │
        └──── kept again: whole answer ────────┴──── anything else: the connection is cut

llhttp parses; what stands here is who waits, for how long, and how much is held. A head has a bound
and so has the body that nobody has read yet: beyond it the connection is not read. Nothing is ever
sent twice: a connection that breaks off may have delivered what was written to it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

import httptools
from yarl import URL

HEAD_BYTES_MAX = 64 << 10
"""Status lines and headers of one answer, provisional ones included."""
UNREAD_BYTES_MAX = 512 << 10
KEEP_ALIVE_S = 3.0
"""A connection that is idle for longer is closed: less than what servers allow."""


class TransportError(Exception):
    """The connection ended before the answer did."""


class Unreachable(TransportError):
    """There is no connection, so nothing was sent."""

    def __init__(self, reason: str, errno: int | None = None) -> None:
        super().__init__(reason)
        self.errno = errno


class NotHttp(TransportError):
    """What came is no HTTP that is understood here."""


class Silent(TimeoutError):
    """Nothing came for too long."""


class Connection(asyncio.Protocol):
    """One connection; hands what comes to the reply that is due."""

    def __init__(self, pool: Pool) -> None:
        self.reply: Reply | None = None
        self.transport: asyncio.Transport
        self._pool = pool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Pass it on; a server that speaks unasked is not asked again."""
        if self.reply is None:
            self.transport.abort()
        else:
            self.reply.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reply."""
        self._pool.connections.discard(self)
        if self.reply is not None:
            self.reply.lost(exc)


class Reply:
    """The answer to one request. `status` and `headers`, names in lower case, come with the head.

    Not reading holds the server back. `close` it in any case.
    """

    __slots__ = (
        "_connection", "_deadline", "_failure", "_head_bytes", "_heard", "_in_head", "_keep",
        "_loop", "_parser", "_paused", "_pieces", "_pool", "_read_s", "_timer", "_unread",
        "_waiter", "_whole", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, connection: Connection, *, deadline: float, read_s: float
    ) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._pool = pool
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._deadline = deadline
        self._read_s = read_s
        self._heard = self._loop.time()
        self._timer = self._loop.call_at(min(deadline, self._heard + read_s), self._check_time)
        self._in_head = True
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._whole = False
        self._keep = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def at_end(self) -> bool:
        """True once the whole body was read."""
        return self._whole and not self._pieces

    def header(self, name: bytes) -> str | None:
        """Return a header's value, None where there is none."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def head(self) -> None:
        """Return when status and headers are there.

        Raises:
            TransportError, TimeoutError: the exchange failed.
        """
        while self._in_head:
            await self._more()
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise NotHttp("it compresses, and was asked not to")

    async def read_some(self) -> bytes:
        """Return what is at hand of the body, at least a byte; nothing at its end.

        Raises:
            TransportError, TimeoutError: the exchange failed, after everything before was read.
        """
        pieces = self._pieces
        while not pieces:
            if self._whole:
                return b""
            await self._more()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self._paused:
            self._paused = False
            self._heard = self._loop.time()
            self._connection.transport.resume_reading()
        return data

    async def read(self, size_max: int) -> bytes:
        """Return the whole body, or its first `size_max` bytes."""
        pieces: list[bytes] = []
        size = 0
        while size < size_max and (data := await self.read_some()):
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)[:size_max]

    def expect_within(self, read_s: float) -> None:
        """Let the server be silent for so long from now on; the end of the answer stays due."""
        self._read_s = read_s
        self._heard = self._loop.time()
        self._timer.cancel()
        self._check_time()

    def close(self) -> None:
        """Let the connection go: into the pool after a whole answer, else it is cut."""
        self._timer.cancel()
        if self._connection.reply is self:
            self._connection.reply = None
            self._pool.give_back(self._connection, keep=self._whole and self._keep)

    # For the connection.

    def feed(self, data: bytes) -> None:
        """Parse what came."""
        self._heard = self._loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            self._fail(NotHttp(type(error).__name__))
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._fail(NotHttp(f"headers of over {HEAD_BYTES_MAX} bytes"))
        if self._unread > UNREAD_BYTES_MAX and not self._paused and not self._whole:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """End what the end of the connection ends; anything else was cut off."""
        self._keep = False
        if error is None and not self._in_head and self._ends_with_connection():
            self._whole = True
        self._fail(TransportError("the connection was closed before the answer's end"))
        self._wake()

    # For the parser.

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for."""
        if self._whole:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those after the body are nobody's."""
        if self._in_head:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Note the status, unless a final one is still to come."""
        status = self._parser.get_status_code()
        if status >= 200 and not self._whole:
            self.status = status
            self._in_head = False

    def on_body(self, body: bytes) -> None:
        """Keep a piece until it is read."""
        if not self._whole:
            self._pieces.append(body)
            self._unread += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer; that of a provisional one is its beginning."""
        if self._in_head:
            self.headers.clear()
        elif not self._whole:
            self._whole = True
            self._keep = self._parser.should_keep_alive()

    # Inside.

    async def _more(self) -> None:
        """Wait until something happened."""
        if self._failure is not None:
            raise self._failure
        assert self._waiter is None, "a reply has one reader"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._whole and self._failure is None:
            self._failure = error
            self._connection.transport.abort()
            self._wake()

    def _ends_with_connection(self) -> bool:
        coded = self.headers.get(b"transfer-encoding", b"").lower()
        return b"content-length" not in self.headers and b"chunked" not in coded

    def _check_time(self) -> None:
        """Look at the clock; a server that is held back is not late."""
        if self._whole or self._failure is not None:
            return
        now = self._loop.time()
        if self._paused:
            self._heard = now
        if now >= self._deadline:
            self._fail(TimeoutError("the answer took too long"))
        elif now >= self._heard + self._read_s:
            self._fail(Silent(f"nothing came for {self._read_s} s"))
        else:
            due = min(self._deadline, self._heard + self._read_s)
            self._timer = self._loop.call_at(due, self._check_time)


class Pool:
    """Connections to the address of one URL, at most `limit` of them in use; more calls wait."""

    def __init__(
        self,
        url: URL,
        *,
        limit: int,
        keeps: bool,
        connect_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        assert url.raw_host is not None, "an address without a host"
        assert url.port is not None, "an address of HTTP"
        assert (tls is not None) == (url.scheme == "https"), "TLS where the address says so"
        self.connections: set[Connection] = set()
        self._host = url.raw_host
        self._port = url.port
        self._tls = tls
        self._keeps = keeps
        self._connect_s = connect_s
        self._room = asyncio.Semaphore(limit)
        self._idle: list[tuple[float, Connection]] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(self, request: bytes, *, total_s: float, read_s: float) -> Reply:
        """Send a request; return when the head of its answer is there.

        Args:
            request: Head and body, as they go over the connection.
            total_s: Longest time from now to the end of the answer.
            read_s: Longest time in which nothing comes.

        Raises:
            Unreachable, TransportError, TimeoutError: what happened; being cancelled cuts it.
        """
        deadline = asyncio.get_running_loop().time() + total_s
        async with asyncio.timeout_at(deadline):
            await self._room.acquire()
            try:
                connection = self._kept() or await self._connect()
            except BaseException:
                self._room.release()
                raise
        reply = Reply(self, connection, deadline=deadline, read_s=read_s)
        connection.reply = reply
        connection.transport.write(request)
        try:
            await reply.head()
        except BaseException:
            reply.close()
            raise
        return reply

    def give_back(self, connection: Connection, *, keep: bool) -> None:
        """Take a connection back after its exchange."""
        self._room.release()
        transport = connection.transport
        reusable = keep and self._keeps and not transport.is_closing()
        if not reusable or transport.get_write_buffer_size():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEP_ALIVE_S, self._sweep)

    def close(self) -> None:
        """Cut every connection; who still reads from one is told."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self.connections):
            connection.transport.abort()

    def _kept(self) -> Connection | None:
        """Return the connection used last, if it is still good."""
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while self._idle:
            since, connection = self._idle.pop()
            if since > oldest and not connection.transport.is_closing():
                return connection
            connection.transport.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        failed: OSError | None = None
        try:
            async with asyncio.timeout(self._connect_s):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                for *_, address in found:
                    try:
                        _, connection = await loop.create_connection(
                            lambda: Connection(self),
                            str(address[0]),
                            self._port,
                            ssl=self._tls,
                            server_hostname=self._host if self._tls else None,
                        )
                    except OSError as error:
                        failed = error
                    else:
                        return connection
        except TimeoutError as error:
            raise Unreachable("it did not answer in time") from error
        except OSError as error:
            failed = error
        assert failed is not None, "an address or an error"
        raise Unreachable(failed.strerror or "unreachable", failed.errno) from failed

    def _sweep(self) -> None:
        """Close what is idle for too long; the list is in order of time."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE_S
        kept = [pair for pair in self._idle if pair[0] > oldest]
        for _, connection in self._idle[: len(self._idle) - len(kept)]:
            connection.transport.close()
        self._idle = kept
        due = kept[0][0] + KEEP_ALIVE_S if kept else 0.0
        self._sweeper = loop.call_at(due, self._sweep) if kept else None

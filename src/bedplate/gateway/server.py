"""The HTTP server around the application: connections, their bounds, and the way out.

uvicorn with httptools and uvloop does the protocol. What it leaves open is bounded here: how many
connections there are, how large and how slow a request's head may be, how long a reader may take
nothing. Its refusals speak OpenAI's form too.

Drain, in this order: `/readyz` says 503 and new calls get 503 with Retry-After; running ones end,
or are ended when the time is up; connections close. A second signal cuts what still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bedplate.config import Config
from bedplate.errors import BedplateError, CapacityError, ConfigError, InvalidRequest
from bedplate.gateway.app import Gateway
from bedplate.gateway.errors_http import HeadersTooLarge, error_body, error_headers

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers together."""
HEAD_WAIT_SECONDS = 15.0
"""From a connection's start, or its first byte of a further request, to the end of the headers."""
KEEP_ALIVE_SECONDS = 30
BACKLOG = 1024
CLOSE_SECONDS = 5
"""For clients to take their last bytes once all calls have ended."""

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
        self._head_bytes = 0
        self._in_head = True
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
        """Parse, and count the bytes of an unfinished head."""
        if self._in_head:
            if self._head_timer is None:
                self._await_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"Headers may take {HEAD_BYTES_MAX} bytes in all."), 431)

    def on_headers_complete(self) -> None:
        """Start the request; its body is bounded by the application."""
        self._in_head = False
        self._head_bytes = 0
        self._drop_head_timer()
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # its response has no body to wait for
            self.cycle.transport = _HeadHolder(self.transport)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Expect the next head."""
        self._in_head = True
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
        """Answer what is not HTTP in OpenAI's form."""
        self._refuse(InvalidRequest(msg), 400)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WAIT_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
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


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, with signals left alone and a sign that it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `Signals`."""
        yield


class GatewayServer:
    """One listening server around one gateway."""

    def __init__(self, gateway: Gateway, config: Config) -> None:
        service = config.service
        bounds = Bounds(service.connections_max, service.stall_seconds)
        # uvicorn makes its protocol from a class, so the bounds ride on one of their own.
        protocol = type("BoundedConnection", (Connection,), {"bounds": bounds})
        self._gateway = gateway
        self._host = service.host
        self._port = service.port
        self._server = _Uvicorn(
            uvicorn.Config(
                gateway,
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                ssl_certfile=_readable(service.tls_cert),
                ssl_keyfile=_readable(service.tls_key),
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is then what clients connect to.

        Raises:
            ConfigError: the address cannot be bound, or the TLS files cannot be used.
        """
        try:
            self._server.config.load()
            listener = _listen(self._host, self._port)
        except OSError as error:
            raise ConfigError(
                f"Cannot listen on {self._host}:{self._port}: {error}. Check service.host, "
                "service.port and the TLS files, or end what uses the port."
            ) from error
        self.port = int(listener.getsockname()[1])
        self._serving = asyncio.create_task(
            self._server.serve(sockets=[listener]), name="gateway-http"
        )
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((listening, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving

    async def stop(self) -> None:
        """Close the listener and every connection; calls that still run lose theirs."""
        self._gateway.begin_drain()
        if self._serving is None:
            return
        state = self._server.server_state
        self._server.force_exit = not self._gateway.idle.is_set()
        self._server.should_exit = True
        await self._serving
        self._serving = None
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=CLOSE_SECONDS)
        await self._gateway.close()


class Signals:
    """SIGTERM and SIGINT as events: the first asks for a drain, the second for a cut."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.cut = asyncio.Event()

    def __enter__(self) -> Signals:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _heard(self) -> None:
        (self.cut if self.drain.is_set() else self.drain).set()


class Drainable(Protocol):
    """What runs behind the gateway; see `bedplate.runtime.service.Service`."""

    async def drain(self, timeout_s: float) -> None:
        """Let accepted turns end; end what has not after `timeout_s`."""
        ...

    async def wait_halted(self) -> BaseException:
        """Return the error that halted the core, once it does."""
        ...


async def serve(
    server: GatewayServer,
    gateway: Gateway,
    service: Drainable,
    *,
    drain_s: float,
    started: Callable[[int], None],
) -> None:
    """Serve until a signal comes, drain, stop; a second signal cuts the drain short.

    Running turns may go on for `drain_s`; `started` is called with the port once it is open.

    Raises:
        BaseException: the error that halted the core, after everything is closed.
    """
    with Signals() as signals:
        await server.start()
        started(server.port)
        halted = asyncio.create_task(service.wait_halted())
        asked = asyncio.create_task(signals.drain.wait())
        cut = asyncio.create_task(signals.cut.wait())
        try:
            await asyncio.wait((halted, asked), return_when=asyncio.FIRST_COMPLETED)
            gateway.begin_drain()
            if not halted.done():
                drain = asyncio.create_task(_drain(gateway, service, drain_s))
                await asyncio.wait((drain, cut, halted), return_when=asyncio.FIRST_COMPLETED)
                drain.cancel()
        finally:
            for task in (asked, cut):
                task.cancel()
            await server.stop()
        if halted.done():
            raise halted.result()
        halted.cancel()


async def _drain(gateway: Gateway, service: Drainable, drain_s: float) -> None:
    """Let the turns end, then the last bytes leave."""
    await service.drain(drain_s)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gateway.idle.wait(), CLOSE_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket. Its protocol is named, or event loops leave TCP_NODELAY off."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _readable(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Set service.tls_cert and service.tls_key.")
    return str(path)

"""The HTTP server around the application: its start, its signals, and the way out.

uvicorn with httptools and uvloop does the protocol; `connection` bounds what it leaves open.

Drain, in this order: `/readyz` says 503 and new calls get 503 with Retry-After; running ones end,
or are ended when the time is up; connections close. A second signal ends at once what still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Protocol

import uvicorn

from bedplate.config import Config
from bedplate.errors import ConfigError
from bedplate.gateway.app import Gateway
from bedplate.gateway.connection import Bounds, Connection

KEEP_ALIVE_SECONDS = 30
BACKLOG = 1024
CLOSE_SECONDS = 5
"""For clients to take their last bytes once all calls have ended."""
CUT_SECONDS = 1
"""The same after a second signal."""


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
        except OSError as error:
            raise ConfigError(
                f"Cannot use the TLS files: {error}. Check service.tls_cert and service.tls_key."
            ) from error
        listener = _listen(self._host, self._port)
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

    async def cut(self) -> None:
        """End every turn now, and tell its client."""
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
    draining: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes, drain, stop; a second signal cuts the drain short.

    Running turns may go on for `drain_s`; `started` is called with the port once it is open,
    `draining` when the first signal has come.

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
                draining()
                drain = asyncio.create_task(_drain(gateway, service, drain_s))
                await asyncio.wait((drain, cut, halted), return_when=asyncio.FIRST_COMPLETED)
                drain.cancel()
                if cut.done() and not halted.done():
                    await service.cut()
                    await _last_bytes(gateway, CUT_SECONDS)
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
    await _last_bytes(gateway, CLOSE_SECONDS)


async def _last_bytes(gateway: Gateway, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gateway.idle.wait(), timeout_s)


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket. Its protocol is named, or event loops leave TCP_NODELAY off.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Another program listens on {host}:{port}: choose another port with --port or "
                "service.port."
            ) from error
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Check service.host and "
            "service.port."
        ) from error
    return listener


def _readable(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Set service.tls_cert and service.tls_key.")
    return str(path)

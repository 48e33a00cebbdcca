"""No gateway at all, and a bare relay: what a process in the middle costs that does nothing."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.harness.processes import Process, free_port
from bench.subjects.base import Site, Target


class NoGateway:
    """Clients speak to the engine."""

    name = "no gateway"

    @contextmanager
    def running(self, site: Site) -> Iterator[Target]:
        """Start nothing."""
        port = urlsplit(site.engine_url).port
        assert port is not None
        yield Target(self.name, port, ["none"], None)


class BareRelay:
    """An ASGI application of 30 lines on uvicorn that passes bytes on with aiohttp."""

    name = "bare relay"

    @contextmanager
    def running(self, site: Site) -> Iterator[Target]:
        """Start it."""
        port = free_port()
        command = [sys.executable, "-m", "bench.subjects.plain", str(port), site.engine_url]
        log = site.folder / "relay.log"
        with Process(command, core=site.core, log=log) as process:
            process.await_ready(f"http://127.0.0.1:{port}/v1/models")
            yield Target(self.name, port, ["none"], process)


def relay(engine_url: str) -> Any:
    """Return the relay as an ASGI application."""
    import aiohttp

    base = engine_url.removesuffix("/v1")
    session: aiohttp.ClientSession | None = None

    async def body(receive: Any) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        data = b"".join([piece async for piece in body(receive)])
        headers = {"content-type": "application/json"}
        async with session.request(
            scope["method"], base + scope["path"], data=data, headers=headers
        ) as answer:
            kind = answer.headers["content-type"].encode()
            start = {"status": answer.status, "headers": [(b"content-type", kind)]}
            await send({"type": "http.response.start", **start})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def main() -> None:
    """Run the relay: PORT ENGINE_URL."""
    import uvicorn

    port, engine_url = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(
        relay(engine_url),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()

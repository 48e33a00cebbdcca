"""Service, gateway and server of one configuration, started and stopped in order.

Used by `serve` and by the demo, so that what the demo shows is what is served.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from bedplate.config import Config
from bedplate.gateway.app import Gateway
from bedplate.gateway.build import build_gateway
from bedplate.gateway.keys import KeyStore
from bedplate.gateway.server import GatewayServer
from bedplate.runtime.build import build_service
from bedplate.runtime.service import Service

COLLECT_AFTER = 50_000
"""Allocations between collections: sessions live long, so looking at them all the time is waste."""


class Stack(NamedTuple):
    """What runs. `server` is made and not yet listening."""

    service: Service
    gateway: Gateway
    server: GatewayServer
    keys: KeyStore


@asynccontextmanager
async def running(
    config: Config, *, progress: Callable[[int], None] | None = None
) -> AsyncIterator[Stack]:
    """Recover, start the engines, and put the gateway in front; stop everything at the end.

    Raises:
        BedplateError: some part cannot start; what had started is stopped again.
    """
    service = build_service(config)
    await service.start(progress=progress)
    try:
        with KeyStore(config.keys_path) as keys:
            gateway = await asyncio.to_thread(build_gateway, config, service, keys)
            gc.collect()
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER, 20, 20)
            yield Stack(service, gateway, GatewayServer(gateway, config), keys)
    finally:
        await service.stop()


def base_url(config: Config, port: int) -> str:
    """Return the address under which clients on this machine reach the service."""
    scheme = "https" if config.service.tls_cert else "http"
    host = config.service.host
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

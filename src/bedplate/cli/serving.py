"""Service, gateway and server of one configuration, started and stopped in order.

Used by `serve` and by the demo, so that what the demo shows is what is served.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
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
SWITCH_S = 0.1
"""How long a thread may wait before it makes the one that runs give the interpreter up.

No thread of ours computes for long, and the journal's writer gets it whenever the loop waits. At
the default of 5 ms the loop lost its core some times a request: a tenth of the requests a second.
"""


class Stack(NamedTuple):
    """What runs. `server` is made and not yet listening."""

    service: Service
    gateway: Gateway
    server: GatewayServer
    keys: KeyStore


@asynccontextmanager
async def running(
    config: Config,
    *,
    progress: Callable[[int], None] | None = None,
    drop_pool: bool = False,
) -> AsyncIterator[Stack]:
    """Recover, start the engines, and put the gateway in front; stop everything at the end.

    Args:
        config: What to run.
        progress: Told how many records recovery has read.
        drop_pool: Delete the KV pool at the end, whatever the end is: nobody comes back to it.

    Raises:
        BedplateError: some part cannot start; what had started is stopped again.
    """
    service = build_service(config)
    try:
        async with _started(service, progress):
            with KeyStore(config.keys_path) as keys:
                gateway = await asyncio.to_thread(build_gateway, config, service, keys)
                gc.collect()
                gc.freeze()
                gc.set_threshold(COLLECT_AFTER, 20, 20)
                sys.setswitchinterval(SWITCH_S)
                yield Stack(service, gateway, GatewayServer(gateway, config), keys)
    finally:
        if drop_pool and service.pool is not None:
            await asyncio.to_thread(shutil.rmtree, service.pool.folder)


@asynccontextmanager
async def _started(service: Service, progress: Callable[[int], None] | None) -> AsyncIterator[None]:
    await service.start(progress=progress)
    try:
        yield
    finally:
        await service.stop()


def base_url(config: Config, port: int) -> str:
    """Return the address under which clients on this machine reach the service."""
    scheme = "https" if config.service.tls_cert else "http"
    host = config.service.host
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

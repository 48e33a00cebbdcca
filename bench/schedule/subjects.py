"""Who serves the sessions: two cards each, one core a card, the same model, slots and KV.

- `Bedplate`: `bedplate serve` with two embedded cards.
- `Pinned`: two plain llama.cpp servers with their own prompt cache in host memory; the client sends
  each session to one of them.
- `Routed`: the same two behind a router that is aware of their caches.
- `Probe` (its own module): the simplest thing that orders sessions.

The gateway, the routers and the load have no core of their own: they share the two with the cards.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp

from bench.harness.processes import Process, cores, free_port
from bench.harness.run import BenchError, Run
from bench.live.base import Embedded, live_base
from bench.schedule.model import model_file
from bench.schedule.play import Ask, Endpoint, Heard, chat
from bench.subjects.peers import SGLANG_ROUTER_VERSION, VLLM_ROUTER_VERSION, peer_environment

CACHE_MIB = 8_192
"""Host memory of a plain server's prompt cache: its default."""
POOL_BYTES = "4GiB"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Room:
    """What each card has. KV in tokens."""

    slots: int
    kv_tokens: int
    batch_tokens: int = 64


class Subject(Protocol):
    """A way to serve sessions."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def running(
        self, run: Run, folder: Path, lanes: Mapping[str, int]
    ) -> AbstractContextManager[Endpoint]:
        """Serve from a new folder; ends what it started. `lanes`: that of each tenant."""
        ...


@dataclass(frozen=True, slots=True)
class Bedplate:
    """`bedplate serve`. `engine` are keys of its engine beside the room's; `more` is TOML.

    `cards`: on which of the two cores there is one.
    """

    name: str
    room: Room
    engine: Mapping[str, int] = field(default_factory=dict)
    more: str = ""
    cards: tuple[int, ...] = (0, 1)
    module: str = "bedplate.cli.main"
    options: tuple[str, ...] = ()

    @contextmanager
    def running(self, run: Run, folder: Path, lanes: Mapping[str, int]) -> Iterator[Endpoint]:
        """Serve from a fresh data folder, a card on each core, the pool in shared memory."""
        with shared_folder() as pool:
            base = self.embedded(run, pool)
            tenants = {tenant: (lane,) for tenant, lane in lanes.items()}
            with live_base(folder, base, tenants) as live:
                for card, pid in zip(self.cards, live.card_pids(), strict=True):
                    pin(pid, cores()[card])
                yield BedplateEndpoint(live.url, live.keys)

    def embedded(self, run: Run, pool: Path) -> Embedded:
        """Return what the base is, with its pool in a folder."""
        engine = {
            "slots": self.room.slots,
            "kv_tokens": self.room.kv_tokens,
            "batch_tokens": self.room.batch_tokens,
            **self.engine,
        }
        return Embedded(
            model=model_file(run),
            engine=engine,
            cards=len(self.cards),
            pool_bytes=POOL_BYTES,
            pool=pool,
            more=self.more,
            command=(self.module, *self.options),
        )


@dataclass(frozen=True, slots=True)
class BedplateEndpoint:
    """The base, asked as any client asks it, with the session's name."""

    url: str
    keys: Mapping[str, str]

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Ask it."""
        headers = {
            "authorization": f"Bearer {self.keys[ask.tenant]}",
            "x-session-id": f"s{ask.session}",
        }
        return await chat(http, self.url, ask, headers)


@dataclass(frozen=True, slots=True)
class Urls:
    """Servers asked directly: each session has its own, in turn."""

    urls: tuple[str, ...]

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Ask the session's server."""
        return await chat(http, self.urls[ask.session % len(self.urls)], ask, {})


@dataclass(frozen=True, slots=True)
class Pinned:
    """Two plain servers, sessions pinned by the client."""

    room: Room
    name: str = "pinned"

    @contextmanager
    def running(self, run: Run, folder: Path, lanes: Mapping[str, int]) -> Iterator[Endpoint]:
        """Start both."""
        with plain_cards(run, folder, self.room) as urls:
            yield Urls(urls)


@dataclass(frozen=True, slots=True)
class Routed:
    """Two plain servers behind a router."""

    room: Room
    router: str

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.router

    @contextmanager
    def running(self, run: Run, folder: Path, lanes: Mapping[str, int]) -> Iterator[Endpoint]:
        """Start servers and router."""
        with plain_cards(run, folder, self.room) as urls:
            port, metrics = free_port(), free_port()
            command = router_command(run.cache, self.router)
            command += ["--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1"]
            command += ["--port", str(port), "--prometheus-port", str(metrics)]
            log = folder / f"{self.router}.log"
            with Process(command, core=None, log=log, extra={"PYTHONPATH": ""}) as process:
                url = f"http://127.0.0.1:{port}"
                process.await_ready(f"{url}/v1/models")
                yield Urls((url,))


def router_command(cache: Path, router: str) -> list[str]:
    """Return how a router is started; it is installed if it is not there.

    Raises:
        BenchError: it cannot be installed.
    """
    if router == "vllm-router":
        return [str(peer_environment(cache, router, VLLM_ROUTER_VERSION) / "bin" / router)]
    assert router == "sglang-router", router
    folder = peer_environment(cache, router, SGLANG_ROUTER_VERSION)
    return [str(folder / "bin" / "python"), "-m", "sglang_router.launch_router"]


@contextmanager
def plain_cards(
    run: Run, folder: Path, room: Room, *, cache_mib: int = CACHE_MIB, slot_folder: str = ""
) -> Iterator[tuple[str, ...]]:
    """Run two plain servers, one on each core; yields their addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    params = {
        "model": str(model_file(run)),
        "kv_tokens": room.kv_tokens,
        "slots": room.slots,
        "batch_tokens": room.batch_tokens,
        "cache_mib": cache_mib,
        "slot_folder": slot_folder,
    }
    with ExitStack() as stack:
        urls = []
        for core in cores():
            port = free_port()
            command = [sys.executable, "-m", "bench.schedule.card"]
            command += [json.dumps({**params, "port": port})]
            process = Process(command, core=core, log=folder / f"card-{core}.log")
            stack.enter_context(process)
            urls.append(f"http://127.0.0.1:{port}")
            process.await_ready(f"{urls[-1]}/health")
        yield tuple(urls)


def pin(pid: int, core: int) -> None:
    """Let every thread of a process run on one core only, those that it starts later too."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a new folder in shared memory; it is removed at the end.

    Raises:
        BenchError: this machine has none.
    """
    if not SHARED_MEMORY.is_dir():
        raise BenchError(f"stored KV needs shared memory at {SHARED_MEMORY}, which is not there")
    folder = Path(tempfile.mkdtemp(prefix="bedplate-bench-", dir=SHARED_MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)

"""One card seen from the gateway: its process started or adopted, kept alive, watched, restarted.

States of a card, in order of their life:

    down      no process, or one that is loading
    up        a server answers at `client`; all its slots were empty when it came up
    stopped   by `stop`; final

A card outlives a gateway that is killed (`child.py`), so a gateway that starts looks at the state
file first. A process is adopted only if pid and start time name the very process that wrote the
file, it was started with the same parameters, and it answers with the file's secret. All slots of
an adopted card are erased: what they hold is known to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from bedplate.core.ids import CardId
from bedplate.engines.llamacpp.child import start_ticks, write_private
from bedplate.engines.llamacpp.client import CALL_SECONDS, CardClient
from bedplate.engines.llamacpp.counters import Counters
from bedplate.engines.llamacpp.model import Model
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import BedplateError, EngineError, EngineLost

_LOG = logging.getLogger(__name__)

SPARE_TOKENS = 256
"""KV cells beyond what the core counts: at its last cell a server fails all it runs."""
READY_SECONDS = 180.0
"""Longest time from start to a loaded model."""
POLL_SECONDS = 0.05
STOP_SECONDS = 5.0
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_SECONDS = 60.0
"""A card that served this long starts its backoff anew."""
LOG_TAIL_BYTES = 600
ENDED = "process ended"
WATCH_SECONDS = 1.0
DOOR_SECONDS = 2.0
"""Longest wait for a sign of life; the second that is missed in a row ends the card."""
STUCK_SECONDS = CALL_SECONDS
"""Longest time in which no batch ends: all other calls to the card have failed by then."""


SERVER_VERSION = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
"""Build of the server; stored KV does not cross builds."""


class Card:
    """One card. `on_up` and `on_down` are called in the event loop, alternating, up first."""

    def __init__(
        self,
        card_id: CardId,
        settings: Settings,
        model: Model,
        *,
        slot_folder: Path | None,
        on_up: Callable[[Card], None],
        on_down: Callable[[Card, str], None],
    ) -> None:
        self.id = card_id
        self.client: CardClient | None = None
        self.base = Counters(0, 0, 0, 0)
        self.restarts = 0
        self.silent = False
        """True while the card is up and was not heard: another is asked first."""
        self.problem = ""
        """Why the card is not up; nothing while it is, or before it first was."""
        self._settings = settings
        self._on_up = on_up
        self._on_down = on_down
        folder = settings.data_dir / "cards"
        self._params_path = folder / f"{card_id}.params.json"
        self._state_path = folder / f"{card_id}.json"
        self._heartbeat_path = folder / f"{card_id}.heartbeat"
        self.log_path = settings.data_dir / "logs" / f"{card_id}.log"
        self._params = self._make_params(model, slot_folder)
        self._pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._why = ENDED

    @property
    def pid(self) -> int:
        """Process id of the card, 0 while it is down."""
        return self._pid

    @property
    def up(self) -> bool:
        """True while a server answers."""
        return self.client is not None

    def server(self) -> CardClient:
        """Return the client of a card that is up.

        Raises:
            EngineLost: the card is down.
        """
        if self.client is None:
            raise EngineLost(f"card {self.id} is down")
        return self.client

    async def start(self) -> None:
        """Bring the card up and keep it up until `stop`.

        Raises:
            EngineError: the process ended or did not load its model in time; the message holds the
                end of its log.
        """
        self._beat()
        self._tasks.append(asyncio.create_task(self._heartbeat()))
        await self._bring_up()
        self._tasks.append(asyncio.create_task(self._keep_up()))
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """End the process, politely first, and forget its state file."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._release_client()
        await self._end_process()
        self._state_path.unlink(missing_ok=True)
        self._params_path.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the process as a fault would (drills and tests)."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    async def abandon(self) -> None:
        """Let go of the card without ending it, as a killed gateway does (drills and tests)."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._release_client()

    def _make_params(self, model: Model, slot_folder: Path | None) -> dict[str, Any]:
        settings = self._settings
        params: dict[str, Any] = {
            "server": SERVER_VERSION,
            "model_path": str(model.path),
            "model_digest": model.digest,
            "kv_tokens": settings.kv_tokens + SPARE_TOKENS,
            "kv_bytes": (settings.kv_tokens + SPARE_TOKENS) * model.kv_bytes_per_token,
            "kv_type": settings.kv_type,
            "slots": settings.slots,
            "batch_tokens": settings.batch_tokens,
            "threads": settings.threads,
            "embedding": settings.embeddings,
            "slot_folder": str(slot_folder) if slot_folder else "",
            "orphan_seconds": settings.orphan_seconds,
            "verbosity": 2,
            "log": str(self.log_path.absolute()),
            "state": str(self._state_path.absolute()),
            "heartbeat": str(self._heartbeat_path.absolute()),
        }
        text = orjson.dumps(params, option=orjson.OPT_SORT_KEYS)
        params["params_digest"] = hashlib.sha256(text).hexdigest()
        return params

    def _beat(self) -> None:
        self._heartbeat_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._heartbeat_path.touch(mode=0o600)

    async def _heartbeat(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(self._settings.heartbeat_seconds)

    async def _bring_up(self) -> None:
        """Adopt or start a process; on return the card is up and reported."""
        self.client = await self._adopt() or await self._spawn()
        self.silent = False
        self.problem = ""
        self._on_up(self)

    async def _adopt(self) -> CardClient | None:
        state = _read_state(self._state_path)
        if state is None:
            return None
        pid = int(state["pid"])
        if start_ticks(pid) != state["start_ticks"]:
            return None
        self._pid = pid
        if state["params_digest"] == self._params["params_digest"]:
            client = CardClient(self.id, state["address"], state["secret"])
            try:
                await self._empty(client)
                return client
            except BedplateError:
                await client.close()
        await self._end_process()
        return None

    async def _empty(self, client: CardClient) -> None:
        """Erase every slot; erasing waits for what a dead gateway left running to stop."""
        for slot in range(len(await client.slots())):
            await client.erase(slot)
        self.base = await client.counters()

    async def _spawn(self) -> CardClient:
        self._state_path.unlink(missing_ok=True)
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._params["secret"] = secrets.token_urlsafe(24)
        write_private(self._params_path, self._params)
        self._process = process = self._launch()
        self._pid = process.pid
        deadline = time.monotonic() + READY_SECONDS
        while (state := _read_state(self._state_path)) is None or state["pid"] != self._pid:
            if process.poll() is not None:
                self._pid = 0
                raise EngineError(f"card {self.id} ended while it started: {self._log_tail()}")
            if time.monotonic() > deadline:
                await self._end_process()
                raise EngineError(f"card {self.id} did not start in {READY_SECONDS:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        client = CardClient(self.id, state["address"], state["secret"])
        self.base = await client.counters()
        return client

    def _launch(self) -> subprocess.Popen[bytes]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self.log_path, flags, 0o600), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bedplate.engines.llamacpp.child", str(self._params_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log_tail(self) -> str:
        if not self.log_path.exists():
            return f"see {self.log_path}"
        with self.log_path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").strip()
        return f"{tail} (whole log: {self.log_path})"

    async def _keep_up(self) -> None:
        """Wait for the process to end; report it; start another; for ever."""
        attempt = 0
        while True:
            began = time.monotonic()
            await self._ended()
            client, self.client = self.client, None
            if client is not None:
                client.fail_calls()
            self.problem, self._why = self._why, ENDED
            self._on_down(self, self.problem)
            if client is not None:
                await client.close()
            if time.monotonic() - began > STABLE_SECONDS:
                attempt = 0
            while True:
                await asyncio.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
                attempt += 1
                self.restarts += 1
                try:
                    await self._bring_up()
                    break
                except BedplateError as error:
                    self.problem = f"does not start again: {error.message}"
                    _LOG.warning("card %s does not start: %s", self.id, error.message)

    async def _watch(self) -> None:
        """Kill a process that lives and does not answer; `_keep_up` then starts another.

        Two things are asked: whether its door answers, which takes no time while it computes, and
        whether its slots do, which takes as long as the batch in progress.
        """
        stuck_since = 0.0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            client = self.client
            if client is None or self._settings.embeddings:
                continue
            alive = await client.answers("/health", DOOR_SECONDS)
            # Once more, as a gateway that stood still itself finds its own time-out first.
            alive = alive or await client.answers("/health", DOOR_SECONDS)
            now = time.monotonic()
            if alive and await client.answers("/slots", DOOR_SECONDS):
                stuck_since = 0.0
                self.silent = False
                continue
            stuck_since = stuck_since or now
            self.silent = True
            if client is self.client and (not alive or now - stuck_since > STUCK_SECONDS):
                _LOG.error("card %s does not answer: it is killed", self.id)
                self._why = "does not answer"
                stuck_since = 0.0
                self.kill()

    async def _ended(self) -> None:
        """Return when the process is gone, at once: by its pidfd, child or adopted alike."""
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        try:
            descriptor = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return

        def done() -> None:
            if not gone.done():
                gone.set_result(None)

        loop.add_reader(descriptor, done)
        try:
            await gone
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        if self._process is not None:
            self._process.wait()
            self._process = None
        self._pid = 0

    async def _release_client(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    async def _end_process(self) -> None:
        if self._pid == 0 or start_ticks(self._pid) == 0:
            return
        ended = asyncio.create_task(self._ended())
        os.kill(self._pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(ended), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            await ended


def _read_state(path: Path) -> dict[str, Any] | None:
    """Return a card's state file, None where there is none or it is not one."""
    try:
        state: Any = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    wanted = {"pid", "start_ticks", "address", "secret", "params_digest"}
    return state if isinstance(state, dict) and state.keys() >= wanted else None

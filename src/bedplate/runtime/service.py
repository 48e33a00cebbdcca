"""The service: a core, its journal, its engines and its pool, as one object.

The gateway calls `submit` and iterates over the stream that it returns; everything else here is for
starting, stopping, looking in, and telling the journal what happened at the door.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bedplate.config import Config
from bedplate.core import events as ev
from bedplate.core.actions import Settled
from bedplate.core.base import Base
from bedplate.core.events import Event
from bedplate.core.ids import ModelId, SessionId, TenantId, TurnId
from bedplate.engines.base import Embeddings, Engine
from bedplate.errors import Draining, EngineProtocolError, UnknownModel
from bedplate.journal import Content, Journal
from bedplate.pool import KvPool
from bedplate.runtime.calendars import Calendars
from bedplate.runtime.clock import Clock
from bedplate.runtime.committer import Committer, Hooks
from bedplate.runtime.driver import LiveDriver
from bedplate.runtime.embeddings import Embedder
from bedplate.runtime.executor import Executor, ExecutorDeps
from bedplate.runtime.live import LiveTurn
from bedplate.runtime.loop import CoreLoop
from bedplate.runtime.moves import MoveDeps, Moves
from bedplate.runtime.reading import read_stats
from bedplate.runtime.recovery import Recovered, recover
from bedplate.runtime.reports import Reports
from bedplate.runtime.slots import SlotUse
from bedplate.runtime.snapshots import Snapshots
from bedplate.runtime.stats import Stats
from bedplate.runtime.takeover import Heir, take_over
from bedplate.runtime.timers import CoreTimer
from bedplate.runtime.turns import Call, TurnStream

_log = logging.getLogger(__name__)

STORE_END_S = 5.0
"""How long a drain waits for the KV of the last turns to be in the pool."""


class Service:
    """One cell, live. Everything but `start`'s recovery happens in one event loop's thread.

    The service owns what it is given: `stop` stops the engines and closes pool and journal.
    """

    def __init__(
        self, config: Config, engines: Sequence[Engine], pool: KvPool | None, journal: Journal
    ) -> None:
        self.config = config
        self.engines = tuple(engines)
        self.pool = pool
        self.journal = journal
        self._by_model: dict[ModelId, Engine] = {engine.model: engine for engine in engines}
        assert len(self._by_model) == len(self.engines), "one engine serves one model"
        self._policy = config.policy()
        self._slots = SlotUse()
        self._reports = Reports()
        self._draining = False
        self._stopping = False
        self._closed = False
        self._calendars: Calendars
        self._clock: Clock
        self._committer: Committer
        self._driver: LiveDriver
        self._embedder: Embedder
        self._loop: CoreLoop
        self._snapshots: Snapshots

    # Life.

    async def start(self, *, progress: Callable[[int], None] | None = None) -> None:
        """Recover from the journal, then start every engine and wait until each is ready.

        Raises:
            JournalError: the journal cannot be recovered; the message says what to do.
            EngineError, ConfigError: an engine cannot start; everything else is stopped again.
        """
        try:
            recovered = await asyncio.to_thread(recover, self.journal, progress=progress)
        except BaseException:
            self._close_files()
            raise
        self._assemble(recovered)
        try:
            heir = Heir(
                self.base,
                self._driver,
                self.journal,
                self.pool,
                self._policy,
                self._calendars,
                self.post,
                self.note,
            )
            take_over(heir, recovered)
            await self.committed(self._committer.published)
            out = self._loop.is_out
            starts = [one.start(partial(self._heard, one), out) for one in self.engines]
            await asyncio.gather(*starts)
        except BaseException:
            await self.stop()
            raise

    async def drain(self, timeout_s: float) -> None:
        """Refuse new turns, let the accepted ones end, cancel after `timeout_s` what has not.

        The KV that the last turns left goes to the pool, so that their sessions can go on later.
        """
        if self._loop.halt_error is not None:
            return
        self._refuse_new()
        await self._driver.wait_idle(timeout_s)
        await self._driver.end_turns()
        if not await self._driver.moves.wait_idle(STORE_END_S):
            _log.warning("KV was still being moved after %.0f s; it is dropped", STORE_END_S)

    async def cut(self) -> None:
        """End every turn now. Its client gets an error and the bill what was used."""
        if self._loop.halt_error is None:
            self._refuse_new()
            await self._driver.end_turns()

    async def stop(self) -> None:
        """Stop the engines, write a snapshot, close journal and pool. Call `drain` first.

        Turns that still run are cut. Each card reports once more, so that the bill can be checked.
        """
        if self._stopping or self._closed:
            return
        self._stopping = True
        driver = self._driver
        if driver.turns:
            await self.cut()
        await driver.executor.stop()
        await driver.moves.stop()
        driver.muted = True
        stops = [engine.stop() for engine in self.engines]
        for result in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(result, BaseException):
                _log.error("an engine did not stop: %s", result)
        self._closed = True
        driver.timer.clear()
        self._calendars.stop()
        await driver.stop()
        if self._loop.halt_error is None:
            self._snapshots.take()
            self._loop.note("shutdown", "", "", {"turns": len(driver.turns)})
        for live in driver.turns.values():
            live.stream.fail(Draining("the service stopped"), self._committer.published)
        if not await self._committer.close():
            _log.error("records from %d on could not be written", self._committer.durable + 1)
        await self._snapshots.stop()
        self._close_files()

    def _close_files(self) -> None:
        self._closed = True
        self.journal.close()
        if self.pool is not None:
            self.pool.close()

    async def wait_halted(self) -> BaseException:
        """Return the error that halted the core, once one does; the process should exit then."""
        return await self._driver.wait_halted()

    # Turns.

    def submit(self, call: Call) -> TurnStream:
        """Journal the arrival and let the core decide; the decision comes through the stream.

        Raises:
            JournalError: the journal cannot be written now, or the core has halted. The call leaves
                no record, for there is nowhere to write it.
            UnknownModel: no engine serves the model.
        """
        self.check_writable()
        driver = self._driver
        lineage, prompt = call.lineage, call.prompt
        engine = self.engine_for(call.request.model)
        sizes = 0 <= prompt.reuse_tokens <= prompt.tokens > 0
        sizes = sizes and 0 <= prompt.prefix_tokens <= prompt.tokens
        if call.turn in driver.turns or not sizes:
            raise EngineProtocolError(f"engine {engine.name} prepared turn {call.turn} wrongly")
        stream = TurnStream(call.turn, committed=self._may_leave, cancel=self._cancel)
        stream.arrival_ns = self._clock.now_ns()
        driver.enter(LiveTurn(call, stream, engine))
        opens = lineage.session not in driver.tenants
        if opens:
            driver.tenants[lineage.session] = lineage.tenant
        stream.open_gate(self.post(call.arrived(), call.contents))
        if opens and call.turn not in driver.turns:
            del driver.tenants[lineage.session]  # refused at the door: no session was opened
        return stream

    async def embed(
        self, tenant: TenantId, lane: int, model: ModelId, inputs: Sequence[str]
    ) -> Embeddings:
        """Embed texts; metered like a turn, durable before the answer leaves. See `Embedder`.

        Raises:
            JournalError: the journal cannot be written now, or the core has halted.
            QuotaExceeded: a limit of the tenant is reached.
        """
        self.check_writable()
        result, seq = await self._embedder.run(tenant, lane, self.engine_for(model), inputs)
        await self._may_leave(seq)
        return result

    def close_session(self, session: SessionId, reason: str) -> int:
        """Close a session: its turns are cancelled, its KV goes; return the record's number."""
        return self.post(ev.SessionClosed(session, reason))

    # Journal.

    def check_writable(self) -> None:
        """Raise JournalError while the journal cannot be written, or when the core has halted."""
        self._loop.check_writable()

    def post(self, event: Event, contents: Sequence[Content] = ()) -> int:
        """Let an event happen; return its record's number. See `CoreLoop.post`."""
        seq = self._loop.post(event, contents)
        if self._loop.snapshot_due(idle=not self._driver.turns):
            self._snapshots.take()
        return seq

    def note(
        self,
        kind: str,
        tenant: str,
        session: str,
        body: dict[str, Any],
        contents: Sequence[Content] = (),
    ) -> int:
        """Write a note; return its record's number. See `CoreLoop.note`."""
        return self._loop.note(kind, tenant, session, body, contents)

    async def committed(self, seq: int) -> None:
        """Return once record `seq` is durable."""
        await self._committer.committed(seq)

    # Looking in.

    @property
    def base(self) -> Base:
        """The core, for `bedplate.core.view`; never call its `handle`."""
        return self._loop.base

    @property
    def ready(self) -> bool:
        """True while a new turn has a chance: a card is up and in, the journal takes records."""
        taking = not self._committer.stalled and self._loop.halt_error is None
        cards = self.base.state.cards.values()
        serving = any(card.up and not card.draining for card in cards)
        return taking and serving and not self._draining and not self._stopping

    @property
    def draining(self) -> bool:
        """True from the first `drain` on."""
        return self._draining

    def now_ns(self) -> int:
        """Return the time of the core's clock."""
        return self._clock.now_ns()

    def engine_for(self, model: str) -> Engine:
        """Return the engine that serves a model.

        Raises:
            UnknownModel: none does.
        """
        engine = self._by_model.get(ModelId(model))
        if engine is None:
            known = ", ".join(sorted(self._by_model))
            raise UnknownModel(
                f"no engine serves model {model!r}; there is: {known}", param="model"
            )
        return engine

    def models(self) -> tuple[ModelId, ...]:
        """Return the served models, in the configuration's order."""
        return tuple(self._by_model)

    def on_session_end(self, callback: Callable[[SessionId], None]) -> None:
        """Have `callback` called when a session has left the core. It must not raise."""
        self._driver.session_end.append(callback)

    def on_turn_end(self, callback: Callable[[Settled], None]) -> None:
        """Have `callback` called with the use of each turn that ended. It must not raise."""
        self._driver.turn_end.append(callback)

    def stats(self) -> Stats:
        """Read the counters. Cost: a few µs."""
        return read_stats(self._loop, self._committer, self._driver, self._slots)

    # Parts.

    def _refuse_new(self) -> None:
        if not self._draining:
            self._draining = True
            self.post(ev.ShutdownRequested())

    def _assemble(self, recovered: Recovered) -> None:
        self._clock = Clock(last_ns=recovered.last_ns)
        hooks = Hooks(stalled=self._stalled, crashed=self._crashed)
        self._committer = Committer(self.journal, hooks)
        self._driver = driver = LiveDriver(self.engines)
        self._loop = CoreLoop(
            recovered.base,
            self._clock,
            self._committer,
            driver,
            price_version=self.config.prices.version,
        )
        self._loop.resume_after(recovered.event_seq)
        self._snapshots = Snapshots(self.journal, self._committer, self._loop)
        driver.bind(post=self._tell, note=self.note, now_ns=self._clock.now_ns)
        self._embedder = Embedder(driver, self._clock.now_ns, self._tell)
        self._calendars = Calendars(self._policy, self._clock.now_ns, self._tell)
        driver.timer = CoreTimer(self._clock, lambda: self._tell(ev.TimerFired()))
        driver.executor = Executor(
            ExecutorDeps(
                post=self._tell,
                clock=self._clock,
                committer=self._committer,
                slots=self._slots,
                first_token=driver.first_token,
                together=self._loop.together,
            ),
            self._policy,
        )
        driver.moves = Moves(
            MoveDeps(
                post=self._tell,
                engine_of=driver.cards.get,
                tenant_of=driver.tenants.__getitem__,
                pool=self.pool,
                slots=self._slots,
            )
        )
        self._committer.start()

    async def _may_leave(self, seq: int) -> None:
        """Return once record `seq` is durable and the journal takes records."""
        await self._committer.committed(seq)
        if self._committer.stalled:
            await self._committer.flowing()

    def _tell(self, event: Event) -> int:
        """Post what something under way has to say; after a halt nobody listens."""
        return self.post(event) if self._loop.halt_error is None else 0

    def _cancel(self, turn: TurnId, reason: str) -> None:
        if turn in self._driver.turns:
            self._tell(ev.TurnCancelled(turn, reason))

    def _heard(self, engine: Engine, event: Event) -> None:
        """Take an event of an engine; while all stops, only each card's last report.

        Reports are dropped while the journal is stalled, and where they say nothing new.
        """
        if isinstance(event, ev.CardReport):
            fresh = self._stopping or self._reports.is_news(event, self._loop.events)
            if self._closed or self._committer.stalled or not fresh:
                return
        elif self._stopping:
            return
        if isinstance(event, ev.CardUp):
            self._driver.cards[event.card] = engine
        elif isinstance(event, ev.CardDown):
            self._driver.executor.report_progress(event.card)
        self._tell(event)

    def _stalled(self, on: bool) -> None:
        if not self._stopping:
            self._tell(ev.JournalStalled(on))

    def _crashed(self, error: BaseException) -> None:
        self._loop.halt(error)

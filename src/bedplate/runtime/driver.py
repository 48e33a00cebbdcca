"""Carries out what the core decides: each action goes to the part that knows how."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from bedplate.core import actions as act
from bedplate.core.actions import Action
from bedplate.core.events import (
    CallArrived,
    DispatchFailed,
    Event,
    LedgerRead,
    TurnArrived,
    TurnCancelled,
)
from bedplate.core.ids import CardId, SessionId, TenantId, TurnId
from bedplate.core.limits import LANE_NAMES
from bedplate.engines.base import Engine
from bedplate.errors import BedplateError, DeadlineExceeded, Draining, EngineLost
from bedplate.runtime.executor import Executor
from bedplate.runtime.live import LiveTurn
from bedplate.runtime.moves import Moves
from bedplate.runtime.outcome import alarm_words, error_of
from bedplate.runtime.stats import Histogram
from bedplate.runtime.timers import CoreTimer

_log = logging.getLogger(__name__)

END_S = 3.0
"""How long turns that were cancelled for a shutdown may take to end."""


class LiveDriver:
    """What runs on behalf of the core, and the action table. `bind` completes it.

    Attributes:
        turns: Turns between arrival and end, by id.
        tenants: Tenant of every session that the core knows.
        cards: Engine of every card that was ever up.
        owners: Tenant and session of turns that a former process left behind.
        asked: Calls that the core is being asked about, and its refusal.
        muted: While true, actions that need an engine or the pool are dropped: recovery tells the
            core itself what became of them.
        turns_ended: Turns by their last status.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.turns: dict[TurnId, LiveTurn] = {}
        self.tenants: dict[SessionId, TenantId] = {}
        self.cards: dict[CardId, Engine] = {}
        self.owners: dict[TurnId, tuple[TenantId, SessionId]] = {}
        self.asked: dict[TurnId, BedplateError | None] = {}
        self.muted = False
        self.turns_ended: dict[str, int] = {}
        self.out_tokens = 0
        self.ttft = tuple(Histogram() for _ in LANE_NAMES)
        self.queue = tuple(Histogram() for _ in LANE_NAMES)
        self.session_end: list[Callable[[SessionId], None]] = []
        self.turn_end: list[Callable[[act.Settled], None]] = []
        self.executor: Executor
        self.moves: Moves
        self.timer: CoreTimer
        self._engines = tuple(engines)
        self._post: Callable[[Event], int]
        self._note: Callable[[str, str, str, dict[str, Any]], int]
        self._now_ns: Callable[[], int]
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._halt: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._table: dict[type, Callable[[Any, int], None]] = {
            act.Dispatch: self._dispatch,
            act.Refuse: self._refuse,
            act.FailTurn: self._fail_turn,
            act.CancelTurn: self._cancel_turn,
            act.YieldTurn: self._yield_turn,
            act.LoadKv: self._move,
            act.StoreKv: self._move,
            act.DropKv: self._move,
            act.DropEntry: self._drop_entry,
            act.SetTimer: self._set_timer,
            act.ClearTimer: self._clear_timer,
            act.Alarm: self._alarm,
            act.Settled: self._settled,
            act.SessionEnded: self._session_ended,
        }

    def bind(
        self,
        *,
        post: Callable[[Event], int],
        note: Callable[[str, str, str, dict[str, Any]], int],
        now_ns: Callable[[], int],
    ) -> None:
        """Connect the way back to the core."""
        self._post = post
        self._note = note
        self._now_ns = now_ns

    def enter(self, live: LiveTurn) -> None:
        """Take a turn in that is about to arrive, and mind its client's deadline."""
        turn, due_at = live.call.turn, live.call.due_at
        self.turns[turn] = live
        if due_at is not None:
            live.due = asyncio.get_running_loop().call_at(due_at, self._due, turn)

    def ask(self, call: TurnId, event: CallArrived) -> BedplateError | None:
        """Tell the core of a call that it only counts; return its refusal, None if it may run."""
        self.asked[call] = None
        self._post(event)
        return self.asked.pop(call)

    def _due(self, turn: TurnId) -> None:
        live = self.turns.get(turn)
        if live is not None:
            seq = self._post(TurnCancelled(turn, "deadline"))
            error = error_of(DeadlineExceeded.code, "", retry_after_ns=0, refused=False)
            live.stream.fail(error, seq)

    def _leave(self, turn: TurnId) -> LiveTurn | None:
        live = self.turns.pop(turn, None)
        if live is not None and live.due is not None:
            live.due.cancel()
        return live

    # For the loop.

    def carry(self, action: Action, seq: int) -> None:
        """Start what the action of record `seq` asks for; never waits."""
        self._table[type(action)](action, seq)

    def owner(self, event: Event) -> tuple[str, str]:
        """Return tenant and session of an event, empty where it has none."""
        if type(event) is TurnArrived:
            return event.tenant, event.session
        if type(event) is LedgerRead or type(event) is CallArrived:
            return event.tenant, ""
        turn = getattr(event, "turn", None)
        if turn is not None:
            live = self.turns.get(turn)
            if live is not None:
                return live.call.lineage.tenant, live.call.lineage.session
            return self.owners.get(turn, ("", ""))
        session = getattr(event, "session", None)
        if session is not None:
            return self.tenants.get(session, TenantId("")), session
        return "", ""

    def halted(self, error: BaseException, seq: int) -> None:
        """Fail every turn: nothing decides about them any more."""
        for live in self.turns.values():
            live.stream.fail(BedplateError("the service met a bug in itself and stops"), seq)
        if not self._halt.done():
            self._halt.set_result(error)

    # For the service.

    async def wait_halted(self) -> BaseException:
        """Return the error that halted the core, once one does."""
        return await asyncio.shield(self._halt)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return True once no turn is live, False after `timeout_s`."""
        if not self.turns:
            return True
        self._idle = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait((self._idle,), timeout=timeout_s)
        return bool(done)

    async def end_turns(self) -> None:
        """Cancel every turn, tell its client, and wait for the ends."""
        for turn, live in list(self.turns.items()):
            seq = self._post(TurnCancelled(turn, "shutdown"))
            error = Draining("the service shut down before the answer was complete")
            live.stream.fail(error, seq)
        await self.wait_idle(END_S)

    def first_token(self, lane: int, after_ns: int) -> None:
        """Count a time to first token."""
        self.ttft[lane].add(after_ns)

    async def stop(self) -> None:
        """Give up the clean-up of sessions that is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The actions.

    def _dispatch(self, action: act.Dispatch, seq: int) -> None:
        if self.muted:
            return
        live = self.turns.get(action.turn)
        if live is None:
            # Left behind by a former process: there is no request to run.
            failed = DispatchFailed(action.turn, action.attempt, EngineLost.code, False, 0)
            self._post(failed)
            return
        stream = live.stream
        if action.attempt == 1:
            stream.queue_ns = self._now_ns() - stream.arrival_ns
            self.queue[live.call.lineage.lane].add(stream.queue_ns)
        stream.limit_tokens = action.limit_tokens
        stream.card = action.card
        self.executor.dispatch(live, action)

    def _refuse(self, action: act.Refuse, seq: int) -> None:
        live = self._leave(action.turn)
        self._count_end("refused")
        after_ns = action.retry_after_ns
        error = error_of(action.reason, action.detail, retry_after_ns=after_ns, refused=True)
        if live is not None:
            live.stream.fail(error, seq)
        elif action.turn in self.asked:
            self.asked[action.turn] = error
        self._check_idle()

    def _fail_turn(self, action: act.FailTurn, seq: int) -> None:
        live = self.turns.get(action.turn)
        if live is None:
            return
        error = live.error
        if error is None or error.code != action.reason:
            error = error_of(action.reason, action.detail, retry_after_ns=0, refused=False)
        live.stream.fail(error, seq)

    def _cancel_turn(self, action: act.CancelTurn, seq: int) -> None:
        live = self.turns.get(action.turn)
        if live is not None and not self.muted:
            self.executor.cancel(live, action.attempt)

    def _yield_turn(self, action: act.YieldTurn, seq: int) -> None:
        live = self.turns.get(action.turn)
        if live is not None and not self.muted:
            self.executor.make_way(live, action.attempt)

    def _move(self, action: act.LoadKv | act.StoreKv | act.DropKv, seq: int) -> None:
        if not self.muted:
            self.moves.start(action)

    def _drop_entry(self, action: act.DropEntry, seq: int) -> None:
        if not self.muted:
            self.moves.start(action)

    def _set_timer(self, action: act.SetTimer, seq: int) -> None:
        self.timer.set(action.at_ns)

    def _clear_timer(self, action: act.ClearTimer, seq: int) -> None:
        self.timer.clear()

    def _alarm(self, action: act.Alarm, seq: int) -> None:
        level = logging.WARNING if action.level else logging.INFO
        words = alarm_words(action.kind, action.level)
        _log.log(level, "alarm %s of %s: %s", action.kind, action.subject, words)
        body = {"kind": action.kind, "subject": action.subject, "level": action.level}
        self._note("alarm", "", "", {**body, "event_seq": seq})

    def _settled(self, action: act.Settled, seq: int) -> None:
        """The last word on a turn; its Refuse or FailTurn came before in the same step."""
        if not action.turn:
            return  # the last gap of a session: nothing ends here
        live = self._leave(action.turn)
        self.owners.pop(action.turn, None)
        if action.status != "refused":
            self._count_end(action.status)
        self.out_tokens += action.out_tokens
        if live is not None and action.status == "cancelled":
            error = error_of("client_cancelled", "", retry_after_ns=0, refused=False)
            live.stream.fail(error, seq)
        for callback in self.turn_end:
            callback(action)
        self._check_idle()

    def _count_end(self, status: str) -> None:
        self.turns_ended[status] = self.turns_ended.get(status, 0) + 1

    def _check_idle(self) -> None:
        if not self.turns and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _session_ended(self, action: act.SessionEnded, seq: int) -> None:
        self.tenants.pop(action.session, None)
        for callback in self.session_end:
            callback(action.session)
        task = asyncio.get_running_loop().create_task(self._forget(action.session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, session: SessionId) -> None:
        for engine in self._engines:
            try:
                await engine.forget(session)
            except BedplateError as error:
                _log.warning("engine %s: session %s: %s", engine.name, session, error)

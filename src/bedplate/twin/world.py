"""The world around one core in virtual time: it drives `Base` as the live service does.

One step, as in `runtime/loop.py`: an event is handled by the core, its actions are carried out in
order, and an event that an action causes at once is handled after it. What takes time goes to the
heap. Nothing here knows how the core decides.

What differs from the live service: a commit takes no time, cards send no CardReport (they decide
nothing), and words that would be stale on arrival (of a run or move whose card was just lost) are
not sent.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.actions import Action
from bedplate.core.base import SHIPPED, Base
from bedplate.core.events import Event
from bedplate.core.ids import EntryId, ModelId
from bedplate.core.rules import Rules
from bedplate.core.states import RUNNING, STORED, Turn
from bedplate.core.units import SECOND_NS
from bedplate.twin.card import VirtualCard
from bedplate.twin.clients import Clients
from bedplate.twin.heap import TIMER, Heap
from bedplate.twin.retry import RETRIES, RetryRule
from bedplate.twin.samples import Samples
from bedplate.twin.site import Site
from bedplate.twin.stepper import Host
from bedplate.twin.transfer import Move, Transfer
from bedplate.twin.workload.form import Workload

START_NS = SECOND_NS
"""The core's clock when a run begins: its times are positive."""

Heard = Callable[[Base, int, Event, tuple[Action, ...]], None]
"""Hears of each event once the core has handled it, before its actions are carried out."""


class World:
    """One run. `run` may be called once."""

    def __init__(
        self,
        site: Site,
        workload: Workload,
        *,
        seed: int,
        close_sessions: bool,
        heard: Heard | None = None,
        retry: RetryRule = RETRIES,
        rules: Rules = SHIPPED,
    ) -> None:
        self.heap = Heap(START_NS)
        self.base = Base(rules)
        self.away = False
        self.entries: dict[EntryId, int] = {}
        self._policy = site.policy._replace(pool_bytes_max=site.pool.size_bytes)
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._heard = heard
        self._timer_version = 0
        self.transfer = Transfer(
            self.heap,
            random.Random(f"twin {seed}"),
            bytes_per_s=site.pool.bytes_per_s,
            base_ns=site.pool.base_ns,
            tail=site.pool.tail,
            done=self._moved,
        )
        self.clients = Clients(
            workload,
            heap=self.heap,
            tell=self.tell,
            model=ModelId(site.cards[0].profile.model),
            close_sessions=close_sessions,
            retry=retry,
        )
        memos: dict[int, dict[int, float]] = {}
        hosts: dict[tuple[str, float], Host] = {}
        self.cards = {}
        for spec in site.cards:
            memo = memos.setdefault(id(spec.profile), {})
            host: Host | None = None
            if spec.profile.contention:
                place = (spec.partition, spec.profile.contention)
                host = hosts.setdefault(place, Host(spec.profile.contention))
            card = VirtualCard(
                spec.id,
                spec.partition,
                spec.profile,
                memo=memo,
                heap=self.heap,
                tell=self.tell,
                start_move=self.transfer.start,
                progress_tokens=site.progress_tokens,
                host=host,
            )
            self.cards[card.id] = card
        self._table = self._carry_out()

    def _carry_out(self) -> dict[type[Any], Callable[[Any], None]]:
        """Return what carries out each kind of action."""
        return {
            act.Dispatch: self._dispatch,
            act.Refuse: self.clients.refused,
            act.FailTurn: self.clients.failed,
            act.CancelTurn: self._cancel,
            act.YieldTurn: self._yield,
            act.LoadKv: self._load,
            act.StoreKv: self._store,
            act.DropKv: self._drop,
            act.DropEntry: self._drop_entry,
            act.SetTimer: self._set_timer,
            act.ClearTimer: self._clear_timer,
            act.Alarm: _ignore,
            act.Settled: self.clients.settled,
            act.SessionEnded: self._session_ended,
        }

    def run(self, samples: Samples) -> None:
        """Run until every session is over and no move is under way."""
        heap, clients = self.heap, self.clients
        self.tell(ev.PolicyChanged(self._policy))
        for card in self.cards.values():
            card.start()
        clients.start()
        entries, pop = heap.entries, heapq.heappop
        while entries and (clients.left or self.transfer.active or self.base.state.turns):
            at_ns, _, _, fire, argument = pop(entries)
            if at_ns > samples.next_ns:
                samples.take(self, at_ns)
            heap.now_ns = at_ns
            fire(argument)
        samples.end(self)

    def tell(self, event: Event) -> None:
        """Let the core handle an event, and carry out what it answers."""
        inbox = self._inbox
        if self._busy:
            inbox.append(event)
            return
        self._busy = True
        base, heard, table, now_ns = self.base, self._heard, self._table, self.heap.now_ns
        while True:
            actions = base.handle(now_ns, event)
            if heard is not None:
                heard(base, now_ns, event, actions)
            for action in actions:
                table[type(action)](action)
            if not inbox:
                break
            event = inbox.popleft()
        self._busy = False

    # The actions.

    def _dispatch(self, action: act.Dispatch) -> None:
        call = self.clients.calls[action.turn]
        call.card = action.card
        self.cards[action.card].dispatch(action, call)

    def _cancel(self, action: act.CancelTurn) -> None:
        card = self.clients.calls[action.turn].card
        self.cards[card].cancel(action.turn, action.attempt)

    def _yield(self, action: act.YieldTurn) -> None:
        card = self.clients.calls[action.turn].card
        self.cards[card].cancel(action.turn, action.attempt, yields=True)

    def _load(self, action: act.LoadKv) -> None:
        self.cards[action.card].moving.load(action, self.entries[action.entry])

    def _store(self, action: act.StoreKv) -> None:
        self.cards[action.card].moving.store(action)

    def _drop(self, action: act.DropKv) -> None:
        self.cards[action.card].moving.drop(action)

    def _drop_entry(self, action: act.DropEntry) -> None:
        self.entries.pop(action.entry, None)
        self.tell(ev.EntryDropped(action.entry))

    def _set_timer(self, action: act.SetTimer) -> None:
        self._timer_version += 1
        at_ns = max(action.at_ns, self.heap.now_ns)
        self.heap.at(at_ns, TIMER, self._timer_due, self._timer_version)

    def _clear_timer(self, _: act.ClearTimer) -> None:
        self._timer_version += 1

    def _timer_due(self, version: int) -> None:
        if version == self._timer_version and not self.away:
            self.tell(ev.TimerFired())

    def _session_ended(self, action: act.SessionEnded) -> None:
        self.clients.session_ended(action.session)

    def _moved(self, move: Move, failure: str) -> None:
        if move.op == "store" and not failure:
            self.entries[move.entry] = move.tokens
        self.cards[move.card].moving.ended(move, failure)

    # The gateway's life.

    def vanish(self) -> None:
        """The service is gone: nobody decides, calls break, what runs and moves ends unheard."""
        self.away = True
        self.transfer.abandon()
        for card in self.cards.values():
            card.abandon()
        self.clients.hang_up()

    def recover(self) -> None:
        """The service is back: tell the core what `runtime/recovery.py` would, in its order."""
        assert self.away
        state = self.base.state
        table = self._table
        muted = (
            act.Dispatch,
            act.CancelTurn,
            act.YieldTurn,
            act.LoadKv,
            act.StoreKv,
            act.DropKv,
            act.DropEntry,
        )
        self._table = {kind: _ignore if kind in muted else fire for kind, fire in table.items()}
        turns = list(state.turns.values())
        self.tell(ev.JournalStalled(False))
        self.tell(ev.TimerFired())
        for turn in turns:
            if turn.state != RUNNING:
                self.tell(ev.TurnCancelled(turn.id, "client_cancelled"))
        for turn in turns:
            if turn.state == RUNNING and turn.id in state.turns:
                self.tell(_lost(turn))
        for card in list(state.cards.values()):
            if card.up:
                self.tell(ev.CardDown(card.id, "the service was lost"))
        assert not state.turns, "every turn of the former process has ended"
        kept = [entry.id for entry in state.entries.values() if entry.state == STORED]
        self.entries = {entry: self.entries[entry] for entry in kept}
        for entry_id in list(state.entries):
            if entry_id not in self.entries:
                self.tell(ev.EntryDropped(entry_id))
        self._table = table
        self.away = self.clients.away = False
        self.tell(ev.PolicyChanged(self._policy))
        for virtual in self.cards.values():
            if virtual.alive:
                self.tell(virtual.up_event())


def _ignore(_: Any) -> None:
    """Do nothing."""


def _lost(turn: Turn) -> ev.TurnEnded:
    """What a lost turn used, as far as its last word told."""
    prompt_tokens, cached_tokens = turn.told or (0, 0)
    if prompt_tokens == 0 and turn.why == "decoding":
        prompt_tokens = turn.prompt_tokens
    return ev.TurnEnded(
        turn=turn.id,
        attempt=turn.attempt,
        status="lost",
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        out_tokens=turn.out_tokens,
        kv_tokens=0,
        tool="",
        exact=False,
    )

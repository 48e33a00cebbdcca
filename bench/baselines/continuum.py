"""Continuum (Li et al., 2511.02230): KV is pinned through a tool gap for a time to live.

The paper chooses the time that maximises P(tool ends within it) × what that saves − the time
itself, over the durations seen of the tool, or of all tools while it has under a hundred; it serves
by the arrival of sessions, and unpins the latest arrived where nothing else can run. What is saved
is the prefill of the context and the mean wait in the queue. The released code differs: it pins for
two seconds where the tool's mean time is no longer than that, else not.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import Event, TurnArrived, TurnEnded
from bedplate.core.ids import SessionId, TurnId
from bedplate.core.placement import Plan
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Slot, Turn
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bench.baselines import placing
from bench.baselines.form import LRU, Chosen, by_session

BELIEVED = 100
"""Durations of a tool with which its own history is used."""
RELEASED_TTL_NS = 2 * SECOND_NS
_WAIT_SHARE = 0.05
"""How far the mean wait in the queue moves with each turn."""


class Continuum:
    """One run. `released` follows the code instead of the paper."""

    def __init__(self, site: Site, *, released: bool) -> None:
        profile = site.cards[0].profile
        budget = profile.batching.token_budget
        self._prompt_ns = profile.step.fixed_ns(budget, 0) / budget
        self._released = released
        self._durations: dict[str, list[int]] = {"": []}
        self._wait_ns = 0.0
        self._tool: dict[SessionId, tuple[str, int]] = {}
        self._pinned: dict[SessionId, int] = {}
        self._session: dict[TurnId, SessionId] = {}

    def chosen(self) -> Chosen:
        """Return the rules of this run."""
        rules = LRU._replace(rank=by_session, plan=self._plan, worth=self._worth)
        return Chosen(rules, self._heard)

    def _heard(self, base: Base, now_ns: int, event: Event, _: tuple[Action, ...]) -> None:
        if isinstance(event, TurnArrived):
            self._session[event.turn] = event.session
            self._pinned.pop(event.session, None)
            before = self._tool.pop(event.session, None)
            if before is not None:
                tool, ended_ns = before
                insort(self._durations.setdefault(tool, []), now_ns - ended_ns)
                insort(self._durations[""], now_ns - ended_ns)
        elif isinstance(event, TurnEnded):
            session = self._session.pop(event.turn)
            self._tool[session] = (event.tool or "person", now_ns)
            self._pinned[session] = now_ns + self.ttl_ns(event.tool or "person", event.kv_tokens)

    def ttl_ns(self, tool: str, tokens: int) -> int:
        """Return how long a context is pinned while a tool runs; 0 for not at all."""
        durations = self._durations.get(tool, [])
        if self._released:
            mean = sum(durations) / len(durations) if durations else 0.0
            return RELEASED_TTL_NS if mean <= RELEASED_TTL_NS else 0
        if len(durations) < BELIEVED:
            durations = self._durations[""]
        saved_ns = tokens * self._prompt_ns + self._wait_ns
        best_ns, best = 0, 0.0
        count = len(durations)
        for at in range(0, count, max(1, count // BELIEVED)):
            within = bisect_right(durations, durations[at]) / count
            gain = within * saved_ns - durations[at]
            if gain > best:
                best_ns, best = durations[at], gain
        return best_ns

    def _is_pinned(self, state: State, slot: Slot) -> bool:
        assert slot.branch is not None
        return self._pinned.get(slot.branch.session.id, 0) > state.now_ns

    def _worth(self, state: State, slot: Slot) -> Rank:
        assert slot.branch is not None
        pinned = self._is_pinned(state, slot)
        arrived_ns = slot.branch.session.created_ns
        return (int(pinned), -arrived_ns if pinned else slot.used_ns, slot.id)

    def _plan(self, state: State, turn: Turn) -> Plan | None:
        """Wait rather than take pinned KV, unless nothing runs on the card that would end."""
        found = placing.in_line(state, turn)
        if found is None:
            return None
        self._wait_ns += _WAIT_SHARE * (state.now_ns - turn.arrived_ns - self._wait_ns)
        if found.card.running and any(self._is_pinned(state, slot) for slot in found.victims):
            turn.why = "no_room"
            return None
        return found


def paper(site: Site) -> Chosen:
    """Return the paper's policy."""
    return Continuum(site, released=False).chosen()


def released(site: Site) -> Chosen:
    """Return the released code's."""
    return Continuum(site, released=True).chosen()

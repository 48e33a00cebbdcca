"""The waiting line of an engine's own scheduler: its order decides which prompt begins next.

An engine that computes prompts in chunks begins a waiting one as soon as a step has room for it, so
about one prompt at a time is under way on a card, and the scheduler's order decides which is next.
In the twin a dispatched prompt cannot be overtaken; so turns wait in the core until their card has
fewer than `AHEAD_TOKENS` prompt tokens to compute, enough to be busy until the next one is there.
"""

from __future__ import annotations

from dataclasses import replace

from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import DispatchFailed, Event, TurnCancelled, TurnEnded, TurnStarted
from bedplate.core.ids import CardId, TurnId
from bedplate.core.placement import Plan
from bedplate.core.rules import Rules
from bedplate.core.state import State
from bedplate.core.states import Branch, Card, Turn
from bedplate.twin.world import Heard
from bench.baselines import placing
from bench.baselines.form import Chosen

AHEAD_TOKENS = 2_048


class Queue:
    """Prompt tokens under way on each card, over one run."""

    def __init__(self) -> None:
        self._tokens: dict[CardId, int] = {}
        self._turns: dict[TurnId, tuple[CardId, int]] = {}

    def plan(self, state: State, turn: Turn) -> Plan | None:
        """Find a way and take it."""
        found = self.find(state, turn)
        if found is not None:
            self.take(turn, found)
        return found

    def find(self, state: State, turn: Turn) -> Plan | None:
        """Find a way where the KV is, else where the fewest run, on cards whose line is short."""
        return placing.home_first(state, turn, self._is_open)

    def take(self, turn: Turn, way: Plan) -> None:
        """Note that a turn's prompt goes on a card."""
        self._over(turn.id)
        tokens = max(1, turn.prompt_tokens - _held(turn.branch, turn))
        self._turns[turn.id] = (way.card.id, tokens)
        self._tokens[way.card.id] = self._tokens.get(way.card.id, 0) + tokens

    def heard(self, base: Base, now_ns: int, event: Event, _: tuple[Action, ...]) -> None:
        """Hear of prompts that are computed, or never will be."""
        if isinstance(event, TurnStarted | TurnEnded | DispatchFailed | TurnCancelled):
            self._over(event.turn)

    def _over(self, turn: TurnId) -> None:
        card, tokens = self._turns.pop(turn, (CardId(""), 0))
        if tokens:
            self._tokens[card] -= tokens

    def _is_open(self, card: Card) -> bool:
        return self._tokens.get(card.id, 0) < AHEAD_TOKENS


def in_line(chosen: Chosen) -> Chosen:
    """Let a policy's order decide which prompt is next on a card."""
    queue, inner = Queue(), chosen.heard

    def heard(base: Base, now_ns: int, event: Event, actions: tuple[Action, ...]) -> None:
        queue.heard(base, now_ns, event, actions)
        if inner is not None:
            inner(base, now_ns, event, actions)

    both: Heard = heard
    rules: Rules = chosen.rules._replace(plan=queue.plan)
    return replace(chosen, rules=rules, heard=both)


def _held(branch: Branch, turn: Turn) -> int:
    """Return how many leading tokens of the prompt are in some KV."""
    if branch.slot is not None:
        return min(turn.reuse_tokens, branch.slot.shared_tokens)
    if branch.entry is not None:
        return min(turn.reuse_tokens, branch.entry.shared_tokens)
    return 0

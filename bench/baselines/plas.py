"""Autellix's PLAS (2502.13965): of sessions the one that was served least goes first.

Service is the time that a session's turns have run. It is counted in levels that double, so that
sessions of one level keep their order of arrival.
"""

from __future__ import annotations

from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import Event, TurnArrived, TurnEnded, TurnStarted
from bedplate.core.ids import SessionId, TurnId
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Turn
from bedplate.core.units import SECOND_NS
from bedplate.twin.run import Site
from bench.baselines import placing
from bench.baselines.form import LRU, Chosen

LEVEL_NS = 2 * SECOND_NS
"""Service of the first level."""


class Plas:
    """One run."""

    def __init__(self) -> None:
        self._served: dict[SessionId, int] = {}
        self._running: dict[TurnId, tuple[SessionId, int]] = {}

    def chosen(self) -> Chosen:
        """Return the rules of this run."""
        return Chosen(LRU._replace(rank=self._rank, plan=placing.in_line), self._heard)

    def _heard(self, base: Base, now_ns: int, event: Event, _: tuple[Action, ...]) -> None:
        if isinstance(event, TurnArrived):
            self._running[event.turn] = (event.session, 0)
        elif isinstance(event, TurnStarted):
            self._running[event.turn] = (self._running[event.turn][0], now_ns)
        elif isinstance(event, TurnEnded):
            session, began_ns = self._running.pop(event.turn)
            if began_ns:
                self._served[session] = self._served.get(session, 0) + now_ns - began_ns

    def _rank(self, state: State, turn: Turn) -> Rank:
        served_ns = self._served.get(turn.branch.session.id, 0)
        return ((served_ns // LEVEL_NS).bit_length(), turn.serial)


def make(site: Site) -> Chosen:
    """Return the policy."""
    return Plas().chosen()

"""Other choices for the core of a base that serves, for ablations on real cards only."""

from __future__ import annotations

from collections.abc import Mapping

from bedplate.core.base import SHIPPED
from bedplate.core.rules import Rank, Rules
from bedplate.core.state import State
from bedplate.core.states import Slot, Turn


def by_arrival(_state: State, turn: Turn) -> Rank:
    """Rank turns first come, first served, as engines do."""
    return (turn.serial,)


def by_session(_state: State, turn: Turn) -> Rank:
    """Rank turns by when their sessions began: the oldest session first."""
    return (turn.branch.session.serial, turn.serial)


def by_advance(_state: State, turn: Turn) -> Rank:
    """Rank turns by how far their sessions are: the longest context first."""
    return (-turn.reuse_tokens, turn.branch.session.serial, turn.serial)


def keep_nothing(_state: State, _slot: Slot) -> bool:
    """Free what an ended turn left on its card."""
    return False


RULES: Mapping[str, Rules] = {
    "shipped": SHIPPED,
    "arrival": SHIPPED._replace(rank=by_arrival),
    "oldest": SHIPPED._replace(rank=by_session),
    "advanced": SHIPPED._replace(rank=by_advance),
    "release": SHIPPED._replace(keeps=keep_nothing),
}
"""By name; each differs from what is shipped in one choice."""

"""Which of the waiting turns of a lane goes first: that of the session which began first.

A session that was let on is carried through, and those that came later wait for their first answer
instead of all waiting at every turn. Of sessions that began together the one with more turns behind
it goes first, which is nearer to its end.
"""

from __future__ import annotations

from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Turn


def oldest_session(state: State, turn: Turn) -> Rank:
    """Rank a turn by the age of its session, then by its own."""
    return (turn.branch.session.serial, turn.serial)

"""Other choices for the core of a base that serves, for ablations on real cards only."""

from __future__ import annotations

from collections.abc import Mapping

from bedplate.core.base import SHIPPED
from bedplate.core.rules import Rank, Rules
from bedplate.core.state import State
from bedplate.core.states import Turn
from bench.baselines.form import (
    admit_all,
    by_arrival,
    by_session,
    keep_nothing,
    least_recent,
)


def by_advance(_state: State, turn: Turn) -> Rank:
    """Rank turns by how far their sessions are: the longest context first."""
    return (-turn.reuse_tokens, turn.branch.session.serial, turn.serial)


RULES: Mapping[str, Rules] = {
    "shipped": SHIPPED,
    "arrival": SHIPPED._replace(rank=by_arrival),
    "oldest": SHIPPED._replace(rank=by_session),
    "advanced": SHIPPED._replace(rank=by_advance),
    "release": SHIPPED._replace(keeps=keep_nothing),
    "lru": SHIPPED._replace(worth=least_recent),
    "admit-all": SHIPPED._replace(fits=admit_all),
}
"""By name; each differs from what is shipped in one choice."""

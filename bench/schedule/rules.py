"""Other choices for the core of a base that serves, for ablations on real cards only."""

from __future__ import annotations

from collections.abc import Mapping

from bedplate.core.base import SHIPPED
from bedplate.core.fairness import expected_cost
from bedplate.core.order import PATIENCE
from bedplate.core.rules import Rank, Rules
from bedplate.core.state import State
from bedplate.core.states import Turn
from bedplate.core.units import SECOND_NS
from bench.baselines.form import (
    admit_all,
    by_arrival,
    by_session,
    keep_nothing,
    least_recent,
)

AGE_NS = 60 * SECOND_NS
"""How much earlier than its arrival a turn of an old session ranks."""


def by_advance(_state: State, turn: Turn) -> Rank:
    """Rank turns by how far their sessions are: the longest context first."""
    return (-turn.reuse_tokens, turn.branch.session.serial, turn.serial)


def by_age_and_work(_state: State, turn: Turn) -> Rank:
    """Rank as is shipped, but by when the session began, as far as `AGE_NS` goes."""
    branch = turn.branch
    began_ns = max(branch.session.created_ns, turn.asked_ns - AGE_NS)
    work_ns = branch.group.costs.time_of(expected_cost(turn))
    return (min(began_ns, turn.asked_ns) + PATIENCE * work_ns, turn.serial)


RULES: Mapping[str, Rules] = {
    "shipped": SHIPPED,
    "arrival": SHIPPED._replace(rank=by_arrival),
    "oldest": SHIPPED._replace(rank=by_session),
    "aged": SHIPPED._replace(rank=by_age_and_work),
    "advanced": SHIPPED._replace(rank=by_advance),
    "release": SHIPPED._replace(keeps=keep_nothing),
    "lru": SHIPPED._replace(worth=least_recent),
    "admit-all": SHIPPED._replace(fits=admit_all),
}
"""By name; each differs from what is shipped in one choice."""

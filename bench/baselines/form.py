"""What a baseline is, and the choices that most of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bedplate.core import prefixes, retention
from bedplate.core.group import Group
from bedplate.core.rules import Rank, Rules
from bedplate.core.state import State
from bedplate.core.states import Branch, Entry, Slot, Turn
from bedplate.twin.run import Site
from bedplate.twin.world import Heard
from bench.baselines import placing


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rules of one run; `heard` learns from what happens, where the policy does."""

    rules: Rules
    heard: Heard | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """One policy. `make` begins a run of it; nothing is carried over between runs."""

    name: str
    about: str
    make: Callable[[Site], Chosen]


def by_arrival(state: State, turn: Turn) -> Rank:
    """Rank turns first come, first served."""
    return (turn.serial,)


def by_session(state: State, turn: Turn) -> Rank:
    """Rank turns by when their sessions began, then by arrival."""
    return (turn.branch.session.created_ns, turn.serial)


def all_alike(state: State, turn: Turn, least: int) -> int:
    """Give no tenant precedence."""
    return 0


def admit_all(state: State, group: Group, turn: Turn) -> bool:
    """Let every session in, as engines do: what does not fit waits for a card."""
    return True


def least_recent(state: State, slot: Slot) -> Rank:
    """Rank idle slots by when they became idle."""
    return (slot.used_ns, slot.id)


def keep_all(state: State, slot: Slot) -> bool:
    """Keep what an ended turn left on its card."""
    return True


def keep_nothing(state: State, slot: Slot) -> bool:
    """Free what an ended turn left on its card."""
    return False


def oldest_copy(state: State, entry: Entry) -> Rank:
    """Rank copies in the pool by when they were stored."""
    return (entry.id,)


def no_lease(state: State, branch: Branch) -> int:
    """Protect nothing."""
    return 0


def load_all(state: State, entry: Entry, saved_tokens: int) -> bool:
    """Load whatever the pool has."""
    return True


LRU = Rules(
    rank=by_arrival,
    tenant_rank=all_alike,
    fits=admit_all,
    plan=placing.home_first,
    worth=least_recent,
    keeps=keep_all,
    entry_worth=oldest_copy,
    lease=no_lease,
    loads=load_all,
    stores=retention.stores,
    shares=prefixes.shares,
)
"""An engine with a prefix cache and offload to the pool, behind a router that knows where KV is."""

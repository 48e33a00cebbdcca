"""What a run of the twin came to: one row a turn, session and card, and samples over time.

All times are virtual nanoseconds since the run began; −1 where something never happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class TurnRow(NamedTuple):
    """One turn. `session` is the index in the workload, `turn` its number in the session.

    `status` is that of `core.actions.Settled`, or `unfinished`. `queue_ns` passed between arrival
    and dispatch, as the core settled it; `retry_ns` before that, from arrival to the client's last
    try. Of its prompt `again_tokens` were computed although they had been computed before.
    """

    session: int
    turn: int
    card: str
    arrival_ns: int
    first_ns: int
    end_ns: int
    queue_ns: int
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    status: str
    retry_ns: int = 0
    again_tokens: int = 0


class SessionRow(NamedTuple):
    """One session. `end_ns` is the end of its last turn, −1 if that never came."""

    session: int
    start_ns: int
    end_ns: int
    turns_done: int
    failed: bool


class CardRow(NamedTuple):
    """One card over the run. `busy_ns`: steps or stalls; `stall_ns` of it: stores and loads."""

    card: str
    busy_ns: int
    stall_ns: int
    up_ns: int
    prompt_tokens: int
    out_tokens: int
    stores: int
    loads: int
    moved_bytes: int


class Sample(NamedTuple):
    """The base at one instant. KV in tokens over all cards, pool in bytes, turns by state.

    `moves` are stores and loads under way. `why` counts the waiting turns by what they wait for, in
    the words of the core (`core.view.WHY_TEXT`), sorted.
    """

    time_ns: int
    kv_used_tokens: int
    kv_running_tokens: int
    pool_bytes: int
    waiting: int
    running: int
    sessions: int
    moves: int = 0
    why: tuple[tuple[str, int], ...] = ()


class FaultRow(NamedTuple):
    """One fault. `kind` as in a scenario, `thing` is what it hit; `end_ns` −1 for never.

    `turns_cut` ran on what it took away, `moves_cut` were under way there.
    """

    kind: str
    thing: str
    at_ns: int
    end_ns: int
    turns_cut: int
    moves_cut: int


@dataclass(slots=True)
class Outcome:
    """A whole run. `digest` is the core's, in hex; `counters` are the core's own.

    `failures` counts calls that were refused or broke, by their reason; `retries_ns` has when each
    of those that were asked again had failed.
    """

    name: str
    seed: int
    digest: str = ""
    events: int = 0
    duration_ns: int = 0
    wall_s: float = 0.0
    kv_total_tokens: int = 0
    pool_total_bytes: int = 0
    turns: list[TurnRow] = field(default_factory=list)
    sessions: list[SessionRow] = field(default_factory=list)
    cards: list[CardRow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    retries_ns: list[int] = field(default_factory=list)
    faults: list[FaultRow] = field(default_factory=list)

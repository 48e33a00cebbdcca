"""The loads: agent sessions cut to the size of a slow card, begun at a rate that it can bear.

Sessions come from the LMCache agent traces or from the personas. Their tokens and gaps are scaled
down by stated factors; their shape (how contexts grow, how long answers are beside prompts, how
gaps vary) is kept. The rate of starts makes the load: the work of all sessions, each turn's history
cached, is `load` of what the cards can compute between the first start and the last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from bedplate.core.limits import INTERACTIVE
from bedplate.core.units import SECOND_NS
from bedplate.twin.workload import generate, transform
from bedplate.twin.workload.form import Session, Workload, prompt_tokens
from bedplate.twin.workload.read import read_workload
from bench.schedule.speed import TEMPLATE_TOKENS, Speed, session_work_s
from bench.twin.speed import trace

CARDS = 2
LMCACHE = ("lmcache-agent-trace", "dev")
PERSONAS = ("customer_service", "wealth_adviser", "insurance_claim", "fraud_triage")
TURNS = (4, 6)
"""Sessions have at least and at most so many turns; longer ones are cut."""
CONTEXT_TOKENS = 1_600
ANSWER_TOKENS = 80
GAP_SECONDS = 6.0
START_TOKENS_LEAST = 500
"""Recorded sessions that begin with less are no agents of their own: simulated users, checkers."""


class Source(NamedTuple):
    """Where sessions come from, and by what their tokens and answers are multiplied."""

    name: str
    tokens: float
    answers: float
    gaps: float


class Level(NamedTuple):
    """How much is asked. `oversubscribed`: KV of all sessions ÷ KV of all cards."""

    name: str
    load: float
    oversubscribed: float
    sessions: int


SOURCES = (Source("lmcache", 0.35, 0.16, 0.6), Source("personas", 0.13, 0.13, 0.3))
OVERSUBSCRIBED = Level("oversubscribed", 0.95, 2.0, 18)
LIGHT = Level("light", 0.4, 0.5, 8)


class Load(NamedTuple):
    """A workload with the KV that each card gets."""

    workload: Workload
    kv_tokens: int


def load_of(source: Source, level: Level, speed: Speed, *, seed: int) -> Load:
    """Draw the sessions of a seed, and begin them at the level's rate.

    All are of one tenant and one lane: what is compared is how sessions are served, not for whom.
    """
    sessions = _sized(_drawn(source, level.sessions, seed), source)
    workload = Workload(source.name, f"{source.name}, seed {seed}", sessions)
    workload = transform.clamp_gaps(workload, GAP_SECONDS)
    workload = transform.clamp_tokens(workload, CONTEXT_TOKENS)
    work = sum(session_work_s(speed, session) for session in workload.sessions)
    span_s = work / (CARDS * level.load)
    kv = sum(final_tokens(session) for session in workload.sessions)
    kv_tokens = max(round(kv / level.oversubscribed / CARDS), 2 * CONTEXT_TOKENS)
    return Load(_started(workload, span_s, seed), kv_tokens)


def final_tokens(session: Session) -> int:
    """Return the tokens that a session's KV has in the end."""
    context = 0
    for turn in session.turns:
        context = prompt_tokens(turn, context)[0] + TEMPLATE_TOKENS + turn.out_tokens
    return context


def _drawn(source: Source, count: int, seed: int) -> Sequence[Session]:
    if source.name == "personas":
        return _personas(count, seed)
    found = [
        session._replace(spawn=None)
        for session in read_workload(trace(*LMCACHE)).sessions
        if len(session.turns) >= TURNS[0] and session.turns[0].new_tokens >= START_TOKENS_LEAST
    ]
    random = Random(f"{seed}/sessions")
    drawn: list[Session] = []
    while len(drawn) < count:
        drawn += random.sample(found, min(len(found), count - len(drawn)))
    return drawn


def _personas(count: int, seed: int) -> Sequence[Session]:
    mix = generate.Mix(
        shares=dict.fromkeys(PERSONAS, 1.0), sessions_per_hour=8.0 * count, flat=True
    )
    sessions = generate.generate(mix, seed=seed).sessions
    long = [session for session in sessions if len(session.turns) >= TURNS[0]]
    assert len(long) >= count, f"{len(long)} of {count} sessions were drawn"
    return Random(f"{seed}/sessions").sample(long, count)


def _sized(sessions: Sequence[Session], source: Source) -> tuple[Session, ...]:
    return tuple(
        Session(
            f"{session.kind}-{number}",
            "bench",
            INTERACTIVE,
            session.kind,
            0,
            None,
            tuple(
                turn._replace(
                    gap_ns=round(turn.gap_ns * source.gaps),
                    keep_tokens=_scaled(turn.keep_tokens, source.tokens),
                    new_tokens=max(1, round(turn.new_tokens * source.tokens)),
                    out_tokens=min(ANSWER_TOKENS, max(2, round(turn.out_tokens * source.answers))),
                    limit_tokens=0,
                )
                for turn in session.turns[: TURNS[1]]
            ),
        )
        for number, session in enumerate(sessions)
    )


def _scaled(tokens: int, factor: float) -> int:
    return tokens if tokens < 0 else round(tokens * factor)


def _started(workload: Workload, span_s: float, seed: int) -> Workload:
    """Begin sessions as a Poisson process that has this many starts in this time."""
    random = Random(f"{seed}/starts")
    places = sorted(random.random() for _ in workload.sessions)
    first = places[0]
    sessions = tuple(
        session._replace(start_ns=round((place - first) * span_s * SECOND_NS))
        for session, place in zip(workload.sessions, places, strict=True)
    )
    return workload._replace(sessions=sessions)


def saved(load: Load, path: Path) -> None:
    """Write what was asked, for whoever doubts a run."""
    rows = [[s.kind, s.start_ns / SECOND_NS, [list(t) for t in s.turns]] for s in load.workload[2]]
    path.write_text(json.dumps({"kv_tokens": load.kv_tokens, "sessions": rows}))

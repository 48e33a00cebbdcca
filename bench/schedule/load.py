"""The loads: agent sessions cut to the size of a slow card, begun at a rate that it can bear.

Sessions come from the LMCache agent traces or from the personas. Their tokens and gaps are scaled
down by stated factors; their shape (how contexts grow, how long answers are beside prompts, how
gaps vary) is kept. The rate of starts makes the load: the work of all sessions, each turn's history
cached, is `load` of what the cards can compute between the first start and the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice, takewhile
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
TENANT = "bench"
LMCACHE = ("lmcache-agent-trace", "dev")
MIXED = ("customer_service", "wealth_adviser", "insurance_claim", "fraud_triage")
TURNS = (4, 5)
"""Sessions have at least and at most so many turns; longer ones are cut."""
CONTEXT_TOKENS = 1_400
ANSWER_TOKENS = 80
GAP_SECONDS = 6.0
DRAWN = 400
"""Sessions of personas to choose from; each is used once, those of a trace as often as needed."""
KV_TOKENS_LEAST = 2 * CONTEXT_TOKENS
"""KV of a card, however few sessions there are."""
START_TOKENS_LEAST = 500
"""Recorded sessions that begin with less are no agents of their own: simulated users, checkers."""


class Source(NamedTuple):
    """Where sessions come from, and by what tokens, answers and gaps are multiplied.

    `personas`: the kinds of agents; none: the LMCache traces.
    """

    name: str
    tokens: float
    answers: float
    gaps: float
    personas: tuple[str, ...] = ()


class Level(NamedTuple):
    """How much is asked. `oversubscribed`: KV of all sessions ÷ KV of all cards.

    Only where sessions begin faster than cards can serve them are most of them alive at once, and
    is the KV in use twice what the cards have: hence the load of the oversubscribed level. With few
    sessions all of them are served before anybody has waited long: seed 1, LMCache, good turns a
    second over those of the best peer, 1.4 with 20 sessions, 5.6 with 40.
    """

    name: str
    load: float
    oversubscribed: float
    sessions: int


SOURCES = (Source("lmcache", 0.35, 0.16, 0.6), Source("personas", 0.13, 0.13, 0.3, MIXED))
OVERSUBSCRIBED = Level("oversubscribed", 2.5, 2.0, 32)
LIGHT = Level("light", 0.4, 0.5, 8)


class Load(NamedTuple):
    """A workload with the KV that each card gets."""

    workload: Workload
    kv_tokens: int


def load_of(source: Source, level: Level, speed: Speed, *, seed: int) -> Load:
    """Draw the sessions of a seed, and begin them at the level's rate.

    All are of one tenant and one lane: what is compared is how sessions are served, not for whom.
    """
    sessions = sessions_of(source, level.sessions, seed=seed)
    span_s = work_of(speed, sessions) / (CARDS * level.load)
    kv = sum(final_tokens(session) for session in sessions)
    kv_tokens = max(round(kv / level.oversubscribed / CARDS), KV_TOKENS_LEAST)
    started = begun(sessions, 0.0, span_s, seed=seed)
    return Load(joined(f"{source.name}, seed {seed}", started), kv_tokens)


def sessions_of(source: Source, count: int, *, seed: int) -> tuple[Session, ...]:
    """Return so many sessions of a source, cut to size; all begin at 0.

    A session ends before a turn whose prompt and answer would exceed `CONTEXT_TOKENS`; with fewer
    than the least turns left it is not drawn. Each kind of agent has the same share.
    """
    fitting = [_fitted(session) for session in _sized(_drawn(source, seed), source)]
    long = [session for session in fitting if len(session.turns) >= TURNS[0]]
    random = Random(f"{seed}/sessions")
    kinds = sorted({session.kind for session in long})
    dealt: dict[str, list[Session]] = {kind: [] for kind in kinds}
    drawn: list[Session] = []
    for kind in islice(cycle(kinds), count):
        if not dealt[kind]:
            dealt[kind] = [session for session in long if session.kind == kind]
            random.shuffle(dealt[kind])
        drawn.append(dealt[kind].pop())
    random.shuffle(drawn)
    return transform.clamp_gaps(Workload("", "", tuple(drawn)), GAP_SECONDS).sessions


def work_of(speed: Speed, sessions: Sequence[Session]) -> float:
    """Return the card time of sessions, in seconds."""
    return sum(session_work_s(speed, session) for session in sessions)


def begun(sessions: Sequence[Session], from_s: float, span_s: float, *, seed: int) -> list[Session]:
    """Begin sessions at drawn times of a span: a Poisson process with this many starts in it."""
    random = Random(f"{seed}/starts")
    places = sorted(random.random() for _ in sessions)
    return [
        session._replace(start_ns=round((from_s + place * span_s) * SECOND_NS))
        for session, place in zip(sessions, places, strict=True)
    ]


def joined(name: str, sessions: Sequence[Session]) -> Workload:
    """Return one workload of sessions, in the order of their starts, the first at 0."""
    ordered = sorted(sessions, key=lambda session: session.start_ns)
    first_ns = ordered[0].start_ns
    moved = tuple(session._replace(start_ns=session.start_ns - first_ns) for session in ordered)
    return Workload(name, name, moved)


def final_tokens(session: Session) -> int:
    """Return the tokens that a session's KV has in the end."""
    return _contexts(session)[-1]


def _contexts(session: Session) -> list[int]:
    """Return the tokens of the context behind each turn."""
    context, found = 0, []
    for turn in session.turns:
        context = prompt_tokens(turn, context)[0] + TEMPLATE_TOKENS + turn.out_tokens
        found.append(context)
    return found


def _fitted(session: Session) -> Session:
    fit = sum(1 for _ in takewhile(lambda tokens: tokens <= CONTEXT_TOKENS, _contexts(session)))
    return session._replace(turns=session.turns[:fit])


def _drawn(source: Source, seed: int) -> Sequence[Session]:
    """Return the sessions that there are to choose from: of personas more than are needed."""
    if source.personas:
        shares = dict.fromkeys(source.personas, 1.0)
        mix = generate.Mix(shares=shares, sessions_per_hour=DRAWN, flat=True)
        return generate.generate(mix, seed=seed).sessions
    return [
        session._replace(spawn=None)
        for session in read_workload(trace(*LMCACHE)).sessions
        if len(session.turns) >= TURNS[0] and session.turns[0].new_tokens >= START_TOKENS_LEAST
    ]


def _sized(sessions: Sequence[Session], source: Source) -> tuple[Session, ...]:
    return tuple(
        Session(
            f"{session.kind}-{number}",
            TENANT,
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

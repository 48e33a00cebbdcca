"""Change a workload: its pace, its size, whose it is, how long its contexts get.

Every function returns a new workload and says in `source` what was done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.errors import InvalidRequest
from bedplate.twin.workload.form import Session, Turn, Workload, opened, prompt_tokens
from bedplate.twin.workload.source import (
    TIME_MAX_S,
    TOKENS_MAX,
    Family,
    assemble,
    families_of,
)


class Place(NamedTuple):
    """Where sessions go: a tenant, and a lane by its rank; "" and −1 keep the session's own."""

    tenant: str
    lane: int


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Let sessions begin `factor` times as fast; gaps inside sessions stay.

    Raises:
        InvalidRequest: the factor is not above 0, or a session would begin after 10^9 s.
    """
    what = _check(factor, "the rate's factor")
    sessions = tuple(
        session
        if session.spawn is not None
        else session._replace(start_ns=_start_ns(session, session.start_ns / factor, what))
        for session in workload.sessions
    )
    return _as(workload, sessions, f"{factor:g} times as fast")


def restart(workload: Workload, per_s: float, *, seed: int) -> Workload:
    """Let sessions begin as a Poisson process of so many root sessions a second, in their order.

    Raises:
        InvalidRequest: the rate is not above 0, or a session would begin after 10^9 s.
    """
    what = _check(per_s, "the rate of starts")
    random = Random(f"{seed}/restart")
    at_s = 0.0
    sessions = []
    for session in workload.sessions:
        if session.spawn is None:
            at_s += random.expovariate(per_s)
            session = session._replace(start_ns=_start_ns(session, at_s * SECOND_NS, what))
        sessions.append(session)
    return _as(workload, tuple(sessions), f"Poisson starts, {per_s:g} a second, seed {seed}")


def take(workload: Workload, count: int) -> Workload:
    """Keep the first `count` root sessions and what they spawn.

    Raises:
        InvalidRequest: the count is not above 0.
    """
    _check(count, "the number of sessions")
    families = families_of(workload.sessions)
    if count >= len(families):
        return workload
    source = f"{workload.source}; first {count} sessions"
    return assemble(workload.name, source, families[:count])


def repeat(workload: Workload, count: int, *, seed: int) -> Workload:
    """Make `count` root sessions out of the ones there are, in drawn order, all at their start.

    Keys get a number behind them. Where a trace has too few sessions for a test, `restart` then
    spreads them.

    Raises:
        InvalidRequest: the count is not above 0, or the workload is empty.
    """
    _check(count, "the number of sessions")
    families = families_of(workload.sessions)
    if not families:
        raise InvalidRequest(f"workload {workload.name} has no sessions to repeat")
    random = Random(f"{seed}/repeat")
    drawn: list[Family] = []
    while len(drawn) < count:
        drawn += random.sample(families, min(len(families), count - len(drawn)))
    copies = [
        [
            session._replace(
                key=f"{session.key}#{number}",
                start_ns=0 if session.spawn is None else session.start_ns,
            )
            for session in family
        ]
        for number, family in enumerate(drawn, 1)
    ]
    source = f"{workload.source}; {count} sessions drawn from them, seed {seed}"
    return assemble(workload.name, source, copies)


def assign(workload: Workload, places: Sequence[Place]) -> Workload:
    """Give root sessions, with what they spawn, to places in turn.

    Raises:
        InvalidRequest: there is no place, or a lane is no rank.
    """
    if not places or any(not -1 <= place.lane < len(LANE_NAMES) for place in places):
        raise InvalidRequest("name at least one tenant or lane; a lane is 0, 1 or 2")
    chosen: list[Place] = []
    sessions = []
    roots = 0
    for session in workload.sessions:
        if session.spawn is None:
            place = places[roots % len(places)]
            roots += 1
        else:
            place = chosen[session.spawn.session]
        chosen.append(place)
        sessions.append(
            session._replace(
                tenant=place.tenant or session.tenant,
                lane=session.lane if place.lane < 0 else place.lane,
            )
        )
    lanes = (*LANE_NAMES, "own lane")  # -1 is the last
    named = ", ".join(f"{place.tenant or 'own tenant'}/{lanes[place.lane]}" for place in places)
    return _as(workload, tuple(sessions), f"given to {named}")


def clamp_gaps(workload: Workload, longest_s: float) -> Workload:
    """Shorten gaps to at most so many seconds, those before spawned sessions too.

    Raises:
        InvalidRequest: the bound is not above 0.
    """
    _check(longest_s, "the longest gap")
    longest_ns = round(min(longest_s, TIME_MAX_S) * SECOND_NS)
    sessions = []
    for session in workload.sessions:
        turns = tuple(
            turn._replace(gap_ns=longest_ns) if turn.gap_ns > longest_ns else turn
            for turn in session.turns
        )
        start_ns = session.start_ns
        if session.spawn is not None:
            start_ns = min(start_ns, longest_ns)
        sessions.append(session._replace(start_ns=start_ns, turns=turns))
    return _as(workload, tuple(sessions), f"gaps cut to {longest_s:g} s")


def scale_tokens(workload: Workload, factor: float) -> Workload:
    """Multiply all sizes by a factor, each at least 1 token (and kept history at least 0).

    Raises:
        InvalidRequest: the factor is not above 0, or a size would be above 10^9 tokens.
    """
    what = _check(factor, "the tokens' factor")

    def size(tokens: int) -> int:
        if tokens * factor > TOKENS_MAX:
            raise InvalidRequest(
                f"{what}: it makes {tokens * factor:g} tokens of {tokens:,}, above {TOKENS_MAX:,}"
            )
        return round(tokens * factor)

    def scaled(turn: Turn) -> Turn:
        return turn._replace(
            keep_tokens=-1 if turn.keep_tokens < 0 else size(turn.keep_tokens),
            new_tokens=max(1, size(turn.new_tokens)),
            out_tokens=max(1, size(turn.out_tokens)),
            limit_tokens=size(turn.limit_tokens),
        )

    sessions = tuple(
        opened(
            session._replace(turns=tuple(scaled(turn) for turn in session.turns)),
            session.prefix,
            size(session.prefix_tokens),
        )
        for session in workload.sessions
    )
    return _as(workload, sessions, f"sizes times {factor:g}")


def clamp_tokens(workload: Workload, context_tokens: int) -> Workload:
    """Shorten turns so that no prompt with its answer exceeds a context.

    An answer gets at most half of it, new text what is left. History gives way last-in first-out,
    as when an agent cuts its history back: the oldest tokens are kept.

    Raises:
        InvalidRequest: the context is under 2 tokens.
    """
    if context_tokens < 2:
        raise InvalidRequest(f"a context of {context_tokens} tokens holds no call")
    sessions = tuple(
        opened(
            session._replace(turns=_clamped(session.turns, context_tokens)),
            session.prefix,
            session.prefix_tokens,
        )
        for session in workload.sessions
    )
    return _as(workload, sessions, f"cut to a context of {context_tokens} tokens")


def share_openings(workload: Workload, tokens: int) -> Workload:
    """Let first prompts of one tenant and kind begin with the same tokens, where they are longer.

    Raises:
        InvalidRequest: the number of tokens is not above 0.
    """
    _check(tokens, "the opening's tokens")
    sessions = tuple(
        opened(session, session.kind or "opening", tokens) for session in workload.sessions
    )
    return _as(workload, sessions, f"openings of {tokens} tokens shared")


def _clamped(turns: Sequence[Turn], context_tokens: int) -> tuple[Turn, ...]:
    found = []
    context = 0
    for turn in turns:
        prompt, keep = prompt_tokens(turn, context)
        if prompt + turn.out_tokens > context_tokens:
            out = min(turn.out_tokens, context_tokens // 2)
            new = min(turn.new_tokens, context_tokens - out)
            keep = min(keep, context_tokens - out - new)
            turn = turn._replace(keep_tokens=keep, new_tokens=new, out_tokens=out)
        found.append(turn)
        context = prompt_tokens(turn, context)[0] + turn.out_tokens
    return tuple(found)


def _as(workload: Workload, sessions: tuple[Session, ...], what: str) -> Workload:
    return Workload(workload.name, f"{workload.source}; {what}", sessions)


def _start_ns(session: Session, start_ns: float, what: str) -> int:
    if start_ns > TIME_MAX_S * SECOND_NS:
        raise InvalidRequest(
            f"{what}: session {session.key} begins after {start_ns / SECOND_NS:g} s then; at most "
            f"{TIME_MAX_S:g} s are simulated"
        )
    return round(start_ns)


def _check(value: float, what: str) -> str:
    """Return what has which value, for errors about what comes of it."""
    if not 0 < value < math.inf:
        raise InvalidRequest(f"{what} is {value}; it must be above 0, and finite")
    return f"{what} is {value:g}"

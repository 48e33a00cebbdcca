"""What a workload looks like, in numbers, without running it.

Percentiles are nearest-rank. Times are those of the workload alone: answers take no time here, so
that sessions overlap at least as much as `sessions_at_once` says on any base.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Workload, prompt_tokens


class Spread(NamedTuple):
    """Number, mean, percentiles and largest of some values; zeros where there are none."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Group(NamedTuple):
    """Sessions and turns of one kind, tenant or lane."""

    name: str
    sessions: int
    turns: int


class Statistics(NamedTuple):
    """Sizes in tokens, times in seconds.

    `sessions` counts all, `roots` those that nothing spawned. `span_s` is the time from the first
    root's start to the last one's; `starts_per_s` and `starts_cv` (standard deviation of the times
    between starts ÷ their mean) describe roots, 0 where there are fewer than three.
    `reusable_share` is the part of all prompt tokens that continues the session's own context.
    `context` is what each session grew to. `tool_gap_s` and `other_gap_s` are gaps with and without
    a named tool. `least_s` is how long each root with all that it spawned lasts if answers take no
    time, `sessions_at_once` how many roots then overlap at most.
    """

    name: str
    source: str
    sessions: int
    roots: int
    turns: int
    span_s: float
    starts_per_s: float
    starts_cv: float
    sessions_at_once: int
    reusable_share: float
    turns_per_session: Spread
    prompt_tokens: Spread
    new_tokens: Spread
    out_tokens: Spread
    context_tokens: Spread
    tool_gap_s: Spread
    other_gap_s: Spread
    least_s: Spread
    kinds: tuple[Group, ...]
    tenants: tuple[Group, ...]
    lanes: tuple[Group, ...]


def statistics(workload: Workload) -> Statistics:
    """Return the statistics of a workload.

    Cost: O(turns × log turns).
    """
    prompts: list[int] = []
    news: list[int] = []
    outs: list[int] = []
    contexts: list[int] = []
    tool_gaps: list[float] = []
    other_gaps: list[float] = []
    kept = 0
    for session in workload.sessions:
        context = 0
        for number, turn in enumerate(session.turns):
            prompt, keep = prompt_tokens(turn, context)
            kept += keep
            prompts.append(prompt)
            news.append(prompt - keep)
            outs.append(turn.out_tokens)
            context = prompt + turn.out_tokens
            if number:
                gaps = tool_gaps if turn.tool else other_gaps
                gaps.append(turn.gap_ns / SECOND_NS)
        contexts.append(context)
    starts = [session.start_ns for session in workload.sessions if session.spawn is None]
    lives = _lives(workload)
    rate, cv = _pace(starts)
    return Statistics(
        name=workload.name,
        source=workload.source,
        sessions=len(workload.sessions),
        roots=len(starts),
        turns=len(prompts),
        span_s=(starts[-1] - starts[0]) / SECOND_NS if starts else 0.0,
        starts_per_s=rate,
        starts_cv=cv,
        sessions_at_once=_most_at_once(lives),
        reusable_share=kept / sum(prompts) if prompts else 0.0,
        turns_per_session=spread([len(session.turns) for session in workload.sessions]),
        prompt_tokens=spread(prompts),
        new_tokens=spread(news),
        out_tokens=spread(outs),
        context_tokens=spread(contexts),
        tool_gap_s=spread(tool_gaps),
        other_gap_s=spread(other_gaps),
        least_s=spread([(end - start) / SECOND_NS for start, end in lives]),
        kinds=_groups(workload, [session.kind for session in workload.sessions]),
        tenants=_groups(workload, [session.tenant for session in workload.sessions]),
        lanes=_groups(workload, [LANE_NAMES[session.lane] for session in workload.sessions]),
    )


def spread(values: Iterable[float]) -> Spread:
    """Return mean and nearest-rank percentiles."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    count = len(ordered)

    def rank(percent: int) -> float:
        return ordered[-(-percent * count // 100) - 1]

    mean = math.fsum(ordered) / count
    return Spread(count, mean, rank(50), rank(90), rank(99), ordered[-1])


def _pace(starts: Sequence[int]) -> tuple[float, float]:
    """Return (rate per second, coefficient of variation) of starts in order."""
    if len(starts) < 3 or starts[-1] == starts[0]:
        return 0.0, 0.0
    gaps = [(after - before) / SECOND_NS for before, after in pairwise(starts)]
    mean = math.fsum(gaps) / len(gaps)
    variance = math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    return 1 / mean, math.sqrt(variance) / mean


def _lives(workload: Workload) -> list[tuple[int, int]]:
    """Return (start, end) of each root with all that it spawned, if answers take no time.

    A spawned session ends before the parent's turn that waits for it begins. Since parents stand
    before their children, ends are found from the last session to the first: `shift` is how much
    later the turns behind turn k end because of who is waited for.
    """
    sessions = workload.sessions
    joined: dict[tuple[int, int], int] = {}
    length = [0] * len(sessions)
    turn_at: list[list[int]] = [[] for _ in sessions]
    for index in range(len(sessions) - 1, -1, -1):
        at = 0
        for number, turn in enumerate(sessions[index].turns):
            at += turn.gap_ns
            turn_at[index].append(at)
            at += joined.get((index, number), 0)
        length[index] = at
        spawn = sessions[index].spawn
        if spawn is not None and spawn.joins:
            waits = sessions[index].start_ns + length[index]
            place = (spawn.session, spawn.turn)
            joined[place] = max(joined.get(place, 0), waits)
    begin = [0] * len(sessions)
    root = list(range(len(sessions)))
    ends: dict[int, int] = {}
    for index, session in enumerate(sessions):
        begin[index] = session.start_ns
        if session.spawn is not None:
            parent = session.spawn.session
            root[index] = root[parent]
            begin[index] += begin[parent] + turn_at[parent][session.spawn.turn]
        end = begin[index] + length[index]
        ends[root[index]] = max(ends.get(root[index], 0), end)
    return [(begin[index], end) for index, end in ends.items()]


def _most_at_once(lives: Sequence[tuple[int, int]]) -> int:
    """Return how many spans hold one instant at most; one that ends where another starts left."""
    marks = sorted([(start, 1) for start, _ in lives] + [(end, -1) for _, end in lives])
    most, now = min(1, len(lives)), 0
    for _, change in marks:
        now += change
        most = max(most, now)
    return most


def _groups(workload: Workload, names: Sequence[str]) -> tuple[Group, ...]:
    sessions = Counter(names)
    turns: Counter[str] = Counter()
    for name, session in zip(names, workload.sessions, strict=True):
        turns[name] += len(session.turns)
    return tuple(Group(name, sessions[name], turns[name]) for name in sorted(sessions))

"""Drawn loads of the retention replay: one card's sessions, their turns at fixed times.

Each session runs its turns one after the other; between two of them a tool runs, and the session
holds KV or does not. Turn times do not depend on misses, so that all orders and the optimum are
compared on the same instants. A regime says how often a tool is a long one; room is what is left of
the card at its busiest, and a share of what all sessions would hold at once.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

SHORT_TOOLS = ((0.8, 0.5), (1.5, 0.8), (2.5, 1.0), (4.0, 0.6), (8.0, 1.0))
"""Median seconds and sigma of log-normal tool times."""
LONG_TOOLS = ((90.0, 0.9), (240.0, 0.7))
LINEAR, QUADRATIC = "linear", "quadratic"
_QUADRATIC_TOKENS = 8_000.0
"""Context at which attention costs as much as the matrices."""


class Regime(NamedTuple):
    """`long_share` of the tool gaps are of a long tool, `room` is the share of the peak demand.

    Sessions begin over `span_s` seconds.
    """

    name: str
    long_share: float
    room: float
    span_s: float


MILD = Regime("mild", 0.1, 0.4, 600.0)
LONG_30 = Regime("long tools 30 %", 0.3, 0.35, 600.0)
LONG_50 = Regime("long tools 50 %", 0.5, 0.35, 600.0)


class Gap(NamedTuple):
    """One tool gap: its session, its tool, when it begins and ends (s), and the context held.

    `again` is False for what follows a session's last turn: nobody comes back.
    """

    session: int
    tool: str
    begin: float
    end: float
    tokens: int


class Running(NamedTuple):
    """One turn on the card: from when to when (s), with how many tokens at its end."""

    session: int
    begin: float
    end: float
    tokens: int


class Drawn(NamedTuple):
    """One load: all turns, the gaps between them, and the card's KV in tokens."""

    turns: tuple[Running, ...]
    gaps: tuple[Gap, ...]
    kv_tokens: int


def draw(regime: Regime, seed: int, *, sessions: int = 60) -> Drawn:
    """Return a load: sessions of 4 to 14 turns that begin over ten minutes, contexts to 32K."""
    random = Random(f"retention {regime.name} {seed}")
    turns: list[Running] = []
    gaps: list[Gap] = []
    for session in range(sessions):
        now = random.uniform(0, regime.span_s)
        tokens = random.randint(800, 6_000)
        count = random.randint(4, 14)
        for number in range(count):
            out = random.randint(50, 400)
            tokens += out + (random.randint(100, 1_500) if number else 0)
            end = now + 0.3 + 0.01 * out
            turns.append(Running(session, now, end, tokens))
            if number + 1 < count:
                tool, seconds = _tool(regime, random)
                gaps.append(Gap(session, tool, end, end + seconds, tokens))
                now = end + seconds
    turns.sort(key=lambda turn: turn.begin)
    gaps.sort(key=lambda gap: gap.begin)
    return Drawn(tuple(turns), tuple(gaps), _room(turns, gaps, regime))


def miss_cost(tokens: int, form: str) -> float:
    """Return what computing a context again costs, in tokens' time."""
    if form == LINEAR:
        return float(tokens)
    return tokens * (1 + tokens / _QUADRATIC_TOKENS)


def _tool(regime: Regime, random: Random) -> tuple[str, float]:
    long = random.random() < regime.long_share
    tools = LONG_TOOLS if long else SHORT_TOOLS
    which = random.randrange(len(tools))
    median, sigma = tools[which]
    seconds = median * random.lognormvariate(0.0, sigma)
    return f"{'long' if long else 'short'}-{which}", seconds


def _room(turns: list[Running], gaps: list[Gap], regime: Regime) -> int:
    """Return KV for the busiest instant's running turns and a share of what all would hold."""
    peak = run_peak = 0
    for turn in turns:
        running = sum(o.tokens for o in turns if o.begin <= turn.begin < o.end)
        idle = sum(g.tokens for g in gaps if g.begin <= turn.begin < g.end)
        run_peak = max(run_peak, running)
        peak = max(peak, running + idle)
    return max(run_peak, round(regime.room * peak))

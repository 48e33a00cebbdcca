"""Eviction orders: the core's, what others do, and two that know more than anybody can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bedplate.core.tools import RATE_BITS, UNIT_BITS, Memory
from bedplate.core.units import SECOND_NS
from bench.retention.regimes import Drawn, Gap
from bench.retention.replay import Idle

TOOLS_MAX = 64
_HORIZON_S = 5.0


class Ranked:
    """Drops in the order of a rank, least first, until there is room."""

    def __init__(self, drawn: Drawn, history: Drawn) -> None:
        """Begin a replay of `drawn`; `history` is an earlier load of its kind, to learn from."""

    def keeps(self, idle: Idle) -> bool:
        """Keep everything."""
        return True

    def came_back(self, gap: Gap) -> None:
        """Learn nothing."""

    def victims(self, idle: Mapping[int, Idle], need: int, now: float) -> list[int]:
        """Drop in order."""
        chosen: list[int] = []
        for session in sorted(idle, key=lambda one: (self.worth(idle[one], now), one)):
            if need <= 0:
                break
            chosen.append(session)
            need -= idle[session].gap.tokens
        return chosen

    def worth(self, idle: Idle, now: float) -> float:
        """Return what keeping is worth, the least goes first: here, when it became idle."""
        return idle.gap.begin


class ReleaseOnCompletion(Ranked):
    """What engines do without a prefix cache."""

    def keeps(self, idle: Idle) -> bool:
        """Keep nothing."""
        return False


class LeastRecent(Ranked):
    """LRU: who has been idle for longest goes first."""


class ShortestFirst(Ranked):
    """ThunderAgent's published rule: the shortest context goes first."""

    def worth(self, idle: Idle, now: float) -> float:
        """Return its length."""
        return float(idle.gap.tokens)


class Farthest(Ranked):
    """Belady's rule, which knows when each tool ends: the last to return goes first."""

    def worth(self, idle: Idle, now: float) -> float:
        """Return how soon it comes back."""
        return -idle.gap.end


class FarthestSized(Ranked):
    """The same by size: cost per token and per second until the return."""

    def worth(self, idle: Idle, now: float) -> float:
        """Return what a token of room saves a second."""
        return idle.cost / idle.gap.tokens / max(idle.gap.end - now, 1e-9)


class Oracle(Ranked):
    """Density by the tools' true distributions: cost × P(returns within 5 s) per token.

    The gaps of the load itself stand for the distribution: nobody has them beforehand.
    """

    def __init__(self, drawn: Drawn, history: Drawn) -> None:
        super().__init__(drawn, history)
        self._seconds: dict[str, list[float]] = {}
        for gap in drawn.gaps:
            self._seconds.setdefault(gap.tool, []).append(gap.end - gap.begin)

    def worth(self, idle: Idle, now: float) -> float:
        """Return the density."""
        seconds = self._seconds[idle.gap.tool]
        elapsed = now - idle.gap.begin
        left = [each for each in seconds if each >= elapsed]
        soon = sum(each <= elapsed + _HORIZON_S for each in left)
        return idle.cost / idle.gap.tokens * (soon / len(left))


class Learned(Ranked):
    """The core's: cost per token × the rate of return that `core.tools` learned by then."""

    def __init__(self, drawn: Drawn, history: Drawn) -> None:
        super().__init__(drawn, history)
        self._tools = Memory(TOOLS_MAX)
        self._all = Memory(1)
        for gap in sorted(history.gaps, key=lambda gap: gap.end):
            self.came_back(gap)

    def came_back(self, gap: Gap) -> None:
        """Learn how long the tool took."""
        gap_ns = round((gap.end - gap.begin) * SECOND_NS)
        self._tools.add(gap.tool, gap_ns)
        self._all.add("", gap_ns)

    def worth(self, idle: Idle, now: float) -> float:
        """Return the density."""
        elapsed_ns = round((now - idle.gap.begin) * SECOND_NS)
        known = self._tools.believed(idle.gap.tool) or self._all.believed("")
        if known is None:
            rate = (1 << RATE_BITS) // max(elapsed_ns, 1 << UNIT_BITS)
        else:
            rate = known.rate(elapsed_ns)
        return idle.cost / idle.gap.tokens * rate


class Cold(Learned):
    """The same on the first day: it knows nothing before the load begins."""

    def __init__(self, drawn: Drawn, history: Drawn) -> None:
        super().__init__(drawn, Drawn((), (), 0))


class Guarded(Learned):
    """The same, but never worse in one step than a choice that is at most twice the cheapest."""

    def victims(self, idle: Mapping[int, Idle], need: int, now: float) -> list[int]:
        """Take the guarded choice where it costs less than half."""
        plain = super().victims(idle, need, now)
        sessions = sorted(idle)
        tokens = {one: idle[one].gap.tokens for one in sessions}
        weight = {one: self.worth(idle[one], now) * tokens[one] for one in sessions}
        guarded = guarded_density(sessions, tokens, weight, need)
        cost = sum(weight[one] for one in plain)
        return guarded if 2 * sum(weight[one] for one in guarded) < cost else plain


def guarded_density(
    sessions: Sequence[int], tokens: Mapping[int, int], weight: Mapping[int, float], need: int
) -> list[int]:
    """Return victims of `need` tokens or more whose weight is at most twice the least possible.

    For each candidate as the heaviest of the choice: it, then lighter ones by weight per token
    until there is room; the cheapest of these choices. All of them where that is too little.

    Cost: O(n² log n).
    """
    best, best_cost = list(sessions), float("inf")
    for heaviest in sessions:
        chosen, missing = [heaviest], need - tokens[heaviest]
        lighter = [one for one in sessions if one != heaviest and weight[one] <= weight[heaviest]]
        lighter.sort(key=lambda one: (weight[one] / tokens[one], one))
        for one in lighter:
            if missing <= 0:
                break
            chosen.append(one)
            missing -= tokens[one]
        cost = sum(weight[one] for one in chosen)
        if missing <= 0 and cost < best_cost:
            best, best_cost = chosen, cost
    return best

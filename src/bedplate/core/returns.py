"""When an idle branch comes back: what was seen of its tool, or what its client says."""

from __future__ import annotations

from bedplate.core.prefix import Prefix
from bedplate.core.state import State
from bedplate.core.states import Branch
from bedplate.core.tools import ENOUGH, NEVER_NS, RATE_BITS, UNIT_BITS, Gaps

NOW_RATE = 1 << (RATE_BITS - UNIT_BITS)
"""The rate of a branch whose next turn waits already."""


def came_back(state: State, branch: Branch) -> None:
    """Learn from a turn that arrives on a branch, before it is on it. Cost: O(1), amortised."""
    if branch.ended_ns and not branch.turns:
        _learn(state, branch, state.now_ns - branch.ended_ns)
    branch.eta_ns = 0


def stayed_away(state: State, branch: Branch) -> None:
    """Learn from a branch whose session ran out of time."""
    if branch.ended_ns and not branch.turns:
        _learn(state, branch, NEVER_NS)


def _learn(state: State, branch: Branch, gap_ns: int) -> None:
    branch.session.tenant.tools.add(branch.tool, gap_ns)
    state.tools.add(branch.tool, gap_ns)
    state.gaps.add(gap_ns)


def rate(state: State, branch: Branch) -> int:
    """Return how fast a branch comes back, as `tools` counts rates; the client's word goes first.

    A word that was passed counts no more. While nothing is known, who waited for longest is the
    least likely to return. Cost: amortised O(1).
    """
    if branch.turns:
        return NOW_RATE
    if branch.eta_ns > state.now_ns:
        return (1 << RATE_BITS) // max(branch.eta_ns - state.now_ns, 1 << UNIT_BITS)
    elapsed_ns = state.now_ns - branch.ended_ns
    gaps = known(state, branch)
    if gaps is None:
        return (1 << RATE_BITS) // max(elapsed_ns, 1 << UNIT_BITS)
    return gaps.rate(elapsed_ns)


def prefix_rate(prefix: Prefix, now_ns: int) -> int:
    """Return how fast the next session comes that begins with an opening."""
    gap_ns = max(prefix.gap_ns, now_ns - prefix.used_ns, 1 << UNIT_BITS)
    return (1 << RATE_BITS) // gap_ns


def known(state: State, branch: Branch) -> Gaps | None:
    """Return the narrowest histogram with enough samples."""
    tool = branch.tool
    gaps = branch.session.tenant.tools.believed(tool) or state.tools.believed(tool)
    if gaps is None and state.gaps.total >= ENOUGH:
        return state.gaps
    return gaps

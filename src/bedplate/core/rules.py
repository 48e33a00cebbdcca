"""The choices of the core that have alternatives, as one value.

Everything else of the core keeps books and promises; these functions only choose, and change
nothing. A service, a replay and the twin run `bedplate.core.base.SHIPPED`. Comparisons put another
function in one place (`SHIPPED._replace(rank=...)`), so that a baseline differs in one choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bedplate.core.group import Group
    from bedplate.core.placement import Plan
    from bedplate.core.prefix import Prefix
    from bedplate.core.state import State
    from bedplate.core.states import Branch, Entry, Slot, Turn

Rank = tuple[int, ...]
"""An order: the least comes first. One function's ranks have one length; the last is unique."""


class Rules(NamedTuple):
    """One function a choice.

    `rank(state, turn)`: order of the turns of one lane, fixed when a turn begins to wait.
    `tenant_rank(state, turn, least)`: the tenants of a lane that go first, whatever their turns'
    ranks; `least` is the least virtual service of those that wait. `fits(state, group,
    turn)`: whether a turn's session may be admitted now, making idle ones step back. `plan(state,
    turn)`: where a turn can run now. `worth(state, slot)`: of idle slots the least goes first.
    `keeps(state, slot)`: whether a slot keeps its KV once its turn has ended. `entry_worth(state,
    entry)`: of copies in the pool the least goes first. `lease(state, branch)`: for how many ns the
    KV of a branch is protected whose turn has ended. `loads(state, entry, saved_tokens)`: whether a
    load is better than to compute what it saves. `stores(state, slot)`: whether an idle slot's KV
    is copied to the pool. `shares(state, group, prefix)`: whether an opening that sessions have in
    common is copied to the pool for those that follow.
    """

    rank: Callable[[State, Turn], Rank]
    tenant_rank: Callable[[State, Turn, int], int]
    fits: Callable[[State, Group, Turn], bool]
    plan: Callable[[State, Turn], Plan | None]
    worth: Callable[[State, Slot], Rank]
    keeps: Callable[[State, Slot], bool]
    entry_worth: Callable[[State, Entry], Rank]
    lease: Callable[[State, Branch], int]
    loads: Callable[[State, Entry, int], bool]
    stores: Callable[[State, Slot], bool]
    shares: Callable[[State, Group, Prefix], bool]

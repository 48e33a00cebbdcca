"""Samples of the base over time: evenly spaced, although nobody knows when a run will end.

When there are twice as many as wanted, every second one is forgotten and the spacing doubles, so
that a run ends with between `wanted` and 2 × `wanted` samples, fewer if it is shorter than planned.
Taking one changes nothing in the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bedplate.core.states import RUNNING
from bedplate.twin.outcome import Sample

if TYPE_CHECKING:
    from bedplate.twin.world import World


class Samples:
    """Collects samples from `began_ns` on; `next_ns` is when the next one is due.

    `progress` hears of the share of sessions that are over (0 to 1) with each of them.
    """

    def __init__(
        self,
        began_ns: int,
        *,
        horizon_ns: int,
        wanted: int,
        progress: Callable[[float], None] | None,
    ) -> None:
        """`horizon_ns` is a guess of how long the run lasts, rather too short than too long."""
        self.rows: list[Sample] = []
        self.next_ns: float = began_ns if wanted > 0 else math.inf
        self._began_ns = began_ns
        self._wanted = wanted
        self._spacing_ns = max(1, horizon_ns // max(1, wanted))
        self._progress = progress

    def take(self, world: World, until_ns: int) -> None:
        """Take the samples that are due before `until_ns`; nothing happened since they were."""
        while self.next_ns < until_ns:
            self._take(world, int(self.next_ns))
            self.next_ns += self._spacing_ns
            if len(self.rows) >= 2 * self._wanted:
                self._thin_out()
        if self._progress is not None:
            clients = world.clients
            self._progress(1 - clients.left / max(1, len(clients.agents)))

    def end(self, world: World) -> None:
        """Take the last sample, of the state in which the run ends."""
        self.take(world, world.heap.now_ns)
        if self._wanted > 0:
            self._take(world, world.heap.now_ns)

    def _thin_out(self) -> None:
        del self.rows[1::2]
        self._spacing_ns *= 2
        self.next_ns = self._began_ns + len(self.rows) * self._spacing_ns

    def _take(self, world: World, time_ns: int) -> None:
        state = world.base.state
        block = state.policy.block_tokens
        waiting = sum(sum(tenant.waiting) for tenant in state.tenants.values())
        # Over all turns, so only where there is something to find.
        held = (turn.why for turn in state.turns.values() if waiting and turn.state != RUNNING)
        self.rows.append(
            Sample(
                time_ns=time_ns - self._began_ns,
                kv_used_tokens=block * sum(card.used_blocks for card in state.cards.values()),
                kv_running_tokens=block * sum(card.busy_blocks for card in state.cards.values()),
                pool_bytes=state.pool_bytes,
                waiting=waiting,
                running=sum(tenant.running for tenant in state.tenants.values()),
                sessions=len(state.sessions),
                moves=world.transfer.active,
                why=tuple(sorted(Counter(held).items())),
            )
        )

"""A run with everything in it; needs no more than the standard library, as the twin itself."""

from __future__ import annotations

from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import CardLost, GatewayRestarted, LinkSlow
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import TailSpec, simulate
from bedplate.twin.world import Heard
from tests.unit.twin.sites import POOL, agents, site


def outcome(seed: int, heard: Heard | None = None) -> Outcome:
    """Run a load with moves, tails, failovers and a restart."""
    tail = TailSpec(share=0.2, scale_ns=3e7, max_ns=3e9)
    return simulate(
        site(
            4, partitions=2, pool=POOL, running_max=4, kv_tokens=4_000, begin_ns=1.5e6, end_ns=3e5
        ),
        agents(30, gap_ms=5),
        seed=seed,
        faults=(
            LinkSlow(at_ns=0, partition="p1", factor=3.0, tail=tail),
            CardLost(at_ns=2 * SECOND_NS, card="c2", back_ns=5 * SECOND_NS),
            GatewayRestarted(at_ns=7 * SECOND_NS, back_ns=8 * SECOND_NS),
        ),
        heard=heard,
    )


def print_of(seed: int) -> str:
    """Return all that must agree."""
    out = outcome(seed)
    return repr((out.digest, out.events, out.turns, out.cards, out.samples, out.counters))

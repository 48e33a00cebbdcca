"""How much longer a card takes while others of its host compute: the same turns alone and together.

Embedded cards share processors, caches and memory. A profile has the times of a card alone, and by
which share each other card that computes makes them longer; the rounds run on all cards at once.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

from bedplate.perf.profile import CardProfile, LinearCost
from bedplate.runtime.calibration.plan import Plan
from bedplate.runtime.calibration.probe import Probe

REPEATS = 5
"""Alone and together in turn, so that a drift of the machine meets both."""


async def measure_contention(probes: Sequence[Probe], plan: Plan) -> float:
    """Return the share by which a turn lasts longer for each other card; 0 for one card.

    Raises:
        EngineError, CapacityError, RequestError: As the engine raises them.

    Cost: `REPEATS` turns of the plan's middle length on each card alone, and on all at once.
    """
    if len(probes) < 2:
        return 0.0
    alone: list[int] = []
    together: list[int] = []
    for _ in range(REPEATS):
        alone += [await _turn_ns(probe, plan) for probe in probes]
        together += await asyncio.gather(*(_turn_ns(probe, plan) for probe in probes))
    longer = statistics.median(together) / statistics.median(alone) - 1
    return max(0.0, longer) / (len(probes) - 1)


def alone(profile: CardProfile, contention: float, *, cards: int) -> CardProfile:
    """Return a profile of times that were taken while so many cards computed, as that of one."""
    step = profile.step
    assert isinstance(step, LinearCost), "what a fit gives"
    share = 1 / (1 + contention * (cards - 1))
    return replace(
        profile,
        contention=contention,
        cell_ns=profile.cell_ns * share,
        step=LinearCost(
            launch_ns=step.launch_ns * share,
            weights_ns=step.weights_ns * share,
            prompt_ns=step.prompt_ns * share,
            sequence_ns=step.sequence_ns * share,
            pair_ns=step.pair_ns * share,
            context_ns=step.context_ns * share,
        ),
    )


async def _turn_ns(probe: Probe, plan: Plan) -> int:
    """Run the first turn of a new session; return its time from dispatch to the last token."""
    talk = await probe.open(0)
    lengths = sorted(plan.lengths)
    times = await probe.turn(talk, lengths[len(lengths) // 2], plan.out_tokens)
    await probe.close(talk)
    return times.marks[-1].time_ns - times.sent_ns

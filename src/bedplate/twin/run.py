"""Simulate: a site, a workload and a seed in, an outcome out.

The same arguments give the same outcome and the same digest in every process: floats are used with
correctly rounded operations only, and randomness (waits in the tail of a link) comes from the seed.
The cost is linear in turns, whatever their tokens; most of it is the core's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bedplate.core import invariants, view
from bedplate.core.base import SHIPPED
from bedplate.core.rules import Rules
from bedplate.twin.faults import Fault
from bedplate.twin.inject import schedule
from bedplate.twin.outcome import Outcome
from bedplate.twin.retry import RETRIES, RetryRule
from bedplate.twin.samples import Samples
from bedplate.twin.site import NO_POOL, CardSpec, PoolSpec, Site, check_workload
from bedplate.twin.transfer import TailSpec
from bedplate.twin.workload.form import Workload
from bedplate.twin.world import START_NS, Heard, World

__all__ = ["NO_POOL", "CardSpec", "PoolSpec", "Site", "TailSpec", "simulate"]


def simulate(
    site: Site,
    workload: Workload,
    *,
    seed: int,
    faults: Sequence[Fault] = (),
    samples: int = 500,
    progress: Callable[[float], None] | None = None,
    close_sessions: bool = True,
    heard: Heard | None = None,
    retry: RetryRule = RETRIES,
    rules: Rules = SHIPPED,
) -> Outcome:
    """Run a workload on a site until every session is over.

    Args:
        site: The supernode.
        workload: What its agents ask.
        seed: Of the random waits.
        faults: What breaks meanwhile.
        samples: About how many samples of the base over time; at most twice as many.
        progress: Hears with each sample of the share of sessions that are over, 0 to 1.
        close_sessions: Agents close their session after its last turn; if not, it idles out.
        heard: Hears of every event that the core handled.
        retry: How agents ask again.
        rules: What the core chooses by; another is a baseline to compare with.

    Raises:
        ConfigError: site, workload or faults cannot be simulated; the message says why.
    """
    began_s = time.perf_counter()
    site.check()
    check_workload(workload)
    world = World(
        site,
        workload,
        seed=seed,
        close_sessions=close_sessions,
        heard=heard,
        retry=retry,
        rules=rules,
    )
    struck = schedule(world, faults)
    last_ns = max((s.start_ns for s in workload.sessions if s.spawn is None), default=0)
    sampling = Samples(START_NS, horizon_ns=last_ns, wanted=samples, progress=progress)
    with _patient_collector():
        world.run(sampling)
    invariants.check(world.base)
    counters = view.counters(world.base)
    counters["client_retries"] = len(world.clients.retries_ns)
    counters["moves_timed_out"] = world.transfer.timed_out
    return Outcome(
        name=site.name,
        seed=seed,
        digest=world.base.digest.hex(),
        events=world.base.seq,
        duration_ns=world.heap.now_ns - START_NS,
        kv_total_tokens=sum(card.profile.kv_tokens for card in site.cards),
        pool_total_bytes=site.pool.size_bytes,
        turns=world.clients.turn_rows(),
        sessions=world.clients.session_rows(),
        cards=[card.row() for card in world.cards.values()],
        samples=sampling.rows,
        counters=counters,
        failures=dict(sorted(world.clients.failures.items())),
        retries_ns=world.clients.retries_ns,
        faults=[one.row() for one in struck],
        wall_s=time.perf_counter() - began_s,
    )


@contextmanager
def _patient_collector() -> Iterator[None]:
    """Look for cycles seldom: a run keeps millions of objects, and walking over them takes long."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)

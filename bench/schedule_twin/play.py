"""Run one load under one policy: the shipped core, a baseline, or fixed partitions a tenant.

Baselines know no lanes. All their sessions run in one, with the longest queue and the longest
patience of any, and are judged by the limits of their own lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bedplate.core.limits import SHARED, Policy
from bedplate.perf.profile import CardProfile
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import CardSpec, Site, simulate
from bedplate.twin.workload.form import Session, Workload
from bench.baselines.form import Baseline


def shipped(site: Site, workload: Workload, *, seed: int) -> Outcome:
    """Run a load as a service would."""
    return simulate(site, workload, seed=seed, samples=0)


def baseline(site: Site, workload: Workload, policy: Baseline, *, seed: int) -> Outcome:
    """Run a load under a baseline."""
    chosen = policy.make(site)
    return simulate(
        replace(site, policy=one_lane(site.policy), cards=_open(site.cards)),
        in_one_lane(workload),
        seed=seed,
        samples=0,
        rules=chosen.rules,
        heard=chosen.heard,
    )


def _open(cards: Sequence[CardSpec]) -> tuple[CardSpec, ...]:
    """Return cards that take turns while they compute prompts: bounding that is the core's rule."""
    profiles: dict[int, CardProfile] = {}
    for card in cards:
        profiles.setdefault(id(card.profile), replace(card.profile, prompt_streams=0))
    return tuple(replace(card, profile=profiles[id(card.profile)]) for card in cards)


def in_one_lane(workload: Workload) -> Workload:
    """Return a workload whose sessions all go in the shared lane."""
    sessions = tuple(session._replace(lane=SHARED) for session in workload.sessions)
    return workload._replace(sessions=sessions)


def one_lane(policy: Policy) -> Policy:
    """Return a policy whose shared lane turns nobody away that any lane would let wait."""
    lanes = list(policy.lanes)
    lanes[SHARED] = lanes[SHARED]._replace(
        admit_permille=max(lane.admit_permille for lane in lanes),
        queue_max=sum(lane.queue_max for lane in lanes),
        wait_max_ns=max(lane.wait_max_ns for lane in lanes),
    )
    return policy._replace(lanes=tuple(lanes))


def partitioned(site: Site, workload: Workload, policy: Baseline, *, seed: int) -> Outcome:
    """Run each tenant alone on its part of the cards and of the pool, and put the rows together.

    Tenants have the same number of cards, or one more for the first of them.
    """
    tenants = sorted({session.tenant for session in workload.sessions})
    whole = Outcome(name="partitions", seed=seed)
    for number, tenant in enumerate(tenants):
        part = replace(
            site,
            cards=site.cards[number :: len(tenants)],
            pool=replace(
                site.pool,
                size_bytes=site.pool.size_bytes // len(tenants),
                bytes_per_s=site.pool.bytes_per_s / len(tenants),
            ),
        )
        own = [i for i, session in enumerate(workload.sessions) if session.tenant == tenant]
        found = baseline(part, _part_of(workload, own), policy, seed=seed)
        whole.turns += [row._replace(session=own[row.session]) for row in found.turns]
        whole.sessions += [row._replace(session=own[row.session]) for row in found.sessions]
        whole.cards += found.cards
        whole.duration_ns = max(whole.duration_ns, found.duration_ns)
        for reason, count in found.failures.items():
            whole.failures[reason] = whole.failures.get(reason, 0) + count
    whole.turns.sort()
    whole.sessions.sort()
    return whole


def _part_of(workload: Workload, own: Sequence[int]) -> Workload:
    """Return some sessions of a workload, with what they spawn among them."""
    places = {index: place for place, index in enumerate(own)}
    sessions: list[Session] = []
    for index in own:
        session = workload.sessions[index]
        if session.spawn is not None:
            parent = places[session.spawn.session]
            session = session._replace(spawn=session.spawn._replace(session=parent))
        sessions.append(session)
    return workload._replace(sessions=tuple(sessions))

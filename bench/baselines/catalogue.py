"""All baselines by name."""

from __future__ import annotations

from bedplate.core import fairness
from bedplate.core.ids import TurnId
from bedplate.core.placement import Plan
from bedplate.core.rules import Rank
from bedplate.core.state import State
from bedplate.core.states import Turn
from bedplate.twin.run import Site
from bench.baselines import continuum, placing, plas, thunder
from bench.baselines.form import LRU, Baseline, Chosen, by_arrival, keep_nothing


def _service(state: State, turn: Turn, least: int) -> int:
    """Rank tenants by what they were served: VTC, without a quantum."""
    return fairness.virtual(turn)


def _fcfs(site: Site) -> Chosen:
    return Chosen(LRU._replace(keeps=keep_nothing))


def _lru(site: Site) -> Chosen:
    return Chosen(LRU)


def _round_robin(site: Site) -> Chosen:
    numbers: dict[TurnId, int] = {}

    def rank(state: State, turn: Turn) -> Rank:
        numbers.setdefault(turn.id, len(numbers))
        return by_arrival(state, turn)

    def plan(state: State, turn: Turn) -> Plan | None:
        return placing.rotate(state, turn, numbers[turn.id])

    return Chosen(LRU._replace(rank=rank, plan=plan))


def _sticky(site: Site) -> Chosen:
    return Chosen(LRU._replace(plan=placing.sticky))


def _vtc(site: Site) -> Chosen:
    return Chosen(LRU._replace(tenant_rank=_service, plan=placing.in_line))


BASELINES = (
    Baseline("release", "FCFS, KV freed when a turn ends: what engines do", _fcfs),
    Baseline("lru", "FCFS, KV kept and offloaded, least recently used goes", _lru),
    Baseline("round robin", "the same, cards in rotation", _round_robin),
    Baseline("sticky", "the same, sessions stay on their card", _sticky),
    Baseline("continuum", "time to live from the tool's history (paper)", continuum.paper),
    Baseline("continuum 2 s", "a fixed time to live by mean tool time (code)", continuum.released),
    Baseline("thunder", "sessions paused that do not fit, shortest evicted", thunder.make),
    Baseline("plas", "least attained service first", plas.make),
    Baseline("vtc", "tenants by virtual service", _vtc),
)
"""Policies of others; `fixed partitions` is beside them in `partitions`."""

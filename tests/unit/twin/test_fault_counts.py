"""What a run counts of its faults, and how clients meet them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import (
    NEVER,
    CardLost,
    CardSlow,
    Fault,
    GatewayRestarted,
    LinkLost,
    PartitionLost,
)
from bedplate.twin.outcome import Outcome
from bedplate.twin.retry import RetryRule
from bedplate.twin.run import PoolSpec, Site, simulate
from bedplate.twin.workload.form import Workload
from tests.unit.twin.sites import MS, POOL, agents, session, site, workload

SITE = site(4, partitions=2, pool=POOL, running_max=4)


def _run(*faults: Fault, load: Workload, where: Site = SITE) -> Outcome:
    return simulate(where, load, seed=1, faults=faults)


def test_what_a_fault_cuts_is_counted() -> None:
    load = workload(*(session(f"s{i}", (0, 100, 300)) for i in range(4)))
    lost = CardLost(at_ns=SECOND_NS, card="c1")
    [row] = _run(lost, load=load).faults
    assert row == ("card_lost", "c1", SECOND_NS, NEVER, 1, 0)
    # While it hangs, what comes to it is cut too.
    late = workload(*load.sessions, session("late", (0, 100, 300), start_ns=2 * SECOND_NS))
    hangs = CardLost(at_ns=SECOND_NS, card="c0", silent_ns=3 * SECOND_NS, back_ns=9 * SECOND_NS)
    [row] = _run(hangs, where=site(1), load=late).faults
    assert row.turns_cut == 5
    second = PartitionLost(at_ns=SECOND_NS + MS, partition="p0", back_ns=9 * SECOND_NS)
    rows = _run(replace(hangs, silent_ns=0), second, where=site(1), load=load).faults
    assert [row.turns_cut for row in rows] == [4, 0], "what is lost is not lost again"
    unnoticed = replace(hangs, silent_ns=60 * SECOND_NS)
    [row] = _run(unnoticed, where=site(1), load=late).faults
    assert row.turns_cut == 5
    gone = GatewayRestarted(at_ns=SECOND_NS, back_ns=2 * SECOND_NS)
    slow = CardSlow(at_ns=0, card="c0", factor=2.0)
    rows = _run(gone, slow, load=load).faults
    assert [(row.kind, row.thing, row.turns_cut) for row in rows] == [
        ("gateway_restarted", "", 4),
        ("card_slow", "c0", 0),
    ]


def test_moves_that_a_fault_cuts_are_counted() -> None:
    slow = PoolSpec(POOL.size_bytes, 1e5, 0.0)
    where = site(4, partitions=2, pool=slow, running_max=4)
    load = agents(8, turns=1, every_ms=1)
    at_ns = max(row.end_ns for row in simulate(where, load, seed=1).turns) + 1
    link, card = LinkLost(at_ns=at_ns, partition="p0"), CardLost(at_ns=at_ns, card="c1")
    [cut] = simulate(where, load, seed=1, faults=[link], close_sessions=False).faults
    assert cut.moves_cut == 4
    [cut] = simulate(where, load, seed=1, faults=[card], close_sessions=False).faults
    assert cut.moves_cut == 2


def test_a_prompt_that_is_computed_again_is_counted() -> None:
    """The first turn's 100 prompt tokens were computed when its card is lost in decoding."""
    load = workload(session("a", (0, 100, 300), (0, 10, 5)))
    where = site(2, running_max=1)
    calm = simulate(where, load, seed=1).turns
    assert [row.again_tokens for row in calm] == [0, 1]  # the last token of an answer has no KV
    lost = _run(CardLost(at_ns=calm[0].end_ns // 2, card="c0"), where=where, load=load).turns
    assert [row.again_tokens for row in lost] == [100, 1]
    between = CardLost(at_ns=calm[1].arrival_ns + MS, card="c0")
    again = _run(between, where=where, load=load).turns
    assert again[1].again_tokens == 400, "neither card nor pool has what the first turn left"


def test_a_client_asks_again_as_its_rule_says() -> None:
    load = workload(session("a", (0, 100, 300)))
    where = site(1)
    gone = GatewayRestarted(at_ns=SECOND_NS, back_ns=20 * SECOND_NS)
    rule = RetryRule(tries=4, pause_ns=SECOND_NS, pause_max_ns=3 * SECOND_NS)
    out = simulate(where, load, seed=1, faults=[gone], retry=rule)
    assert out.retries_ns == [SECOND_NS, 2 * SECOND_NS, 4 * SECOND_NS]
    assert out.turns[0].end_ns == 7 * SECOND_NS  # 1 + 1 + 2 + 3: given up at the fourth try
    assert out.turns[0].retry_ns == 7 * SECOND_NS
    assert (out.sessions[0].failed, out.failures) == (True, {"lost": 4})
    patient = simulate(where, load, seed=1, faults=[gone], retry=rule._replace(tries=40))
    assert not patient.sessions[0].failed
    assert out.counters["client_retries"] == 3


@pytest.mark.parametrize(
    ("fault", "patience_s"),
    [
        (GatewayRestarted(at_ns=0, back_ns=90 * SECOND_NS), 31.5),
        (CardLost(at_ns=0, card="c0", back_ns=90 * SECOND_NS), 44.0),
    ],
)
def test_a_client_is_as_patient_as_the_reference_says(
    fault: CardLost | GatewayRestarted, patience_s: float
) -> None:
    load = workload(session("a", (0, 100, 300), start_ns=MS))
    out = simulate(site(1), load, seed=1, faults=[fault])
    assert out.turns[0].end_ns - out.turns[0].arrival_ns == patience_s * SECOND_NS
    assert out.sessions[0].failed
    shorter = replace(fault, back_ns=round((patience_s - 1) * SECOND_NS))
    assert not simulate(site(1), load, seed=1, faults=[shorter]).sessions[0].failed

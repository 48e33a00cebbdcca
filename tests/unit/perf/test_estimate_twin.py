"""The estimate and the twin answer the same question alike: one formula, one simulation."""

from __future__ import annotations

import statistics

import pytest

from bedplate.core.limits import default_policy
from bedplate.errors import InvalidRequest
from bedplate.perf.catalog_profile import catalog_profile
from bedplate.perf.estimate import Estimate, Question, estimate
from bedplate.perf.load import Load
from bedplate.twin.outcome import TurnRow
from bedplate.twin.run import NO_POOL, CardSpec, Site, simulate
from bedplate.twin.workload.form import Session, Turn, Workload

INPUT, OUTPUT = 2_000, 200


def asked(rate: float) -> Estimate:
    return estimate(Question("Qwen3-32B", "H100", "fp16", Load(INPUT, OUTPUT, rate=rate), tp=2))


def simulated(rate: float, requests: int) -> list[TurnRow]:
    """Return turns of sessions of one turn each that begin evenly at a rate, in their order."""
    card = CardSpec("card", "all", catalog_profile("Qwen3-32B", "H100", tp=2))
    turn = Turn(0, "", -1, INPUT, OUTPUT)
    sessions = tuple(
        Session(f"s{i}", "acme", 1, "test", int(i * 1e9 / rate), None, (turn,))
        for i in range(requests)
    )
    site = Site(name="one", cards=(card,), policy=default_policy(), pool=NO_POOL)
    return simulate(site, Workload("even", "tests", sessions), seed=1).turns


@pytest.mark.parametrize("rate", [2.0, 5.0])
def test_below_what_a_replica_carries_a_token_takes_as_long_as_in_the_twin(rate: float) -> None:
    turns = simulated(rate, int(40 * rate))
    settled = turns[len(turns) // 3 : len(turns) * 2 // 3]
    tpot = statistics.mean((one.end_ns - one.first_ns) / (OUTPUT - 1) for one in settled)
    assert asked(rate).latency.tpot == pytest.approx(tpot, rel=0.15)


def test_what_a_replica_carries_is_what_the_twin_answers_when_more_is_asked() -> None:
    with pytest.raises(InvalidRequest, match="carries: about") as refused:
        asked(8)
    carried = float(refused.value.message.partition("carries: about ")[2].partition(",")[0])
    ends = sorted(one.end_ns for one in simulated(8, 400) if one.status == "stop")
    first, last = ends[len(ends) // 4], ends[len(ends) * 3 // 4]
    answered = (len(ends) // 2) / (last - first) * 1e9
    assert carried == pytest.approx(answered, rel=0.15)

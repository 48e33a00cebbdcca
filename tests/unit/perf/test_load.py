from __future__ import annotations

import dataclasses

import pytest

from bedplate.perf.catalog import find_hardware, find_model
from bedplate.perf.constants import PLAIN, Constants
from bedplate.perf.load import Load, cycle_ns, latency, room
from bedplate.perf.precision import find_precision
from bedplate.perf.step import Batch, Deployment, StepTime, causal_pairs

FULL = {"wide": 1.0, "half": 1.0, "byte": 1.0, "nibble": 1.0}
WAITING = Constants("fitted", FULL, FULL, interference=1.0, begin=5e6, queue=0.1)
HASTY = Constants("fitted", FULL, FULL, interference=0.5, begin=1e6, queue=0.01)
"""Of others' prompts a token waits for half, which alone would let work vanish."""


def time_of(constants: Constants = WAITING, *, memory_gb: float = 80, tp: int = 1) -> StepTime:
    card = dataclasses.replace(find_hardware("H100"), memory_bytes=memory_gb * 1e9)
    form = find_precision("fp16")
    return StepTime(Deployment(find_model("Llama-3.1-8B"), card, form, 2, tp=tp), constants)


def test_alone_the_first_token_takes_its_prompt_and_no_prompt_delays_a_token() -> None:
    time = time_of()
    found = latency(time, Load(1000, 100, concurrency=1))
    prompt = time.step(Batch(0, 1050, 1000, causal_pairs(1000), 1)).total
    assert found.ttft == pytest.approx(5e6 + prompt)
    assert found.tpot == time.step(Batch(1, 1050)).total
    assert found.prompts == 0


def test_prompts_of_others_add_what_they_add_to_the_steps_they_are_in() -> None:
    time = time_of()
    found = latency(time, Load(1000, 100, concurrency=11))
    beside = time.step(Batch(10, 1050)).total
    mixed = time.step(Batch(10, 1050, 1000, causal_pairs(1000), 1)).total
    assert found.prompts == pytest.approx(10 / 100 * (mixed - beside))
    assert found.tpot == pytest.approx(time.step(Batch(11, 1050)).total + found.prompts)
    assert found.wait == pytest.approx(5e6 + 0.1 * 10 * (mixed - beside))


def test_a_cached_prefix_shortens_the_first_token() -> None:
    time = time_of()
    cold = latency(time, Load(8000, 100, concurrency=1))
    warm = latency(time, Load(8000, 100, concurrency=1, cached_tokens=7000))
    assert warm.prefill < cold.prefill / 4


def test_chunks_read_the_weights_again() -> None:
    time = time_of()
    whole = latency(time, Load(4096, 100, concurrency=1))
    parts = latency(time, Load(4096, 100, concurrency=1, chunk=64))
    weights = time.step(Batch(0, 0, 1, 0, 1)).memory
    assert parts.prefill == pytest.approx(64 * weights, rel=0.1)
    assert parts.prefill > whole.prefill * 2


def test_sessions_that_do_not_fit_wait_for_those_that_run() -> None:
    time = time_of(memory_gb=20)
    load = Load(3000, 1000, concurrency=12)
    fits = room(time, load)
    assert 2 < fits < 12
    assert fits == pytest.approx((20e9 * 0.95 - 2 * 8.0303e9) / (4000 * 131_072), rel=1e-3)
    found = latency(time, load)
    assert found.running == found.room == int(fits)
    whole = 999 * found.tpot
    assert found.wait > (12 - found.running) / found.running * whole


def test_weights_that_do_not_fit_leave_no_room() -> None:
    assert room(time_of(memory_gb=12), Load(100, 100, concurrency=1)) == 0


def test_a_rate_holds_as_many_sessions_as_arrive_while_one_runs() -> None:
    time = time_of()
    idle = latency(time, Load(1000, 500, rate=0.001))
    busy = latency(time, Load(1000, 500, rate=4))
    assert idle.running == 1
    assert busy.running == pytest.approx(4e-9 * 500 * busy.tpot, rel=0.01)
    assert busy.ttft > idle.ttft
    assert busy.tpot > idle.tpot


def test_a_rate_that_is_too_much_runs_as_many_as_fit() -> None:
    time = time_of(memory_gb=20)
    load = Load(3000, 1000, rate=50)
    found = latency(time, load)
    assert found.running == int(room(time, load))
    assert found.carries < 50


def test_experts_that_each_new_session_wakes_are_found_at_a_rate() -> None:
    card, form = find_hardware("H100"), find_precision("fp8")
    time = StepTime(Deployment(find_model("Llama-4-Scout"), card, form, 1, tp=2), PLAIN)
    load = Load(566, 247, rate=10)
    found = latency(time, load)
    alike = latency(time, Load(566, 247, concurrency=found.running))
    assert found.running == pytest.approx(10e-9 * cycle_ns(load, alike.ttft, alike.tpot), rel=1e-6)
    assert found.tpot == alike.tpot
    assert found.running > 10


LOADS = (Load(1000, 100), Load(4000, 1), Load(2000, 3), Load(500, 2000), Load(3000, 50, chunk=512))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("constants", [PLAIN, WAITING, HASTY])
def test_no_work_is_skipped_and_more_sessions_are_answered_faster(
    load: Load, constants: Constants
) -> None:
    time = time_of(constants)
    answered = 0.0
    for sessions in (1, 2, 4, 8, 16, 32, 64):
        found = latency(time, load._replace(concurrency=sessions))
        cycle = cycle_ns(load, found.ttft, found.tpot)
        chunks = -(-load.input_tokens // load.chunk) if load.chunk else 1
        beside = Batch(found.running - 1, load.input_tokens + load.output_tokens / 2)
        with_prompt = beside._replace(
            prompt=load.input_tokens / chunks,
            pairs=causal_pairs(load.input_tokens) / chunks,
            prompts=1 / chunks,
        )
        alone = time.step(beside).total if beside.sequences else 0.0
        added = (time.step(with_prompt).total - alone) * chunks
        of_each = added + (load.output_tokens - 1) * found.step.total / found.running
        assert cycle >= sessions * of_each * (1 - 1e-9)
        assert sessions / cycle >= answered * (1 - 1e-9)
        answered = sessions / cycle


def test_a_rate_is_the_sessions_that_answer_it_up_to_what_a_replica_carries() -> None:
    time = time_of(HASTY)
    load = Load(2000, 200)
    carries = latency(time, load._replace(rate=1)).carries
    most = int(room(time, load))
    full = latency(time, load._replace(concurrency=most))
    assert carries == pytest.approx(most / cycle_ns(load, full.ttft, full.tpot) * 1e9)
    tpots = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        found = latency(time, load._replace(rate=share * carries))
        assert found.running < most
        tpots.append(found.tpot)
    assert tpots == sorted(tpots)
    assert tpots[0] < full.tpot / 2
    assert tpots[-1] < full.tpot
    assert latency(time, load._replace(rate=2 * carries)).running == most


def test_no_more_sessions_run_than_prompts_get_into_steps() -> None:
    # A step takes two prompts of 4,096 tokens, each of which decodes for two steps.
    time = time_of()
    found = latency(time, Load(4096, 2, concurrency=64))
    assert found.running == 4 < found.room
    assert found.wait > 15 * cycle_ns(Load(4096, 2), found.prefill, found.step.total)
    chunked = latency(time, Load(4096, 20, concurrency=64, chunk=1024))
    assert chunked.running == 5


def test_more_cards_are_faster_and_hold_more() -> None:
    load = Load(1000, 100, concurrency=32)
    one, four = latency(time_of(), load), latency(time_of(tp=4), load)
    assert four.tpot < one.tpot
    assert four.room > one.room * 3


def test_the_bare_roofline_has_no_waiting() -> None:
    found = latency(time_of(PLAIN), Load(1000, 100, concurrency=64))
    assert found.wait == 0
    assert found.step.launch == found.step.communication == 0

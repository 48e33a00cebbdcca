from __future__ import annotations

import dataclasses

import pytest

from bedplate.perf.catalog import find_hardware, find_model
from bedplate.perf.constants import PLAIN, Constants
from bedplate.perf.load import Load, latency, room
from bedplate.perf.precision import find_precision
from bedplate.perf.step import Batch, Deployment, StepTime, causal_pairs

FULL = {"wide": 1.0, "half": 1.0, "byte": 1.0, "nibble": 1.0}
WAITING = Constants("fitted", FULL, FULL, interference=1.0, begin=5e6, queue=0.1)


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
    assert found.running == fits
    whole = 1000 * found.tpot
    assert found.wait > (12 - fits) / fits * whole


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
    assert latency(time, load).running == room(time, load)


def test_experts_that_each_new_session_wakes_are_found_at_a_rate() -> None:
    card, form = find_hardware("H100"), find_precision("fp8")
    time = StepTime(Deployment(find_model("Llama-4-Scout"), card, form, 1, tp=2), PLAIN)
    found = latency(time, Load(566, 247, rate=10))
    assert found.running == pytest.approx(10e-9 * 247 * found.tpot, rel=1e-6)
    assert found.running > 10


def test_more_cards_are_faster_and_hold_more() -> None:
    load = Load(1000, 100, concurrency=32)
    one, four = latency(time_of(), load), latency(time_of(tp=4), load)
    assert four.tpot < one.tpot
    assert four.room > one.room * 3


def test_the_bare_roofline_has_no_waiting() -> None:
    found = latency(time_of(PLAIN), Load(1000, 100, concurrency=64))
    assert found.wait == 0
    assert found.step.launch == found.step.communication == 0

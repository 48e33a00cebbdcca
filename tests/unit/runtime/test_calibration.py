"""What a calibration makes of the times it saw, and how it sizes its rounds."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from typing import cast

import pytest

from bedplate.core.events import CardUp
from bedplate.core.ids import CardId, ModelId
from bedplate.engines.base import Engine
from bedplate.engines.openai import health
from bedplate.errors import EngineLost, EngineTimeout
from bedplate.perf.fit import Steps
from bedplate.perf.profile import Batching, LinearCost
from bedplate.runtime.calibration import Rules, run
from bedplate.runtime.calibration.contention import alone, measure_contention
from bedplate.runtime.calibration.plan import Plan, make_plan
from bedplate.runtime.calibration.probe import Mark, Probe, Times
from bedplate.runtime.calibration.samples import (
    DecodeSample,
    MixedSample,
    MoveSample,
    PrefillSample,
    Samples,
    decode_sample,
    measured_budget,
    mixed_sample,
    move_points,
    prefill_sample,
    step_points,
)
from tests.unit.twin.sites import card_profile

RULES = Rules(Batching(token_budget=128), 8, stalls=True, shared_cache=True)
CARD = CardUp(
    card=CardId("c-0"),
    model=ModelId("m"),
    partition="",
    kv="full",
    can_cut=True,
    slots=8,
    running_max=1,
    kv_tokens=16_384,
    context_tokens=16_384,
    kv_bytes_per_token=512,
)


def turn(first_ns: int, step_ns: int, tokens: int, *, prompt: int = 100, cached: int = 0) -> Times:
    """Return a turn sent at 0 that gives a token at `first_ns` and one after each `step_ns`."""
    marks = [Mark(first_ns + at * step_ns, at + 1) for at in range(tokens)]
    return Times(0, first_ns, marks[-1].time_ns, prompt, cached, tokens, marks)


def test_one_turn_alone() -> None:
    times = turn(1_000, 10, 21, prompt=100, cached=60)
    assert prefill_sample(times, 7) == PrefillSample(1_000, 40, 60, 7)
    # 20 steps whose contexts are 101 to 120, 110.5 in the middle.
    assert decode_sample([times], 7) == DecodeSample(200, 20, 1, 110.5, 7)


def test_turns_together_count_while_all_decode() -> None:
    early, late = turn(1_000, 10, 41), turn(1_200, 10, 31, prompt=50)
    sample = decode_sample([early, late], 0)
    assert sample is not None
    # From the late one's first token at 1,200 to the early one's last at 1,400.
    assert (sample.time_ns, sample.steps, sample.sequences) == (200, 20, 2)
    assert sample.context_tokens == (100 + 21 + 9.5) + (50 + 1 + 9.5)


def test_turns_that_never_decode_together_say_nothing() -> None:
    assert decode_sample([turn(1_000, 10, 11), turn(2_000, 10, 11)], 0) is None


def test_tokens_that_were_read_late_say_nothing() -> None:
    """All but the last five came in one read: this process was busy, the card was not."""
    times = turn(1_000, 10, 40)
    times.marks = [Mark(1_350, 35), *times.marks[35:]]
    assert decode_sample([times], 0) is None


def test_a_prompt_beside_others() -> None:
    prompt = turn(5_000, 10, 1, prompt=300)
    prompt.sent_ns = 1_000
    others = [turn(500, 100, 100), turn(900, 100, 100, prompt=40)]
    for other in others:
        other.end_ns = 0
    sample = mixed_sample(prompt, others, 11)
    assert sample is not None
    # The first has 6 tokens when the prompt is sent and 46 when it starts, the second 2 and 42.
    assert sample == MixedSample(4_000, 300, 0, 2, (100 + 26) + (40 + 22), 11, 40.0)


def test_a_prompt_that_outlasted_the_others_says_nothing() -> None:
    prompt, other = turn(5_000, 10, 1), turn(500, 100, 10)
    assert other.end_ns
    assert mixed_sample(prompt, [other], 0) is None


def test_the_middle_sample_of_a_shape_counts() -> None:
    samples = Samples()
    for time_ns in (30, 10, 500, 20, 25):
        samples.add("a", PrefillSample(time_ns, 100, 0, 0))
    samples.add("a", DecodeSample(7, 1, 1, 10.0, 0))
    samples.add("b", PrefillSample(40, 200, 0, 0))
    samples.add("b", None)
    assert [sample.time_ns for sample in samples.of(PrefillSample)] == [25, 40]
    assert len(samples.of(DecodeSample)) == 1


def test_points_of_the_fit() -> None:
    samples = Samples()
    samples.add(0, PrefillSample(1_000, 200, 50, 400))
    samples.add(0, DecodeSample(500, 10, 2, 300.0, 400))
    samples.add(0, MixedSample(2_000, 127, 0, 1, 60.0, 30, 1.0))
    prefill, decode, mixed = step_points(samples, RULES)
    assert prefill.steps == (Steps(1, 128, 0), Steps(1, 72, 0))
    assert prefill.pairs == 200 * 50 + 200 * 201 / 2
    assert prefill.cells == 200 * 400 + 128 * 50 + 72 * 178
    assert (decode.context_tokens, decode.cells) == (3_000.0, 10 * 2 * 700)
    assert mixed.steps == (Steps(1, 127, 1), Steps(0.5, 0, 1))
    assert mixed.context_tokens == 1.5 * 60.0
    assert mixed.cells == 127 * 90 + 1.5 * (90 + 63.5)
    assert (prefill.begins, decode.begins, mixed.begins) == (1, 0, 1)


def test_slots_with_caches_of_their_own_have_no_cells() -> None:
    samples = Samples()
    samples.add(0, PrefillSample(1_000, 200, 50, 400))
    (point,) = step_points(samples, RULES._replace(shared_cache=False))
    assert point.cells == 0.0


def test_moves_are_sized_as_the_core_counts_them() -> None:
    samples = Samples()
    samples.add(("store", 0), MoveSample("store", 10, 100, 999))
    samples.add(("load", 0), MoveSample("load", 5, 100, 999))
    (point,) = move_points(samples, "store", 512)
    assert (point.kind, point.time_ns, point.size_bytes) == ("store", 10, 51_200)


@pytest.mark.parametrize(
    ("seen", "budget"),
    [
        # (new tokens, sequences beside, tokens that one of them emitted)
        ([(4_000, 1, 2.0), (8_000, 3, 4.0)], 2_048),
        ([(1_000, 1, 8.0), (1_500, 3, 12.0)], 128),
        ([(1_000, 1, 8.0), (200, 1, 1.0)], 128),
        ([(3_000, 1, 1.0), (900, 3, 0.0)], 4_096),
        ([], 1_024),
    ],
)
def test_a_budget_is_seen_in_what_others_emit(
    seen: list[tuple[int, int, float]], budget: int
) -> None:
    samples = Samples()
    samples.add("alone", PrefillSample(1, 600, 0, 0))
    for at, (new, beside, emitted) in enumerate(seen):
        samples.add(at, MixedSample(1, new, 0, beside, 0.0, 0, emitted))
    found = measured_budget(samples)
    assert found.tokens == budget
    assert found.exact == any(emitted > 1.5 for _, _, emitted in seen)


def planned(
    token_ms: float, step_ms: float, *, seconds: float = 120.0, card: CardUp = CARD, most: int = 8
) -> Plan:
    warm = turn(round(100 * token_ms * 1e6), round(step_ms * 1e6), 8)
    return make_plan(card, warm, seconds=seconds, seed=0, sequences_max=most)


def test_a_round_of_a_slow_card_fits_into_its_third() -> None:
    plan = planned(10.0, 45.0)
    prompts = sum(plan.lengths) + sum(plan.beside_idle) + sum(length for _, length in plan.mixed)
    assert 10.0 < prompts * 0.010 < 0.6 * 40.0
    assert max(plan.lengths) > 2 * 128
    assert (plan.slots, plan.batches) == (8, (2, 4, 8))
    assert {beside for beside, _ in plan.mixed} == {1, 3}


def test_a_round_of_a_fast_card_fits_onto_it() -> None:
    plan = planned(0.01, 0.1)
    turns = len(plan.lengths) + len(plan.batches)
    grown = sum(plan.lengths) + turns * (24 + plan.out_tokens)
    others = (2 * sum(plan.batches) - len(plan.batches)) * (24 + plan.out_tokens)
    assert grown + others + sum(plan.beside_idle) <= CARD.kv_tokens
    assert sum(plan.lengths) > 2_000
    assert plan.out_tokens > 40


def test_a_session_stays_within_its_context() -> None:
    plan = planned(0.01, 0.1, card=CARD._replace(kv_tokens=4_096, context_tokens=1_024), most=2)
    asked = sum(plan.lengths) + 24 * len(plan.batches)
    answered = plan.out_tokens * (len(plan.lengths) + len(plan.batches))
    assert asked + answered <= 1_024
    assert plan.mixed


def test_the_same_seed_gives_the_same_plan() -> None:
    assert planned(10.0, 45.0) == planned(10.0, 45.0)


def test_a_card_that_runs_one_sequence_has_no_batches() -> None:
    plan = planned(10.0, 45.0, most=1)
    assert (plan.slots, plan.batches, plan.mixed, plan.beside_idle) == (1, (), (), ())


def test_less_time_means_fewer_shapes() -> None:
    quick = planned(10.0, 45.0, seconds=30.0)
    assert len(quick.lengths) < len(planned(10.0, 45.0).lengths)
    assert len(quick.batches) == 2


class Slowed:
    """Cards that take 100 ms a turn alone, and 60 ms more for each other that runs one."""

    def __init__(self, cards: int) -> None:
        self.running = 0
        self.probes = [SlowedProbe(self) for _ in range(cards)]


class SlowedProbe:
    def __init__(self, host: Slowed) -> None:
        self.host = host
        self.open_slots = 0

    async def open(self, slot: int) -> int:
        self.open_slots += 1
        return slot

    async def turn(self, talk: int, new_tokens: int, out_tokens: int) -> Times:
        self.host.running += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time_ns = 100 + 60 * (self.host.running - 1)
        await asyncio.sleep(0)
        self.host.running -= 1
        return turn(time_ns, 0, 1)

    async def close(self, talk: int) -> None:
        self.open_slots -= 1


@pytest.mark.parametrize(("cards", "share"), [(1, 0.0), (2, 0.6), (3, 0.6)])
async def test_contention_is_what_turns_take_longer_together(cards: int, share: float) -> None:
    host = Slowed(cards)
    found = await measure_contention(cast("list[Probe]", host.probes), planned(10.0, 45.0))
    assert found == pytest.approx(share)
    assert [probe.open_slots for probe in host.probes] == [0] * cards


def test_times_of_cards_together_become_those_of_one_alone() -> None:
    step = LinearCost(2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    together = replace(card_profile(), step=step, cell_ns=4.0)
    found = alone(together, 0.5, cards=3)
    assert found.step == LinearCost(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert (found.cell_ns, found.contention) == (2.0, 0.5)


def test_how_a_start_is_told_from_the_rest_is_in_the_words_of_the_probe() -> None:
    said = inspect.getsource(health)
    for words in run._STARTS:
        assert f'"{words}' in said, words


class Waited:
    """An engine of which only its problems matter here."""

    def __init__(self, problem: str) -> None:
        self.problems = {"far": problem} if problem else {}


def wait_for(problem: str, *, up_after_s: float | None = None) -> list[CardUp]:
    """Wait for one card whose endpoint has a problem, and which may come up after all."""

    async def waiting() -> list[CardUp]:
        cards = run._Cards({}, {}, asyncio.Event())
        if up_after_s is not None:
            asyncio.get_running_loop().call_later(up_after_s, cards.take, CARD)
        return await cards.wait(1, cast("Engine", Waited(problem)))

    return asyncio.run(waiting())


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HOPELESS_SECONDS", 0.05)
    monkeypatch.setattr(run, "UP_SECONDS", 0.4)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "problem",
    [
        "takes no connection: Connect call failed",
        "refuses this service's key (status 401); check api_key_env",
        "does not serve m but other",
    ],
)
def test_an_endpoint_that_lets_nobody_in_is_given_up_soon(problem: str) -> None:
    with pytest.raises(EngineLost, match="Nothing was measured") as caught:
        wait_for(problem)
    assert problem in caught.value.message


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("problem", ["answers the probe with status 503", ""])
def test_one_that_starts_is_waited_for_and_that_is_said(
    problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert wait_for(problem, up_after_s=0.2) == [CARD]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "waiting up to 0 s"
    ]
    with pytest.raises(EngineTimeout, match="0 of 1 cards were up"):
        wait_for(problem)

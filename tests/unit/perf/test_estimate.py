from __future__ import annotations

import dataclasses

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf import fitted
from bedplate.perf.catalog import find_hardware, hardware
from bedplate.perf.estimate import Question, estimate
from bedplate.perf.load import Load

QUESTION = Question("Llama-3.1-70B", "H100", "fp8", Load(1024, 1024, concurrency=16), tp=4)


def asked(**changes: object) -> Question:
    return dataclasses.replace(QUESTION, **changes)  # type: ignore[arg-type]


def test_an_estimate_is_near_what_was_published() -> None:
    # InferenceX: vLLM on four H100 in FP8 gave 13.2 ms and 121 ms.
    found = estimate(QUESTION)
    assert found.latency.tpot / 1e6 == pytest.approx(13.2, rel=0.25)
    assert found.latency.ttft / 1e6 == pytest.approx(121, rel=0.5)
    assert found.evidence == "fitted"
    assert found.errors["tpot"].rows > 300


def test_ascend_at_low_batch_is_bound_by_launches() -> None:
    # Published: 53 to 55 ms a token alone on four 910B3, of which reading weights takes 10.
    question = Question("Qwen3-32B", "910B3", "bf16", Load(1024, 1, concurrency=1), tp=4)
    found = estimate(question)
    step = found.latency.step
    assert found.bound / 1e6 == pytest.approx(10, rel=0.1)
    assert step.total / 1e6 == pytest.approx(54, abs=1)
    assert step.launch > step.memory + step.communication
    graph = estimate(dataclasses.replace(question, engine="vllm-ascend-graph"))
    assert graph.latency.step.total < step.total / 2


def test_a_family_that_nobody_measured_is_a_roofline_with_others_efficiencies() -> None:
    found = estimate(asked(card="A100"))
    assert found.evidence == "roofline"
    assert not found.errors


def test_plain_asks_for_peaks() -> None:
    found = estimate(asked(plain=True, load=Load(1024, 1024, concurrency=1)))
    assert found.evidence == "roofline"
    step = found.latency.step
    assert step.launch == 0
    assert found.bound == step.memory + step.compute


def test_every_card_with_known_values_is_answered() -> None:
    answered, refused = [], []
    for card in hardware():
        if card.cards > 1:
            continue
        question = Question("Qwen3-8B", card.name, "int8", Load(1000, 100, concurrency=1))
        try:
            estimate(question)
        except InvalidRequest as error:
            refused.append((error.code, card.name in error.message))
        else:
            answered.append(card.name)
    assert set(refused) == {("unknown_value", True)}
    assert len(answered) >= 18
    assert {"Ascend 910B3", "Ascend 910C", "H100 SXM", "L40S", "RTX 4090"} <= set(answered)


def test_what_no_engine_would_do_is_warned_of() -> None:
    whole = estimate(asked(tp=1, precision="fp16"))
    assert any("141 GB of weights do not fit" in text for text in whole.warnings)
    crowded = estimate(asked(load=Load(30_000, 2_000, concurrency=500)))
    assert any("sessions fits beside the weights" in text for text in crowded.warnings)
    odd = estimate(asked(model="Qwen3.5-397B-A17B", tp=64))
    assert any("does not divide the 32 heads" in text for text in odd.warnings)
    long = estimate(asked(load=Load(200_000, 1, concurrency=1)))
    assert any("more than the 131072" in text for text in long.warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "Lama-3.1-70B"}, "nearest: Llama-3.1-70B"),
        ({"card": "H1000"}, "nearest: H100 SXM"),
        ({"precision": "int3"}, "no precision"),
        ({"engine": "llm"}, "there is: .*vllm"),
        ({"load": Load(0, 10, concurrency=1)}, "input 0"),
        ({"load": Load(10, 10)}, "batch or rate"),
        ({"load": Load(10, 10, concurrency=1, cached_tokens=10)}, "less than the input"),
    ],
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        estimate(asked(**changes))


def test_replicas_of_attention_read_fewer_experts_and_exchange_tokens() -> None:
    load = Load(1024, 1024, concurrency=4)
    alone = estimate(Question("DeepSeek-V3", "H200", "fp8", load, tp=8))
    split = estimate(Question("DeepSeek-V3", "H200", "fp8", load, dp=8, ep=8))
    assert split.deployment.cards == alone.deployment.cards == 8
    assert split.tokens_per_s > alone.tokens_per_s
    assert split.latency.step.communication > 0


def test_constants_are_shares_of_peaks_and_positive() -> None:
    for card in hardware():
        for engine in fitted.engines():
            constants = fitted.constants(card, engine)
            shares = [*constants.memory.values(), *constants.compute.values()]
            shares += [constants.kv, constants.attention]
            assert all(0.1 < share <= fitted.EFFICIENCY_MAX for share in shares), card.name
            assert constants.step > 0
            assert constants.begin > 0


def test_reached_errors_stand_beside_the_constants() -> None:
    reached = fitted.errors(find_hardware("H100"))
    assert reached["tpot"].mean <= 0.20
    assert reached["tpot"].median <= 0.13
    assert reached["ttft"].mean <= 0.40
    ascend = fitted.errors(find_hardware("910B3"))
    assert ascend["tpot"].mean <= 0.20
    assert ascend["ttft"].mean <= 0.30

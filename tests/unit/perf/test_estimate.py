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
    crowded = estimate(asked(load=Load(30_000, 2_000, concurrency=500)))
    assert any("of 500 sessions KV of" in text for text in crowded.warnings)
    odd = estimate(asked(model="Qwen3.5-397B-A17B", tp=64))
    assert any("does not divide the 32 heads" in text for text in odd.warnings)
    long = estimate(asked(load=Load(200_000, 1, concurrency=1)))
    assert any("more than the 131072" in text for text in long.warnings)


def test_what_does_not_fit_the_memory_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"141 GB of weights a card do not fit.*more cards"):
        estimate(asked(tp=1, precision="fp16"))
    with pytest.raises(InvalidRequest, match="KV of one session a card do not fit"):
        estimate(asked(tp=1, load=Load(100_000, 2_000, concurrency=1)))


@pytest.mark.parametrize("size", [(1_000, 100), (2_000, 200), (8_000, 1), (500, 2_000)])
def test_a_rate_is_answered_up_to_what_the_most_sessions_are_answered_at(
    size: tuple[int, int],
) -> None:
    crowd = estimate(asked(load=Load(*size, concurrency=10_000)))
    for share in (0.01, 0.3, 0.9, 0.999):
        found = estimate(asked(load=Load(*size, rate=share * crowd.requests_per_s)))
        assert found.tokens_per_s == pytest.approx(share * crowd.tokens_per_s)
    with pytest.raises(InvalidRequest, match=r"carries: about .*queue grows\s+without end"):
        estimate(asked(load=Load(*size, rate=1.001 * crowd.requests_per_s)))


def test_tokens_a_second_are_those_of_the_times_beside_them() -> None:
    found = estimate(asked(load=Load(2_000, 200, concurrency=64)))
    cycle = found.latency.ttft + 199 * found.latency.tpot
    assert found.tokens_per_s == pytest.approx(64 * 200 / cycle * 1e9)
    assert found.requests_per_s == pytest.approx(64 / cycle * 1e9)
    decoding = estimate(asked(load=Load(2_000, 0, concurrency=64)))
    assert decoding.requests_per_s == 0
    assert decoding.tokens_per_s == pytest.approx(64 / decoding.latency.tpot * 1e9)
    # No prompt joins, so that none is waited for.
    assert decoding.latency.wait == estimate(asked(load=Load(2_000, 0, 1))).latency.wait


def test_kv_has_16_bits_whatever_the_weights_have_unless_told_otherwise() -> None:
    eight, told = estimate(asked()), estimate(asked(kv="fp8"))
    assert (eight.kv, told.kv) == ("fp16", "fp8")
    assert eight.kv_bytes_per_session == 2 * told.kv_bytes_per_session
    assert eight.kv_bytes_per_session == estimate(asked(precision="fp16")).kv_bytes_per_session


@pytest.mark.parametrize(
    ("card", "precision", "lacked"),
    [("910B3", "fp8", "fp8"), ("A100", "fp8", "fp8"), ("H100", "fp4", "fp4"), ("A100", "int4", "")],
)
def test_arithmetic_that_a_card_lacks_gains_bytes_and_nothing_else(
    card: str, precision: str, lacked: str
) -> None:
    load = Load(4_000, 100, concurrency=1)
    few = Question("Llama-3.1-8B", card, precision, load, engine="vllm")
    half = estimate(dataclasses.replace(few, precision="fp16"))
    found = estimate(few)
    # Only the head's weights, which a prompt reads once, are read faster.
    assert found.latency.prefill == pytest.approx(half.latency.prefill, rel=3e-3)
    assert found.latency.step.memory < half.latency.step.memory
    assert any(f"no {lacked} arithmetic" in text for text in found.notes) == bool(lacked)
    if lacked:
        assert found.evidence == "roofline"
        assert not found.errors


def test_what_sets_the_pace_unseen_is_noted() -> None:
    host = Question("Llama-3.1-70B", "910B3", "int8", Load(1_000, 100, concurrency=1), tp=4)
    assert any("held up by the host" in text for text in estimate(host).notes)
    graph = dataclasses.replace(host, engine="vllm-ascend-graph")
    assert not estimate(graph).notes
    across = estimate(asked(tp=16))
    assert any("16 cards lie on 2 servers of 8, joined by" in text for text in across.notes)
    deep = estimate(asked(tp=4, pp=4))
    assert any("pipeline stages count as inside" in text for text in deep.notes)
    assert not estimate(asked(tp=8)).notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "Lama-3.1-70B"}, "nearest: Llama-3.1-70B"),
        ({"card": "H1000"}, "nearest: H100 SXM"),
        ({"precision": "int3"}, "no precision"),
        ({"engine": "llm"}, "there is: .*vllm"),
        ({"load": Load(0, 10, concurrency=1)}, "input 0"),
        ({"load": Load(10, 10)}, "batch or rate"),
        ({"load": Load(10, 10, concurrency=1, rate=1)}, "exclude each other"),
        ({"load": Load(10, 0, rate=1)}, "name output"),
        ({"kv": "int4"}, "format of weights"),
        ({"ep": 2}, "no experts"),
        ({"load": Load(10, 10, concurrency=float("inf"))}, "at most 1e\\+09"),
        ({"load": Load(10, 10, concurrency=float("nan"))}, "batch or rate"),
        ({"load": Load(10, 10, rate=float("nan"))}, "batch or rate"),
        ({"load": Load(10, 10, rate=1e300)}, "batch or rate"),
        ({"load": Load(10**24, 10, concurrency=1)}, "input 1e"),
        ({"load": Load(10, 10**24, concurrency=1)}, "output 1e"),
        ({"load": Load(10, 10, concurrency=1, chunk=-1)}, "chunk -1"),
        ({"tp": 10**6}, "at most 65,536"),
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

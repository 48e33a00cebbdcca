from __future__ import annotations

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog_profile import catalog_profile
from bedplate.perf.fitted import constants
from bedplate.perf.step import Batch, StepTime, causal_pairs


def test_a_profile_says_what_the_core_is_told() -> None:
    profile = catalog_profile("Llama-3.1-70B", "H100", tp=4, precision="fp8")
    assert profile.model == "Llama-3.1-70B"
    assert profile.evidence == "fitted"
    # Weights of 8 bits leave KV at the engine's default of 16.
    assert profile.kv_bytes_per_token == 327_680
    # 4 × 80 GB × 0.95 less 70.55 GB of weights, at 327,680 bytes a token.
    assert profile.kv_tokens == pytest.approx((4 * 76e9 - 70.55e9) / 327_680, rel=1e-3)
    assert profile.context_tokens == 131_072
    assert profile.batching.mixed
    assert profile.can_cut


def test_its_steps_are_those_of_the_model() -> None:
    profile = catalog_profile("Llama-3.1-8B", "H100", precision="fp8")
    step = profile.step
    time: StepTime = step.time  # type: ignore[attr-defined]
    for sequences, context, prompt in ((1, 500, 0), (64, 4000, 0), (0, 0, 2048), (16, 900, 512)):
        pairs = causal_pairs(prompt)
        whole = time.step(Batch(sequences, context, prompt, pairs, 1 if prompt else 0)).total
        parts = step.fixed_ns(prompt, sequences)
        parts += step.pair_ns * pairs + step.context_ns * sequences * context
        assert parts == pytest.approx(whole)


def test_weights_that_a_card_cannot_multiply_are_not_called_fitted() -> None:
    profile = catalog_profile("Qwen3-8B", "910B3", precision="fp8", move_bytes_per_s=20e9)
    assert profile.evidence == "roofline"
    half = catalog_profile("Qwen3-8B", "910B3", precision="fp16", move_bytes_per_s=20e9)
    assert half.evidence == "fitted"
    assert profile.step.fixed_ns(4096, 0) >= half.step.fixed_ns(4096, 0) * 0.99


def test_windows_and_states_are_set_aside_for_each_session_that_runs() -> None:
    hybrid = catalog_profile("Qwen3.5-35B-A3B", "H200", precision="fp8", kv_precision="fp8")
    assert not hybrid.can_cut
    free = 0.95 * 141e9 - 34.66e9
    assert hybrid.kv_tokens == pytest.approx((free - 256 * 64_389_120) / 10_240, rel=0.01)
    step = hybrid.step
    assert step.fixed_ns(0, 64) > step.fixed_ns(0, 1)


def test_moves_go_over_the_host_link_of_all_cards() -> None:
    profile = catalog_profile("Llama-3.1-70B", "H100", tp=4, precision="fp8")
    assert 1 / profile.load.byte_ns == pytest.approx(4 * 64)
    assert profile.load.base_ns > 0
    faster = catalog_profile("Qwen3-8B", "910B3", precision="bf16", move_bytes_per_s=100e9)
    assert 1 / faster.store.byte_ns == pytest.approx(100)


def test_an_unknown_host_link_is_named() -> None:
    with pytest.raises(InvalidRequest, match="host_bytes_per_s of Ascend 910B3"):
        catalog_profile("Qwen3-8B", "910B3", precision="bf16")


def test_what_does_not_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"does not fit 1 H100 SXM.*more cards"):
        catalog_profile("Llama-3.1-70B", "H100", precision="fp16")


def test_an_engine_that_does_not_mix_says_so() -> None:
    profile = catalog_profile("Llama-3.1-8B", "H100", precision="fp8", engine="sglang")
    assert not profile.batching.mixed
    assert profile.begin_ns == constants_begin("sglang")


def constants_begin(engine: str) -> float:
    from bedplate.perf.catalog import find_card

    return constants(find_card("H100"), engine).begin

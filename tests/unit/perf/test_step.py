from __future__ import annotations

import dataclasses
import itertools

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware, find_hardware, find_model
from bedplate.perf.constants import PLAIN
from bedplate.perf.estimate import sessions_that_fit
from bedplate.perf.links import collective_ns
from bedplate.perf.precision import find_precision
from bedplate.perf.step import Batch, Deployment, Parts, StepTime, causal_pairs

GB = 1e9
MS = 1e6


def card(memory_gb: float = 80, tb_per_s: float = 2.0) -> Hardware:
    return dataclasses.replace(
        find_hardware("H100"), memory_bytes=memory_gb * GB, memory_bytes_per_s=tb_per_s * 1e12
    )


def deployment(
    model: str, precision: str = "fp16", on: Hardware | None = None, **degrees: int
) -> Deployment:
    form = find_precision(precision)
    return Deployment(find_model(model), on or card(), form, form.kv_bytes, **degrees)


def plain(deployment: Deployment, batch: Batch) -> Parts:
    return StepTime(deployment, PLAIN).step(batch)


def test_anchor_a_70b_at_2_tb_a_second_takes_69_ms_a_token() -> None:
    step = plain(deployment("Llama-3.1-70B"), Batch(1, 0))
    assert step.total / MS == pytest.approx(69.5, abs=0.05)
    assert step.memory == step.total


def test_anchor_in_4_bits_it_takes_17_ms() -> None:
    step = plain(deployment("Llama-3.1-70B", "int4"), Batch(1, 0))
    assert step.total / MS == pytest.approx(17.5, rel=0.01)


def test_anchor_a_7b_in_fp16_weighs_14_gb_and_takes_a_card_of_24() -> None:
    assert 7e9 * find_precision("fp16").weight_bytes == 14 * GB
    weights = deployment("Llama-2-7B").weight_bytes_per_card
    assert weights == pytest.approx(13.5 * GB, rel=0.01)
    assert weights * 1.5 < 24 * GB * 0.95
    assert weights * 1.5 > 16 * GB


def test_anchor_8_sessions_at_2048_become_2_at_8192() -> None:
    weights = deployment("Llama-2-7B").weight_bytes_per_card
    room = 8.5 * 2048 * 32 * 2 * 32 * 128 * 2
    fitting = deployment("Llama-2-7B", on=card((weights + room) / GB / 0.95))
    assert sessions_that_fit(fitting, 2048) == 8
    assert sessions_that_fit(fitting, 8192) == 2


def test_anchor_48_gb_hold_3_4_times_the_sessions_of_24() -> None:
    small, large = (
        sessions_that_fit(deployment("Llama-2-7B", on=card(memory)), 64) for memory in (24, 48)
    )
    assert large / small == pytest.approx((48 - 14) / (24 - 14), rel=0.02)


def test_experts_read_are_those_that_a_batch_is_expected_to_use() -> None:
    model = find_model("Qwen3-30B-A3B")
    assert model.moe is not None
    fast = card(tb_per_s=2.0)
    found = []
    for batch in (1, 8, 64):
        step = plain(deployment("Qwen3-30B-A3B", on=fast), Batch(batch, 0))
        fixed = model.mixer_weights + model.dense_weights + model.head_weights
        read = step.memory / 1e9 * 2e12 / 2 - fixed
        found.append(read / (model.expert_weights * model.moe_layers))
    # Of 128 experts, 8 a token: 128 × (1 − (1 − 1/16)^B), by hand.
    assert found == pytest.approx([8.0, 51.6195, 125.9448], rel=1e-4)


def test_expected_experts_agree_with_drawing_them() -> None:
    experts, each, tokens = 6, 2, 3
    subsets = list(itertools.combinations(range(experts), each))
    mean = (
        sum(len(set().union(*drawn)) for drawn in itertools.product(subsets, repeat=tokens))
        / len(subsets) ** tokens
    )
    assert experts * (1 - (1 - each / experts) ** tokens) == pytest.approx(mean)


def test_attention_of_a_prompt_grows_with_its_square() -> None:
    time = StepTime(deployment("Llama-3.1-8B"), PLAIN)

    def compute(tokens: int) -> float:
        return time.step(Batch(0, 0, tokens, causal_pairs(tokens), 1)).compute

    # Matrices are linear: what is left of 2 f(n) - f(2 n) is attention alone, n² of its pairs.
    n = 65_536
    beyond = compute(2 * n) - 2 * compute(n)
    # n² pairs, 4 operations a value and head, 32 layers.
    assert beyond == pytest.approx(n**2 * 4 * 32 * 128 * 32 / 989.4e12 * 1e9, rel=0.01)


def test_a_cached_prefix_saves_matrices_but_not_its_keys() -> None:
    assert causal_pairs(4) == 10
    assert causal_pairs(8) == causal_pairs(4) + causal_pairs(4, behind=4)


def test_a_mixed_step_costs_less_than_its_halves_apart() -> None:
    time = StepTime(deployment("Llama-3.1-8B"), PLAIN)
    decode = time.step(Batch(16, 2000)).total
    prompt = time.step(Batch(0, 0, 512, causal_pairs(512), 1)).total
    mixed = time.step(Batch(16, 2000, 512, causal_pairs(512), 1)).total
    assert max(decode, prompt) < mixed < decode + prompt


def test_latent_kv_is_not_divided_but_heads_are() -> None:
    latent, grouped = deployment("DeepSeek-V3", tp=8), deployment("Llama-3.1-70B", tp=8)
    assert latent.kv_bytes_per_card(1000) == 1000 * 70_272
    assert grouped.kv_bytes_per_card(1000) == 1000 * 327_680 / 8
    assert deployment("Llama-3.1-70B", tp=16).kv_shards == 8


def test_weights_are_divided_among_the_cards_that_share_them() -> None:
    one, model = deployment("DeepSeek-V3", "fp8"), find_model("DeepSeek-V3")
    assert one.weight_bytes_per_card == model.parameters
    assert deployment("DeepSeek-V3", "fp8", tp=8).weight_bytes_per_card == model.parameters / 8
    routed = 58 * 256 * model.expert_weights
    split = deployment("DeepSeek-V3", "fp8", dp=8, ep=8)
    assert split.weight_bytes_per_card == pytest.approx(model.parameters - routed * 7 / 8)


def test_a_window_bounds_what_a_token_reads() -> None:
    def read(context: int) -> float:
        return plain(deployment("Gemma-3-1B"), Batch(64, context)).memory

    # 4 of 26 layers see all, the others at most 512 tokens.
    near, far, farther = read(512), read(1024), read(1536)
    assert far - near == pytest.approx(farther - far)
    assert (near - read(256)) == pytest.approx((far - near) / 2 * 26 / 4)


def test_sparse_attention_reads_no_more_than_it_selects() -> None:
    time = StepTime(deployment("DeepSeek-V3.2", "fp8", tp=8), PLAIN)
    assert time.step(Batch(8, 4000)).total == time.step(Batch(8, 40_000)).total
    assert time.step(Batch(8, 1000)).total < time.step(Batch(8, 2048)).total


def test_tensor_parallelism_talks_and_pipelines_hop() -> None:
    batch = Batch(8, 1000)
    alone = plain(deployment("Llama-3.1-70B"), batch)
    assert alone.communication == 0
    wide = plain(deployment("Llama-3.1-70B", tp=4), batch)
    assert wide.communication > 0
    assert wide.memory == pytest.approx(alone.memory / 4)
    deep = plain(deployment("Llama-3.1-70B", pp=4), batch)
    # A token passes all layers; each stage works on a quarter of the batch at a time.
    assert alone.memory * 0.9 < deep.memory < alone.memory * 1.001
    assert deep.communication > 0


def test_an_all_reduce_is_the_faster_of_the_collective_and_one_shot() -> None:
    # One shot: each of eight cards reads what seven others hold, at 450 GB/s, twice a layer.
    paid = dataclasses.replace(PLAIN, reduce=10e3)
    time = StepTime(deployment("Llama-3.1-70B", tp=8), paid)
    for tokens, is_one_shot in ((1, True), (4096, False)):
        size = tokens * 8192 * 2
        shot = 160 * (10e3 + 7 * size / 450)
        collective = 160 * collective_ns("h100_sxm", "all_reduce", 8, size)
        assert (shot < collective) == is_one_shot
        talk = time.step(Batch(tokens, 100)).communication
        assert talk == pytest.approx(min(shot, collective))


def test_across_servers_talking_costs_more() -> None:
    batch = Batch(8, 1000)
    inside = plain(deployment("DeepSeek-V3", "fp8", tp=8), batch)
    across = plain(deployment("DeepSeek-V3", "fp8", tp=16), batch)
    assert across.communication > inside.communication * 2


def test_arithmetic_that_hardware_lacks_falls_back_to_16_bits() -> None:
    on = find_hardware("A100")
    prompt = Batch(0, 0, 4096, 0, 1)
    half = plain(deployment("Llama-3.1-8B", "fp16", on), prompt)
    byte = plain(deployment("Llama-3.1-8B", "fp8", on), prompt)
    eight = plain(deployment("Llama-3.1-8B", "int8", on), prompt)
    assert byte.compute == half.compute
    assert eight.compute == pytest.approx(half.compute / 2)


def test_drafted_tokens_pass_the_matrices_but_read_kv_once() -> None:
    one = plain(deployment("Qwen3.5-27B"), Batch(1, 4000))
    four = plain(deployment("Qwen3.5-27B"), Batch(1, 4000, query=4))
    assert one.total < four.total < one.total * 1.1


def test_a_host_that_starts_kernels_one_by_one_sets_a_floor() -> None:
    slow = dataclasses.replace(PLAIN, host=400e3, mixer=10e3)
    time = StepTime(deployment("Qwen3-32B", on=card(tb_per_s=8)), slow)
    few, many = time.step(Batch(1, 100)), time.step(Batch(1024, 8000))
    assert few.total == 64 * 2 * 400e3
    assert many.launch == 64 * 10e3
    assert many.total > few.total


def test_unknown_values_of_the_card_are_named() -> None:
    with pytest.raises(InvalidRequest, match="memory_bytes_per_s of Ascend 910B1"):
        StepTime(deployment("Qwen3-8B", on=find_hardware("910B1")), PLAIN)
    with pytest.raises(InvalidRequest, match=r"UB 2\.0 is unknown"):
        StepTime(deployment("Qwen3-8B", "fp8", find_hardware("950DT"), tp=2), PLAIN)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [({"tp": 0}, "tp is 0"), ({"pp": 100}, "more than the 80 layers"), ({"ep": 4}, "more cards")],
)
def test_a_division_that_cannot_be_is_refused(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        deployment("Llama-3.1-70B", "fp16", None, **degrees)


def test_an_unknown_precision_lists_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"fp3.*fp64"):
        find_precision("fp3")
    assert find_precision("NVFP4") is find_precision("fp4")

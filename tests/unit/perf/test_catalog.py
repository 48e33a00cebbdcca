from __future__ import annotations

import dataclasses
import math

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import (
    find_card,
    find_hardware,
    find_model,
    hardware,
    models,
)

# Computed apart, from the published shapes: parameters in billions, of them active ones.
PARAMETERS = {
    "Llama-3.1-8B": 8.0303,
    "Llama-3.1-70B": 70.5537,
    "Qwen3-32B": 32.7621,
    "Qwen3-235B-A22B": 235.0936,
    "DeepSeek-V3": 671.0264,
    "gpt-oss-120b": 116.8292,
    "Gemma-3-270M": 0.2681,
    "Qwen3.5-35B-A3B": 34.6606,
    "Qwen3.5-27B": 26.896,
    "GLM-4.5": 352.7978,
}


@pytest.mark.parametrize(("name", "billions"), PARAMETERS.items())
def test_parameters_follow_from_the_shape(name: str, billions: float) -> None:
    assert find_model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_parameters_agree_with_what_publishers_say() -> None:
    told = [model for model in models() if model.parameters_b_official is not None]
    assert len(told) > 30
    for model in told:
        assert model.parameters_b_official is not None
        assert model.parameters / 1e9 == pytest.approx(model.parameters_b_official, rel=0.03), (
            model.name
        )


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [("Llama-3.1-70B", 327_680), ("DeepSeek-V3", 70_272), ("Qwen3.5-35B-A3B", 20_480)],
)
def test_kv_of_a_token_at_16_bits(name: str, token_bytes: int) -> None:
    assert find_model(name).kv_bytes_per_token(2) == token_bytes


def test_kv_of_a_sequence_counts_windows_and_states_once() -> None:
    hybrid, windowed = find_model("Qwen3.5-35B-A3B"), find_model("gpt-oss-120b")
    assert hybrid.kv_bytes_per_sequence(0, 2) == 64_389_120
    assert windowed.kv_bytes_per_sequence(10_000, 2) == 10_000 * 36_864 + 4_718_592
    assert windowed.kv_bytes_per_sequence(64, 2) == 64 * (36_864 + 4_718_592 / 128)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B"),
        ("llama-3.3-70b-instruct", "Llama-3.1-70B"),
        ("Qwen/QwQ-32B", "Qwen2.5-32B"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepSeek-V3"),
    ],
)
def test_a_model_is_found_under_the_names_it_is_published_by(asked: str, name: str) -> None:
    assert find_model(asked).name == name


@pytest.mark.parametrize(
    ("asked", "name"),
    [("h100_sxm", "H100 SXM"), ("B200 SXM (HGX)", "B200 SXM"), ("910b3", "Ascend 910B3")],
)
def test_a_card_is_found_by_alias_in_any_case(asked: str, name: str) -> None:
    assert find_hardware(asked).name == name


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="nearest: Qwen3-32B") as model:
        find_model("Qwen4-32B")
    with pytest.raises(InvalidRequest, match="Ascend 910B") as card:
        find_hardware("910B")
    assert (model.value.code, card.value.code) == ("unknown_model", "unknown_card")


def test_a_name_like_nothing_says_how_to_see_all() -> None:
    with pytest.raises(InvalidRequest, match="--list"):
        find_model("€")


def test_an_unknown_value_is_named_with_its_card() -> None:
    with pytest.raises(InvalidRequest, match="memory_bytes of Ascend 910B1 is unknown") as error:
        find_hardware("910B1").need("memory_bytes")
    assert error.value.code == "unknown_value"
    with pytest.raises(InvalidRequest, match=r"fp16 arithmetic \(tflops.fp16\) of Ascend 310P3"):
        find_hardware("310P3").rate("fp16")


def test_what_hardware_lacks_is_zero_and_not_unknown() -> None:
    assert find_hardware("A100").rate("fp8") == 0
    assert find_hardware("A100").rate("int8") == 624e12


def test_a_system_is_no_card() -> None:
    with pytest.raises(InvalidRequest, match=r"system of 384 cards; name one.*Ascend 910C"):
        find_card("CloudMatrix384")
    assert find_card("910C").name == "Ascend 910C"


def test_every_entry_has_a_source_and_no_value_is_made_up() -> None:
    sources = [(entry.name, entry.source) for entry in hardware()]
    sources += [(entry.name, entry.source) for entry in models()]
    for name, source in sources:
        assert "http" in source or ".com" in source, name
    for card in hardware():
        for field in dataclasses.fields(card):
            value = getattr(card, field.name)
            if isinstance(value, float | int) and field.name != "link_bytes_per_s":
                assert value > 0, (card.name, field.name)
                assert math.isfinite(value)

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.estimate import _time, app
from bedplate.errors import InvalidRequest

COMMAND = ["--model", "Llama-3.1-70B", "--card", "H100", "--tp", "8", "--precision", "fp16"]

RATE = [*COMMAND, "--input", "2000", "--output", "200", "--rate"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def invoke_json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_the_json_has_times_parts_and_what_they_rest_on() -> None:
    found = invoke_json(*COMMAND, "--batch", "16", "--context", "8192")
    assert found["cards"] == 8
    assert found["input_tokens"] == 8192
    assert found["output_tokens"] == 0
    assert found["tpot_ms"] == found["step_ms"] < 30
    parts = found["parts"]
    assert found["step_ms"] == pytest.approx(sum(parts["step"].values()), abs=1e-3)
    assert found["ttft_ms"] == pytest.approx(sum(parts["ttft"].values()), abs=1e-3)
    assert found["tpot_ms"] == pytest.approx(sum(parts["tpot"].values()), abs=1e-3)
    assert found["evidence"] == "fitted"
    assert found["error"]["tpot"]["mean"] < 0.2
    assert found["memory"]["weights_gb_per_card"] == pytest.approx(141.1 / 8, rel=1e-3)
    assert found["memory"]["kv_gb_per_session"] == pytest.approx(8192 * 327_680 / 1e9, rel=1e-3)


def test_context_less_input_is_the_answer() -> None:
    told = invoke_json(*COMMAND, "--batch", "16", "--context", "2048", "--input", "1024")
    same = invoke_json(*COMMAND, "--batch", "16", "--input", "1024", "--output", "1024")
    assert told == same
    assert told["output_tokens"] == 1024
    assert told["parts"]["tpot"]["prompts_ms"] > 0


def test_people_get_a_table_with_what_it_rests_on_and_warnings_apart() -> None:
    result = invoke(*COMMAND, "--input", "2000", "--output", "200", "--batch", "100000")
    assert result.exit_code == 0
    assert "time per token (TPOT)" in result.stdout
    assert "KV in fp16, on 8 H100 SXM (tp 8)" in result.stdout
    assert "evidence: fitted (mean error" in result.stdout
    assert "of 100000 sessions KV of" in result.stderr
    assert all(len(line) <= 100 for line in result.stdout.splitlines())


def test_times_have_the_digits_that_an_estimate_is_good_for() -> None:
    assert [_time(ns) for ns in (0, 1.23456e5, 44.444e6, 999.6e6, 59.96e9, 10_343_023e6)] == [
        "0",
        "123 µs",
        "44.4 ms",
        "1 s",
        "60 s",
        "2 h 52 min",
    ]


def test_tokens_a_second_say_whether_the_first_token_counts() -> None:
    whole = invoke(*COMMAND, "--input", "2000", "--output", "200", "--batch", "8").stdout
    assert "requests/s of 200 tokens each" in whole
    assert "the first token's wait included" in whole
    alone = invoke(*COMMAND, "--context", "2000").stdout
    assert "tokens/s while decoding" in alone
    assert "1 session at a time" in alone
    assert "no prompt of others joins" in alone


def test_a_note_stands_with_the_result() -> None:
    command = ["--model", "Llama-3.1-70B", "--card", "910B3", "--precision", "int8", "--tp", "4"]
    assert "note: held up by the host" in invoke(*command, "--context", "1000").stdout
    found = invoke_json(*command, "--context", "1000")
    assert any("--engine vllm-ascend-graph" in text for text in found["notes"])
    assert found["kv_precision"] == "fp16"
    assert found["requests_per_s"] == 0


def test_the_list_shows_models_and_cards_with_unknown_as_it_is() -> None:
    found = invoke_json("--list")
    assert len(found["models"]) > 40
    cards = {card["name"]: card for card in found["cards"]}
    assert cards["Ascend 910B1"]["memory_gb"] == "unknown"
    assert "Qwen3-32B" in invoke("--list").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "Qwen3-8B"], "name a --model and a --card"),
        (["--model", "Qwen3-8B", "--card", "H100"], "name --context"),
        (["--model", "Qwen3-9B", "--card", "H100", "--context", "10"], "Qwen3-8B"),
        (["--model", "Qwen3-8B", "--card", "910B1", "--context", "10"], "910B1 is unknown"),
        ([*COMMAND, "--context", "100", "--input", "50", "--output", "10"], "leave one out"),
        ([*COMMAND, "--context", "100", "--input", "200", "--output", "10"], "leave one out"),
        ([*COMMAND, "--context", "100", "--input", "200"], "leave one out"),
        ([*COMMAND, "--context", "100", "--output", "200"], "leave one out"),
        ([*COMMAND, "--context", "100", "--batch", "nan"], "they are nan and 0"),
        ([*COMMAND, "--input", "9", "--output", "9", "--rate", "0"], "they are 0 and 0"),
        ([*RATE, "5", "--batch", "8"], "--rate 5 and --batch 8 exclude each other"),
        ([*RATE, "5", "--plain", "--engine", "vllm"], "engine vllm does; leave one out"),
        ([*RATE, "9999"], "more than a replica carries: about"),
        ([*COMMAND, "--context", "100", "--rate", "5"], "name --output"),
        ([*COMMAND, "--context", "100", "--tp", "1"], "do not fit the 76 GB"),
        (["--model", "Qwen3-8B", "--card", "910B", "--context", "10"], "name one of Ascend 910B1"),
        (["--model", "Qwen3-8B", "--card", "H800", "--context", "10"], "bedplate calibrate"),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], message: str) -> None:
    error = invoke(*arguments).exception
    assert isinstance(error, InvalidRequest)
    assert message in error.message

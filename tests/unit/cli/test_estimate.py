from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bedplate.cli.estimate import app
from bedplate.errors import InvalidRequest

COMMAND = ["--model", "Llama-3.1-70B", "--card", "H100", "--tp", "8", "--precision", "fp16"]


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


def test_people_get_a_table_and_warnings_apart() -> None:
    result = invoke(*COMMAND[:4], "--context", "4096")
    assert result.exit_code == 0
    assert "time per token (TPOT)" in result.stdout
    assert "evidence: fitted (mean error" in result.stdout
    assert "do not fit" in result.stderr


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
    ],
)
def test_errors_say_what_to_do(arguments: list[str], message: str) -> None:
    error = invoke(*arguments).exception
    assert isinstance(error, InvalidRequest)
    assert message in error.message

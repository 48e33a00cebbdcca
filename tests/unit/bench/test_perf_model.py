from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bench.validation.perf_model.fit import GUESSES, Parameters, fit, left_out
from bench.validation.perf_model.predict import Said, say
from bench.validation.perf_model.result import answered, error
from bench.validation.perf_model.rows import Row, read

COLUMNS = (
    *("id", "kind", "model", "hardware", "cards", "tp", "pp", "dp", "ep", "precision"),
    *("engine", "engine_version", "mode", "input_len", "output_len", "concurrency"),
    *("request_rate", "ttft_ms", "tpot_ms", "e2e_ms", "output_tok_s", "notes", "source"),
)
GOOD = {
    "id": "a1",
    "kind": "measured",
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "hardware": "h100_sxm",
    "tp": "4",
    "precision": "fp8/fp8",
    "engine": "vllm",
    "mode": "agg",
    "input_len": "1024",
    "output_len": "1024",
    "concurrency": "16",
    "ttft_ms": "121.4",
    "tpot_ms": "13.19",
}


def table(tmp_path: Path, *lines: dict[str, str]) -> Path:
    path = tmp_path / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(lines)
    return path


def one(tmp_path: Path, **changes: str) -> Row:
    rows, reasons = read(table(tmp_path, {**GOOD, **changes}))
    assert not reasons
    return rows[0]


def reason(tmp_path: Path, **changes: str) -> str:
    rows, reasons = read(table(tmp_path, {**GOOD, **changes}))
    assert not rows
    return reasons["a1"]


def test_a_row_that_says_enough_is_read(tmp_path: Path) -> None:
    row = one(tmp_path)
    d = row.deployment
    assert (d.model.name, d.card.name, d.precision.name) == ("Llama-3.1-70B", "H100 SXM", "fp8")
    assert (d.tp, d.pp, d.ep, d.dp) == (4, 1, 1, 1)
    assert (row.concurrency, row.rate, row.base) == (16, 0, "Llama-3.1-70B")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"concurrency": ""}, "neither concurrency nor request rate"),
        ({"tp": ""}, "tensor parallelism"),
        ({"hardware": "Ascend (A2 or A3)"}, "card not stated"),
        ({"model": "Hy3-preview"}, "shape of the model"),
        ({"precision": "see page"}, "precision"),
        ({"input_len": "OpenOrca"}, "input length"),
        ({"mode": "disagg"}, "disaggregated"),
        ({"kind": "mlperf"}, "throughput only"),
        ({"notes": "prompts 80; MTP/spec tokens 3"}, "speculative"),
        ({"notes": "prefix-cache share 90 %; MTP/spec tokens none"}, "prefix cache"),
        ({"tp": "1", "precision": "bf16"}, "weights as labelled are larger"),
        ({"tp": "24"}, "heads are not divisible"),
        ({"concurrency": "5000"}, "do not fit the memory as labelled"),
        ({"engine": "SGLangish"}, ""),
    ],
)
def test_what_a_row_does_not_say_is_its_reason(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    if told:
        assert told in reason(tmp_path, **changes)
    else:
        assert one(tmp_path, **changes).engine == "sglang"


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ({"tp": "64", "ep": "8", "dp": "1"}, (8, 8, 1, 64)),
        ({"tp": "4", "ep": "16", "dp": "4"}, (1, 4, 4, 16)),
        ({"tp": "8", "ep": "8", "dp": "", "notes": "batch per replica 8"}, (1, 8, 8, 8)),
        ({"tp": "8", "ep": "8", "dp": "1", "notes": "batch per replica 64"}, (8, 8, 1, 64)),
    ],
)
def test_degrees_that_were_multiplied_twice_are_read_once(
    tmp_path: Path, given: dict[str, str], read_as: tuple[int, int, int, int]
) -> None:
    told = {"model": "deepseek-ai/DeepSeek-V3", "hardware": "b200_sxm", "precision": "fp4/nvfp4"}
    row = one(tmp_path, **{**told, "concurrency": "64", **given})
    d = row.deployment
    assert (d.tp, d.ep, d.dp, row.concurrency) == read_as


def test_a_rate_is_shared_by_replicas(tmp_path: Path) -> None:
    row = one(tmp_path, concurrency="", request_rate="0.5 req/s trace", dp="one replica of 4")
    assert (row.concurrency, row.rate) == (0, 0.125)


def test_a_measurement_counts_once_and_a_contradiction_not_at_all(tmp_path: Path) -> None:
    twice = table(tmp_path, GOOD, {**GOOD, "id": "a2", "model": "meta-llama/Llama-3.1-70B"})
    assert read(twice)[1] == {"a2": "repeats another row"}
    other = {**GOOD, "id": "a2", "input_len": "500", "e2e_ms": "9"}
    rows, reasons = read(table(tmp_path, {**GOOD, "e2e_ms": "9"}, other))
    assert not rows
    assert len(reasons) == 2


def synthetic(tmp_path: Path) -> tuple[list[Row], Parameters]:
    """Return rows whose times are those of known constants, on two models."""
    lines = [
        {**GOOD, "id": f"{model}{tp}{batch}{size}", "model": model, "tp": str(tp)}
        | {"concurrency": str(batch), "input_len": str(size)}
        for model in ("Llama-3.1-8B", "Qwen3-14B")
        for tp in (1, 2, 4)
        for batch in (1, 16, 64)
        for size in (500, 4000)
    ]
    rows, reasons = read(table(tmp_path, *lines))
    assert not reasons
    parameters = Parameters.of(rows)
    truth = np.zeros(len(parameters.names))
    for index, (_, name) in enumerate(parameters.names):
        truth[index] = {"memory_byte": -0.2, "mixer": 0.5, "begin": 0.7}.get(name, 0.0)
    said = say(rows, parameters.constants(truth, rows))
    found = {(answer.row.id, answer.quantity): answer.predicted or 0.0 for answer in said}
    made = [
        dataclasses.replace(row, ttft_ms=found[row.id, "ttft"], tpot_ms=found[row.id, "tpot"])
        for row in rows
    ]
    return made, parameters


def test_the_fit_finds_the_constants_that_rows_were_made_of(tmp_path: Path) -> None:
    rows, parameters = synthetic(tmp_path)
    before = say(rows, parameters.constants(np.zeros(len(parameters.names)), rows))
    values = fit(rows, parameters)
    after = say(rows, parameters.constants(values, rows))
    assert error(before).mean > 0.15
    assert error(after).mean < 0.01
    base = parameters.group(values, "base")
    assert base["memory_byte"] < GUESSES["memory_byte"][0] * 0.9


def test_a_model_left_out_is_predicted_by_the_others(tmp_path: Path) -> None:
    rows, parameters = synthetic(tmp_path)
    said = left_out(rows, parameters, models=9, processes=1)
    assert {one.row.id for one in said} == {row.id for row in rows}
    assert error(said).mean < 0.05


def test_a_model_left_out_is_not_seen(tmp_path: Path) -> None:
    rows, parameters = synthetic(tmp_path)
    wrong = [
        dataclasses.replace(row, tpot_ms=row.tpot_ms * 3) if row.base == "Qwen3-14B" else row
        for row in rows
    ]
    clean = left_out(rows, parameters, models=9, processes=1)
    spoilt = left_out(wrong, parameters, models=9, processes=1)

    def of(said: list[Said], base: str) -> list[float | None]:
        return [one.predicted for one in said if one.row.base == base]

    assert of(clean, "Qwen3-14B") == of(spoilt, "Qwen3-14B")
    assert of(clean, "Llama-3.1-8B") != of(spoilt, "Llama-3.1-8B")


def test_a_row_that_cannot_be_answered_counts_as_such(tmp_path: Path) -> None:
    rows, _ = read(table(tmp_path, GOOD, {**GOOD, "id": "a2", "tpot_ms": "14"}))
    said = [Said(rows[0], "tpot", 10.0, 12.0), Said(rows[1], "tpot", 10.0, None)]
    assert answered(rows, said) == 0.5
    assert error(said).mean == pytest.approx(0.2)

"""aiconfigurator on rows that it may answer, in a virtual environment of its own.

It interpolates tables of measured kernels of the same cards, so it answers only what was collected.
Its own sample of measurements is where most rows come from; nothing of it is read here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness.run import BenchError
from bench.subjects.peers import peer_environment
from bench.validation.perf_model.predict import Said, pick, quantities
from bench.validation.perf_model.rows import Row

VERSION = "0.12.0"
SECONDS_MAX = 1_200
"""Longest that all rows together may take; what is not answered by then counts as no answer."""
SYSTEMS = {
    "H100 SXM": "h100_sxm",
    "H200 SXM": "h200_sxm",
    "B200 SXM": "b200_sxm",
    "B300 SXM": "b300_sxm",
    "GB200": "gb200",
}
MODELS = {
    "Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "MiniMax-M2.7": "MiniMaxAI/MiniMax-M2.7",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
}
FORMATS = {
    "fp8": (("fp8", "fp8_block"), ("fp8_block", "fp8_block"), ("fp8", "fp8")),
    "fp4": (("nvfp4", "nvfp4"),),
    "int4": (("int4_wo", "int4_wo"), ("bfloat16", "int4_wo")),
    "bf16": (("bfloat16", "bfloat16"),),
    "fp16": (("bfloat16", "bfloat16"),),
}
"""Its words for matrices and experts, in the order in which it is asked until it answers."""
PROGRAM = """\
import json, sys
from contextlib import redirect_stdout
from aiconfigurator.cli.api import cli_estimate

out = sys.stdout
for line in sys.stdin:
    asked = json.loads(line)
    for arguments in asked["ways"]:
        try:
            with redirect_stdout(sys.stderr):
                said = cli_estimate(mode="agg", **arguments)
            answer = {"id": asked["id"], "ttft": said.ttft, "tpot": said.tpot}
            break
        except Exception as error:
            answer = {"id": asked["id"], "error": f"{type(error).__name__}: {error}"[:300]}
    out.write(json.dumps(answer) + "\\n")
    out.flush()
"""


def ask(cache: Path, rows: Sequence[Row], most: int) -> tuple[list[Said], float]:
    """Return what it says of evenly spread rows with a concurrency, and its seconds a row.

    Raises:
        BenchError: it cannot be installed or does not start.
    """
    asked = _spread(rows, most)
    python = peer_environment(cache, "aiconfigurator", VERSION) / "bin" / "python"
    lines = "".join(json.dumps({"id": row.id, "ways": _ways(row)}) + "\n" for row in asked)
    began = time.monotonic()
    answers = _answers(python, lines)
    seconds = time.monotonic() - began
    if not answers:
        raise BenchError("aiconfigurator gave no answer")
    said = []
    for row in asked:
        answer = answers.get(row.id, {})
        for name, value in quantities(row):
            predicted = None
            if "tpot" in answer:
                predicted = pick(row, name, (float(answer["ttft"]), float(answer["tpot"])))
            said.append(Said(row, name, value, predicted))
    return said, seconds / len(answers)


def _answers(python: Path, lines: str) -> dict[str, dict[str, float | str]]:
    """Return answers by row; those that came in time."""
    process = subprocess.Popen(
        [str(python), "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        text, _ = process.communicate(lines, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
    finally:
        process.kill()  # nothing where it has ended
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {answer["id"]: answer for answer in found}


def _spread(rows: Sequence[Row], most: int) -> list[Row]:
    able = [
        row
        for row in rows
        if row.kind == "serving"
        and row.concurrency
        and row.deployment.card.name in SYSTEMS
        and row.deployment.model.name in MODELS
        and row.deployment.precision.name in FORMATS
    ]
    step = max(1, len(able) // most)
    return able[::step][:most]


def _ways(row: Row) -> list[dict[str, object]]:
    """Return the arguments of a row, one set for each way to name its formats."""
    d = row.deployment
    moe = d.model.moe is not None
    common: dict[str, object] = {
        "model_path": MODELS[d.model.name],
        "system_name": SYSTEMS[d.card.name],
        "backend_name": row.engine,
        "isl": int(row.input_tokens),
        "osl": int(row.output_tokens),
        "batch_size": max(1, round(row.concurrency)),
        "tp_size": d.tp,
        "pp_size": d.pp,
        "attention_dp_size": d.dp,
        "moe_tp_size": d.tp * d.dp // d.ep if moe else 1,
        "moe_ep_size": d.ep if moe else 1,
    }
    ways = []
    for matrices, experts in FORMATS[d.precision.name]:
        way = {**common, "gemm_quant_mode": matrices, "moe_quant_mode": experts if moe else None}
        if way not in ways:
            ways.append(way)
    return ways


if __name__ == "__main__":
    sys.exit("this module is part of `python -m bench run perf-model`")

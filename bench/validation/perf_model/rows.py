"""Published measurements as rows that a model can be held against, and why others cannot be.

`read` takes every row of `measured.csv` and returns it either as a `Row` or as a reason. A reason
is something that the row does not say, or says and cannot be: never that it fits badly. Readings
that are not word for word stand here, and apply to every row:

- `tp` (or `dp`) equal to ep² beside ep > 1 is read as ep. The publisher's form wants tp × dp =
  moe_tp × moe_ep and was filled with moe_tp = tp: 64 for a box of 8, 16 for 4 cards.
- tp = dp beside ep = tp × dp is read as dp = ep = tp with tp 1: attention data parallelism over
  the cards of one box, counted twice by the same rule.
- "unspecified" is the checkpoint's own precision, BF16.
- "see case" and "see file" are followed: what those files say stands in `cases.toml`.
- a rate over "one replica of N" is divided by N; concurrency is then rate × time (Little).
- TTFT is what a client saw over HTTP, but for studies that time inside the engine (`INSIDE`).
- a row that repeats another's model, load and results counts once.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware, find_hardware, find_model
from bedplate.perf.precision import Precision, find_precision
from bedplate.perf.shape import ModelShape
from bedplate.perf.step import Deployment

CARDS = {
    "H100": "H100 SXM",
    "H200": "H200 SXM",
    "Ascend 910C (Atlas 800 A3, count = dies)": "Ascend 910C die",
    "Ascend 910C (Atlas 800 A3, count = dies); Ascend 910C 560T (A3, count = dies)": "",
    "Ascend 910B3 (Atlas 800 A2; runner a2b3)": "Ascend 910B3",
    "Ascend 910C 560T": "Ascend 910C 560T die",
    "Ascend 910C 752T (A3)": "Ascend 910C die",
    "Ascend 910B 376T": "Ascend 910B2",
}
"""What the table calls a card, where that is no name of the catalogue; empty: it names two."""

PRECISIONS = {
    "fp8/fp8": "fp8",
    "fp8/fp8_block": "fp8",
    "fp4/nvfp4": "fp4",
    "int4/int4_wo": "int4",
    "fp4 (not in the sheet)": "fp4",
    "fp8 (not in the sheet)": "fp8",
}
OWN_PRECISION = "bf16"
BASES = {
    "DeepSeek-R1": "DeepSeek-V3",
    "DeepSeek-V3.2": "DeepSeek-V3",
    "Kimi-K2": "Kimi-K2.5",
}
"""Models that share a shape but for details: left out together."""


INSIDE = ("microsoft/apex_plus", "inference-sim/sim-to-real", "Ascend/msmodeling")
"""Sources of studies whose first token is timed by the engine, not by a client."""
BUILDS = {"microsoft/apex_plus": "vllm-2024"}
"""Engines by source, where the source is of a build of its own."""
CASES = Path(__file__).with_name("cases.toml")


@dataclass(frozen=True, slots=True)
class Row:
    """One usable measurement: a deployment, its load, and what was measured (ms), 0 for not.

    `concurrency` is sessions of one replica, 0 where `rate` (requests/s of one replica) drives it.
    `kind`: serving (TTFT, TPOT), decode or prefill (one step), rate (output tokens/s of all cards).
    `query`: tokens a sequence computes in a decode step, more than 1 where drafts are verified.
    """

    id: str
    base: str
    deployment: Deployment
    engine: str
    family: str
    kind: str
    input_tokens: float
    output_tokens: float
    concurrency: float
    rate: float
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    chunk: int
    query: int = 1
    inside: bool = False


class Unusable(Exception):
    """Why a row cannot be held against a model."""


def read(path: Path) -> tuple[list[Row], dict[str, str]]:
    """Return the usable rows, and the reason of every other by id."""
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    with path.open(encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file))
    cases = tomllib.loads(CASES.read_text(encoding="utf-8"))
    conflicting = _conflicting(raw)
    seen: set[tuple[object, ...]] = set()
    for line in raw:
        try:
            if line["id"] in conflicting:
                raise Unusable("other loads carry the very same results: one of them is wrong")
            row = _row(line, cases.get(line["id"], {}))
            _check_memory(row)
            if _key(row) in seen:
                raise Unusable("repeats another row")
            seen.add(_key(row))
            rows.append(row)
        except Unusable as error:
            reasons[line["id"]] = str(error)
    return rows, reasons


def _key(row: Row) -> tuple[object, ...]:
    d = row.deployment
    division = (d.tp, d.pp, d.dp, d.ep)
    load = (row.input_tokens, row.output_tokens, row.concurrency, row.rate)
    found = (row.ttft_ms, row.tpot_ms, row.tokens_per_s)
    return (row.base, d.card.name, d.precision.name, division, row.engine, load, found)


def _conflicting(raw: Iterable[dict[str, str]]) -> set[str]:
    """Return ids whose results appear to all digits under other lengths of the same model."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in raw:
        if line["ttft_ms"] and line["tpot_ms"] and line["e2e_ms"]:
            key = (line["model"], line["tp"], line["ttft_ms"], line["tpot_ms"], line["e2e_ms"])
            groups.setdefault(key, []).append(line)
    return {
        line["id"]
        for lines in groups.values()
        if len({(line["input_len"], line["output_len"]) for line in lines}) > 1
        for line in lines
    }


def _row(line: dict[str, str], case: dict[str, Any]) -> Row:
    kind = _kind(line)
    division = _division(line, case)
    dp = division[3]
    concurrency, rate = _load(line, case, dp)
    model = _model(line["model"])
    card = _card(case.get("card", line["hardware"]))
    precision = _precision(case.get("precision", line["precision"]))
    kv = find_precision(case["kv"]).kv_bytes if "kv" in case else precision.kv_bytes
    serves = kind in ("serving", "rate")
    return Row(
        id=line["id"],
        base=BASES.get(model.name, model.name),
        deployment=_deployment(Deployment(model, card, precision, kv, *division)),
        engine=_engine(line),
        family=card.family,
        kind=kind,
        input_tokens=case.get("input_tokens") or _number(line["input_len"], "input length"),
        output_tokens=_number(line["output_len"], "output length") if serves else 1,
        concurrency=concurrency,
        rate=rate,
        ttft_ms=_optional(line["ttft_ms"]),
        tpot_ms=_optional(line["tpot_ms"]),
        tokens_per_s=_optional(line["output_tok_s"]) if kind == "rate" else 0.0,
        chunk=int(_noted(line, r"max batched tokens (\d+)") or 0),
        query=case.get("query_tokens", 1),
        inside=any(source in line["source"] for source in INSIDE),
    )


def _kind(line: dict[str, str]) -> str:
    notes, mode = line["notes"], line["mode"]
    if line["kind"] == "mlperf":
        raise Unusable("MLPerf: throughput only, parallelism and batch not stated")
    if line["kind"] == "vendor_max_throughput" or mode.startswith("offline"):
        raise Unusable("throughput at an unstated batch")
    if mode.startswith("disagg"):
        raise Unusable("disaggregated prefill and decode: the model is of one engine")
    if "dynamic chunked PP" in mode:
        raise Unusable("pipeline depth not stated")
    if mode in ("decode", "prefill"):
        if not (line["tpot_ms"] or line["ttft_ms"]):
            raise Unusable("neither times nor a rate at a stated concurrency")
        return mode
    spec = _noted(line, r"MTP/spec tokens ([^;]*)")
    if (spec and spec.strip() != "none") or "+MTP" in notes:
        raise Unusable("speculative decoding, acceptance not stated")
    share = _noted(line, r"prefix-cache share (\d+) %")
    if share and share != "0":
        raise Unusable("served from a prefix cache, TTFT and rate not those of the length")
    if line["tpot_ms"] or line["ttft_ms"]:
        return "serving"
    if line["output_tok_s"] and line["concurrency"]:
        return "rate"
    raise Unusable("neither times nor a rate at a stated concurrency")


def _model(name: str) -> ModelShape:
    text = re.sub(r"(?i)[-_ ](A2|A3|310p)$", "", name)
    text = re.sub(r"(?i)[-_](w8a8|w4a8)(sc)?([-_](ml|wl|310p))?$", "", text)
    text = re.sub(r"(?i)[-_ ](BF16|FP8)$", "", text)
    text = {"Qwen3_32b": "Qwen3-32B", "Qwq_32b": "QwQ-32B"}.get(text, text)
    for candidate in (text, name.removesuffix(" W8A8"), name):
        try:
            return find_model(candidate)
        except InvalidRequest:
            continue
    raise Unusable("shape of the model not in the catalogue")


def _card(name: str) -> Hardware:
    wanted = CARDS.get(name, name)
    if not wanted:
        raise Unusable("two kinds of card named for one measurement")
    try:
        return find_hardware(wanted)
    except InvalidRequest as error:
        raise Unusable("card not stated exactly, or not in the catalogue") from error


def _precision(text: str) -> Precision:
    name = PRECISIONS.get(text, text.lower())
    if name == "unspecified":
        name = OWN_PRECISION
    try:
        return find_precision(name)
    except InvalidRequest as error:
        raise Unusable("precision not stated") from error


def _division(line: dict[str, str], case: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return tp, pp, ep, dp as `Deployment` takes them."""
    if "tp" in case:
        return case["tp"], 1, case.get("ep", 1), case.get("dp", 1)
    match = re.fullmatch(r"(?:TP)?(\d+)(?:\.0)?", line["tp"].strip())
    if match is None:
        raise Unusable("tensor parallelism not stated")
    tp, pp = int(match[1]), int(line["pp"] or 1)
    ep = int(line["ep"]) if line["ep"].isdigit() else 1
    dp = int(line["dp"]) if line["dp"].isdigit() else 1
    if not line["dp"]:
        dp = _unsaid_dp(line)
        tp = tp // dp
    if ep > 1 and tp == dp and ep == tp * dp:
        tp, ep = 1, dp
    elif ep > 1 and ep * ep in (tp, dp):
        tp, dp = min(tp, ep), min(dp, ep)
    if line["ep"] == "on":
        ep = tp * dp
    return tp, pp, ep, dp


def _unsaid_dp(line: dict[str, str]) -> int:
    """Attention data parallelism that only concurrency ÷ batch per replica tells.

    Where both are stated, experts are placed, and the quotient divides the cards.
    """
    noted = _noted(line, r"batch per replica (\d+)")
    if not noted or not line["concurrency"] or not line["ep"].isdigit() or int(line["ep"]) < 2:
        return 1
    replicas = round(float(line["concurrency"]) / float(noted))
    return replicas if replicas > 1 and int(float(line["tp"])) % replicas == 0 else 1


def _deployment(deployment: Deployment) -> Deployment:
    """Check that a box of this kind can hold what the row says.

    Raises:
        Unusable: it cannot: the label is wrong, whatever was measured.
    """
    d = deployment
    if d.model.heads % d.tp:
        raise Unusable("parallelism as labelled cannot be: heads are not divisible")
    if d.card.link_cards and d.tp > max(d.card.link_cards, 8):
        raise Unusable("parallelism as labelled cannot be: more cards than one link domain")
    if d.weight_bytes_per_card >= d.card.need("memory_bytes"):
        raise Unusable("weights as labelled are larger than the cards' memory")
    return d


def _check_memory(row: Row) -> None:
    """Check that the sessions which ran at once, by the row's own times, fit as labelled.

    Of its concurrency the share TPOT × output ÷ (TTFT + TPOT × output) decoded at a time.

    Raises:
        Unusable: their KV, at one byte a value and half of the output, is larger than the memory.
    """
    if not (row.concurrency and row.ttft_ms and row.tpot_ms):
        return
    decoding = row.tpot_ms * row.output_tokens
    sessions = row.concurrency * decoding / (row.ttft_ms + decoding)
    d = row.deployment
    context = row.input_tokens + row.output_tokens / 2
    kv = d.kv_bytes_per_card(context) / d.kv_bytes * sessions
    if kv + d.weight_bytes_per_card > d.card.need("memory_bytes"):
        raise Unusable("sessions that ran at once do not fit the memory as labelled")


def _load(line: dict[str, str], case: dict[str, Any], dp: int) -> tuple[float, float]:
    """Return sessions and requests a second of one replica; one of them is 0."""
    if "queries" in case:
        return case["queries"] / dp, 0.0
    if line["concurrency"]:
        noted = _noted(line, r"batch per replica (\d+)")
        if noted and dp == 1:
            return float(noted), 0.0
        return float(line["concurrency"]) / dp, 0.0
    rate = re.match(r"([\d.]+)", line["request_rate"])
    if rate is None:
        raise Unusable("neither concurrency nor request rate stated")
    replicas = re.match(r"one replica of (\d+)", line["dp"])
    return 0.0, float(rate[1]) / (int(replicas[1]) if replicas else 1)


def _engine(line: dict[str, str]) -> str:
    """Return the engine; sources that ran another build of one are engines of their own.

    APEX+ measured the vLLM of 2024. Rows of vLLM-Ascend are of runs whose files let a decode step
    run as one graph; msModeling, which does not say what its baselines ran, compiles too.
    """
    name = line["engine"].lower()
    for source, engine in BUILDS.items():
        if source in line["source"]:
            return engine
    if "vllm-ascend" in name:
        return "vllm-ascend-graph"
    for known in ("sglang", "vllm"):
        if known in name:
            return known
    if "trtllm" in name or "tensorrt" in name:
        return "trtllm"
    raise Unusable("engine not one that was measured enough")


def _noted(line: dict[str, str], pattern: str) -> str | None:
    match = re.search(pattern, line["notes"])
    return match[1] if match else None


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Unusable(f"{what} not stated") from error


def _optional(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def tally(reasons: dict[str, str]) -> list[tuple[str, int]]:
    """Return reasons with how many rows have each, most frequent first."""
    return Counter(reasons.values()).most_common()

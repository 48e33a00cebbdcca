"""Estimate how fast a model runs on cards: a step, the first token, each token after it."""

from __future__ import annotations

from typing import Annotated

import typer

from bedplate.cli.options import JsonOption
from bedplate.cli.output import counted, print_json, print_notice, print_table, print_text
from bedplate.errors import InvalidRequest
from bedplate.perf import catalog, fitted
from bedplate.perf.estimate import Estimate, Question, estimate
from bedplate.perf.load import Load
from bedplate.perf.shape import ModelShape

app = typer.Typer()

_MS = 1e6
_GB = 1e9


@app.command(name="estimate")
def estimate_command(
    *,
    model: Annotated[str, typer.Option(help="A model of the catalogue.")] = "",
    card: Annotated[str, typer.Option(help="A card of the catalogue.")] = "",
    tp: Annotated[int, typer.Option(help="Tensor parallelism.", min=1)] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline parallelism.", min=1)] = 1,
    ep: Annotated[int, typer.Option(help="Cards that whole experts are placed on.", min=1)] = 1,
    dp: Annotated[int, typer.Option(help="Replicas of attention in one engine.", min=1)] = 1,
    precision: Annotated[
        str, typer.Option(help="Format of weights: fp16, bf16, fp8, int8, fp4, int4, ...")
    ] = "fp16",
    kv: Annotated[str, typer.Option(help="Format of KV. Default: 16 bits, as in engines.")] = "",
    batch: Annotated[
        float | None, typer.Option(help="Sessions at a time, of one replica. Default: 1.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="In place of --batch: requests a second of one replica.")
    ] = None,
    context: Annotated[
        int, typer.Option(help="Tokens of a session at its end, prompt and answer.", min=0)
    ] = 0,
    prompt: Annotated[
        int, typer.Option("--input", help="Tokens of the prompt. Default: all of --context.", min=0)
    ] = 0,
    output: Annotated[
        int | None,
        typer.Option(help="Tokens of the answer. Default: --context less --input.", min=0),
    ] = None,
    cached: Annotated[
        int, typer.Option(help="Tokens of the prompt that are in KV already.", min=0)
    ] = 0,
    chunk: Annotated[int, typer.Option(help="Prompt tokens a step; 0 for all at once.", min=0)] = 0,
    engine: Annotated[
        str, typer.Option(help="vllm, sglang, trtllm, vllm-ascend, ... Default: by the card.")
    ] = "",
    plain: Annotated[
        bool, typer.Option("--plain", help="Peaks of the cards, without fitted constants.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show models and cards.")] = False,
    json: JsonOption = False,
) -> None:
    """Estimate step time, time to first token and time per token of a model on cards."""
    if listing:
        _list(as_json=json)
        return
    if not model or not card:
        raise InvalidRequest("name a --model and a --card; --list shows what there is")
    size, answer = _lengths(context, prompt, output)
    sessions = _sessions(batch, rate, answer)
    load = Load(
        input_tokens=size,
        output_tokens=answer,
        concurrency=sessions,
        rate=rate or 0,
        cached_tokens=cached,
        chunk=chunk,
    )
    question = Question(
        model, card, precision, load, tp, pp, ep, dp, kv=kv, engine=engine, plain=plain
    )
    found = estimate(question)
    if json:
        print_json(_as_json(found))
    else:
        _print(found)


def _lengths(context: int, prompt: int, output: int | None) -> tuple[int, int]:
    """Return the tokens of prompt and answer."""
    if not context and not prompt:
        raise InvalidRequest("name --context, or --input and --output, in tokens")
    if not prompt:
        prompt = context - (output or 0)
    if output is None:
        output = context - prompt if context else 0
    if prompt < 1 or output < 0 or (context and context != prompt + output):
        raise InvalidRequest(
            f"--context {context} is not --input {prompt} and --output {output}; leave one out"
        )
    return prompt, output


def _sessions(batch: float | None, rate: float | None, answer: int) -> float:
    """Return the sessions at a time, 0 where a rate drives them."""
    if rate is None:
        return 1 if batch is None else batch
    if batch is not None:
        raise InvalidRequest(
            f"--rate {rate:g} and --batch {batch:g} exclude each other; leave one out"
        )
    if not answer:
        raise InvalidRequest(f"--rate {rate:g} needs the answer's length: name --output, in tokens")
    return 0


def _as_json(found: Estimate) -> dict[str, object]:
    d, load, times = found.deployment, found.load, found.latency
    step = times.step
    return {
        "model": d.model.name,
        "card": d.card.name,
        "cards": d.cards,
        "precision": d.precision.name,
        "kv_precision": found.kv,
        "kv_bytes_per_value": d.kv_bytes,
        "tp": d.tp,
        "pp": d.pp,
        "ep": d.ep,
        "dp": d.dp,
        "engine": found.engine,
        "batch": round(times.running, 3),
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "step_ms": _ms(step.total),
        "ttft_ms": _ms(times.ttft),
        "tpot_ms": _ms(times.tpot),
        "parts": {
            "step": {name: _ms(value) for name, value in _step_parts(found).items()},
            "ttft": {"wait_ms": _ms(times.wait), "prefill_ms": _ms(times.prefill)},
            "tpot": {"step_ms": _ms(step.total), "prompts_ms": _ms(times.prompts)},
        },
        "bound_ms": _ms(found.bound),
        "requests_per_s": round(found.requests_per_s, 4),
        "output_tokens_per_s": round(found.tokens_per_s, 1),
        "memory": {
            "weights_gb_per_card": round(found.weight_bytes_per_card / _GB, 3),
            "kv_gb_per_session": round(found.kv_bytes_per_session / _GB, 4),
            "sessions_that_fit": int(times.room),
        },
        "evidence": found.evidence,
        "error": {
            name: {"rows": rows, "mean": mean, "median": median}
            for name, (rows, mean, median) in found.errors.items()
        },
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "sources": {"model": d.model.source, "card": d.card.source},
    }


def _step_parts(found: Estimate) -> dict[str, float]:
    step = found.latency.step
    return {f"{name}_ms": value for name, value in step._asdict().items()}


def _ms(value: float) -> float:
    return round(value / _MS, 4)


def _print(found: Estimate) -> None:
    d, times = found.deployment, found.latency
    degrees = [f"{name} {getattr(d, name)}" for name in ("tp", "pp", "ep", "dp")]
    told = ", ".join(text for text in degrees if not text.endswith(" 1"))
    print_text(
        f"{d.model.name} in {d.precision.name}, KV in {found.kv}, on {d.cards} {d.card.name}"
        + (f" ({told})" if told else "")
    )
    how = f"engine {found.engine}" if found.engine else "bare roofline, without an engine"
    print_text(f"{how}; {_sessions_text(times.running)} at a time on a replica")
    step, load = times.step, found.load
    rows: list[tuple[str, str, str]] = [
        ("step", _time(step.total), "one token of each session"),
        ("  launch", _time(step.launch), "starting kernels, scheduling, sampling"),
        ("  memory", _time(step.memory), "reading weights and KV, where that is the longer"),
        ("  compute", _time(step.compute), "arithmetic, where that is the longer"),
        ("  communication", _time(step.communication), "among the cards"),
        ("time per token (TPOT)", _time(times.tpot), "step, and prompts of others"),
        ("  prompts of others", _time(times.prompts), ""),
        ("first token (TTFT)", _time(times.ttft), "wait, then prefill"),
        ("  wait", _time(times.wait), _wait_text(load)),
        ("  prefill", _time(times.prefill), ""),
        ("bound of a step", _time(found.bound), "bytes and arithmetic at the cards' peaks"),
    ]
    print_table(["", "time", ""], rows)
    print_text(_rate_text(found))
    print_text(
        f"weights {found.weight_bytes_per_card / _GB:.1f} GB a card, KV"
        f" {found.kv_bytes_per_session / _GB:.2f} GB a session;"
        f" {counted(int(times.room), 'session')} {'fits' if times.room < 2 else 'fit'}"
    )
    print_text(f"evidence: {found.evidence}{_error_text(found.errors)}")
    for note in found.notes:
        print_text(f"note: {note}")
    for warning in found.warnings:
        print_notice(f"warning: {warning}")


def _time(ns: float) -> str:
    """Return a time with three digits, which is more than an estimate is good for."""
    for unit, size in (("µs", 1e3), ("ms", _MS), ("s", 1e9)):
        if ns < 999.5 * size:
            return f"{ns / size:.3g} {unit}" if ns else "0"
    hours, minutes = divmod(round(ns / 60e9), 60)
    return f"{hours:,} h {minutes} min"


def _sessions_text(running: float) -> str:
    return "1 session" if running == 1 else f"{running:.3g} sessions"


def _wait_text(load: Load) -> str:
    if not load.output_tokens:
        return "before the engine begins; no prompt of others joins"
    return "before the engine begins, and for prompts of others"


def _rate_text(found: Estimate) -> str:
    if not found.load.output_tokens:
        return f"{found.tokens_per_s:,.0f} tokens/s while decoding"
    return (
        f"{found.requests_per_s:.3g} requests/s of {found.load.output_tokens:,} tokens each:"
        f" {found.tokens_per_s:,.0f} tokens/s, the first token's wait included"
    )


def _error_text(errors: dict[str, fitted.Error]) -> str:
    if not errors:
        return ""
    told = ", ".join(f"{name.upper()} {error.mean:.0%}" for name, error in errors.items())
    return f" (mean error on models that the fit had not seen: {told})"


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "models": [_model_row(model) for model in catalog.models()],
                "cards": [_card_row(card) for card in catalog.hardware()],
            }
        )
        return
    models = [list(_model_row(model).values())[:-1] for model in catalog.models()]
    print_table(["model", "parameters (B)", "context", "KV bytes/token (16 bits)"], models)
    print_text("KV of one more token of a long context: layers that see a window are left out.\n")
    cards = [list(_card_row(card).values())[:-1] for card in catalog.hardware()]
    print_table(["card", "memory (GB)", "GB/s", "fp16 TFLOPS", "link"], cards)


def _model_row(model: ModelShape) -> dict[str, object]:
    return {
        "name": model.name,
        "parameters_b": round(model.parameters / 1e9, 2),
        "context_tokens": model.context_tokens_max,
        "kv_bytes_per_token_fp16": int(model.kv_bytes_per_token(2)),
        "source": model.source,
    }


def _card_row(card: catalog.Hardware) -> dict[str, object]:
    def known(value: float | None, unit: float) -> object:
        return catalog.UNKNOWN if value is None else value / unit

    return {
        "name": card.name,
        "memory_gb": known(card.memory_bytes, _GB),
        "memory_gb_per_s": known(card.memory_bytes_per_s, _GB),
        "fp16_tflops": known(card.tflops["fp16"], 1),
        "link": card.link,
        "source": card.source,
    }

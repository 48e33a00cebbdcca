"""The parts of the bench: errors with each model left out, others beside it, estimates a second."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from bedplate.perf.estimate import Question, estimate
from bedplate.perf.load import Load
from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Part, Run
from bench.validation.perf_model.aiconfigurator import VERSION, ask
from bench.validation.perf_model.predict import Said
from bench.validation.perf_model.result import (
    ALL_MODELS,
    Outcome,
    answered,
    chosen,
    error,
    validate,
)
from bench.validation.perf_model.rows import tally
from bench.validation.perf_model.table import KINDS

QUICK_MODELS = 7
"""Models left out with `--quick`: those with the most rows, Ascend among them."""
PEER_ROWS, PEER_ROWS_QUICK = 24, 3
CLAIMED = {
    "perf_tpot_mean": ("TPOT", "mean"),
    "perf_tpot_median": ("TPOT", "median"),
    "perf_ttft_mean": ("TTFT", "mean"),
    "perf_ascend_decode": ("Ascend decode", "mean"),
    "perf_ascend_prefill": ("Ascend prefill", "mean"),
}


def measure_errors(run: Run) -> Mapping[str, Measured]:
    """Fit without each model in turn and hold what is said against what was measured."""
    run.say("perf-model: fitting without each model in turn, minutes")
    outcome = validate(models=QUICK_MODELS if run.quick else ALL_MODELS)
    held_ids = {one.row.id for one in outcome.held}
    rows = [row for row in outcome.rows if row.id in held_ids]
    _tell(run, outcome)
    peer = _peer(run, outcome) if run.peers else []
    found: dict[str, Measured] = {}
    for claim, (kind, measure) in CLAIMED.items():
        _, quantities, ascend = next(entry for entry in KINDS if entry[0] == kind)
        held = error(chosen(outcome.held, quantities, ascend=ascend))
        plain = error(chosen(outcome.plain, quantities, ascend=ascend))
        against = [f"bare roofline {getattr(plain, measure):.1%}"]
        against += _beside(outcome.held, peer, quantities, ascend=ascend, measure=measure)
        value = getattr(held, measure) * 100
        found[claim] = Measured(value, held.rows, ", ".join(against))
    share = answered(rows, outcome.held) * 100
    usable = f"{len(outcome.rows)} usable of {len(outcome.rows) + len(outcome.reasons)} rows"
    found["perf_answered"] = Measured(share, len(rows), usable)
    return found


def _tell(run: Run, outcome: Outcome) -> None:
    """Report every error, and why rows are not usable."""
    for name, quantities, ascend in KINDS:
        texts = []
        for title, said in (
            ("left out", outcome.held),
            ("in sample", outcome.seen),
            ("bare roofline", outcome.plain),
        ):
            found = error(chosen(said, quantities, ascend=ascend))
            texts.append(f"{title} {found.mean:.1%} / {found.median:.1%}")
        run.figure(f"{name}, mean / median", ", ".join(texts))
    for reason, count in tally(outcome.reasons):
        run.figure(f"{count} rows not usable", reason)
    run.rounds["held"] = [
        {
            "row": one.row.id,
            "quantity": one.quantity,
            "measured": one.measured,
            "predicted": one.predicted,
        }
        for one in outcome.held
    ]


def _peer(run: Run, outcome: Outcome) -> list[Said]:
    """Ask aiconfigurator for some rows; it is left out, named, where it cannot be installed."""
    most = PEER_ROWS_QUICK if run.quick else PEER_ROWS
    run.say(f"perf-model: aiconfigurator {VERSION} on {most} rows, minutes")
    try:
        said, seconds = ask(run.cache, outcome.rows, most)
    except BenchError as reason:
        run.figure("aiconfigurator", f"left out: {reason}")
        return []
    silent = sum(one.predicted is None for one in said)
    run.figure(
        f"aiconfigurator {VERSION}",
        f"answers {len(said) - silent} of {len(said)} quantities, {seconds:.1f} s a row",
    )
    run.versions["aiconfigurator"] = VERSION
    return [one for one in said if one.predicted is not None]


def _beside(
    held: Sequence[Said],
    peer: Sequence[Said],
    quantities: Sequence[str],
    *,
    ascend: bool,
    measure: str,
) -> list[str]:
    """Return the peer's error and ours on the rows that it answered."""
    theirs = chosen(peer, quantities, ascend=ascend)
    if not theirs:
        return []
    rows = {(one.row.id, one.quantity) for one in theirs}
    ours = [one for one in held if (one.row.id, one.quantity) in rows]
    if not ours:
        return []
    told, own = getattr(error(theirs), measure), getattr(error(ours), measure)
    return [f"on {len(theirs)} rows aiconfigurator {told:.1%}, this {own:.1%}"]


QUESTIONS = (
    ("Llama-3.1-70B", "H100 SXM", "fp8", 4, 16, 1024, 1024),
    ("DeepSeek-V3", "B200 SXM", "fp8", 8, 64, 8192, 1024),
    ("Qwen3-32B", "Ascend 910B3", "bf16", 4, 1, 3500, 1500),
    ("gpt-oss-120b", "H200 SXM", "fp4", 2, 256, 1024, 1024),
)
"""Model, card, precision, tp, batch, input, output."""


def measure_speed(run: Run) -> Mapping[str, Measured]:
    """Count estimates a second of processor time, names looked up each time."""
    rounds = 20 if run.quick else 500
    questions = [
        Question(model, card, precision, Load(size, answer, batch), tp=tp)
        for model, card, precision, tp, batch, size, answer in QUESTIONS
    ]
    for question in questions:
        estimate(question)
    began = time.process_time()
    for _ in range(rounds):
        for question in questions:
            estimate(question)
    seconds = time.process_time() - began
    count = rounds * len(questions)
    return {"perf_estimates_per_s": Measured(count / seconds, count, "CPU time of one core")}


ERRORS = Part(
    "errors",
    (
        Spec("perf_tpot_mean", "%", "<= 20", "mean error of TPOT on models left out of the fit"),
        Spec("perf_tpot_median", "%", "<= 13", "median error of TPOT on models left out"),
        Spec("perf_ttft_mean", "%", "<= 40", "mean error of TTFT on models left out"),
        Spec(
            "perf_ascend_decode",
            "%",
            "<= 20",
            "mean error of a decode step, TPOT or token rate on Ascend, models left out",
        ),
        Spec("perf_ascend_prefill", "%", "<= 30", "mean error of a prefill on Ascend"),
        Spec("perf_answered", "%", ">= 99", "usable rows that the model answers"),
    ),
    measure_errors,
)
SPEED = Part(
    "speed",
    (Spec("perf_estimates_per_s", "estimates/s", ">= 1000", "full estimates on one core"),),
    measure_speed,
)

"""What the model says of a row, and the quantities that a row measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bedplate.errors import InvalidRequest
from bedplate.perf.constants import PLAIN, Constants
from bedplate.perf.load import Load, latency
from bedplate.perf.step import Batch, StepTime, causal_pairs
from bench.validation.perf_model.rows import Row

MS = 1e6


class Said(NamedTuple):
    """One quantity of one row: what was measured and what was said, in ms; None is no answer.

    `rate` is the time of a token with its part of the first one: sessions ÷ output tokens a second.
    """

    row: Row
    quantity: str
    measured: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        """|predicted ÷ measured − 1|."""
        return None if self.predicted is None else abs(self.predicted / self.measured - 1)


def quantities(row: Row) -> list[tuple[str, float]]:
    """Return what a row measured, by name, in ms."""
    if row.kind == "rate":
        sessions = row.concurrency * row.deployment.dp
        return [("rate", sessions * 1000 / row.tokens_per_s)]
    pairs = [("tpot", row.tpot_ms), ("ttft", row.ttft_ms)]
    return [(name, value) for name, value in pairs if value]


def times(row: Row, constants: Constants) -> tuple[float, float]:
    """Return TTFT and TPOT of a row in ms.

    Raises:
        InvalidRequest: a value of the card that is needed is unknown.
    """
    time = StepTime(row.deployment, constants)
    if row.kind == "decode":
        batch = Batch(row.concurrency, row.input_tokens, query=row.query)
        return 0.0, time.step(batch).total / MS
    if row.kind == "prefill":
        tokens = row.input_tokens * row.concurrency
        pairs = causal_pairs(row.input_tokens) * row.concurrency
        return time.step(Batch(0, 0, tokens, pairs, row.concurrency)).total / MS, 0.0
    load = Load(row.input_tokens, row.output_tokens, row.concurrency, row.rate)
    found = latency(time, load)
    begin = constants.begin if row.inside else 0.0
    return (found.ttft - begin) / MS, found.tpot / MS


def plain_times(row: Row) -> tuple[float, float]:
    """Return TTFT and TPOT of a bare roofline: the prompt alone, a decode step alone, at peaks.

    Raises:
        InvalidRequest: a value of the card that is needed is unknown.
    """
    time = StepTime(row.deployment, PLAIN)
    running = row.concurrency or 1.0
    context = row.input_tokens + (row.output_tokens / 2 if row.kind in ("serving", "rate") else 0)
    prompts = running if row.kind == "prefill" else 1.0
    prompt = Batch(
        0, 0, row.input_tokens * prompts, causal_pairs(row.input_tokens) * prompts, prompts
    )
    step = time.step(Batch(running, context, query=row.query))
    first = time.step(prompt)
    return (first.memory + first.compute) / MS, (step.memory + step.compute) / MS


def pick(row: Row, quantity: str, found: tuple[float, float]) -> float:
    """Return one quantity of TTFT and TPOT."""
    ttft, tpot = found
    if quantity == "rate":
        return tpot + ttft / row.output_tokens
    return ttft if quantity == "ttft" else tpot


def say(rows: Iterable[Row], constants: dict[tuple[str, str], Constants]) -> list[Said]:
    """Return every quantity of rows with what constants by (engine, family) say of it."""
    said = []
    for row in rows:
        found: tuple[float, float] | None
        try:
            found = times(row, constants[row.engine, row.family])
        except InvalidRequest:
            found = None
        said += [
            Said(row, name, value, None if found is None else pick(row, name, found))
            for name, value in quantities(row)
        ]
    return said


def say_plain(rows: Iterable[Row]) -> list[Said]:
    """Return every quantity of rows with what a bare roofline says of it."""
    said = []
    for row in rows:
        found: tuple[float, float] | None
        try:
            found = plain_times(row)
        except InvalidRequest:
            found = None
        said += [
            Said(row, name, value, None if found is None else pick(row, name, found))
            for name, value in quantities(row)
        ]
    return said

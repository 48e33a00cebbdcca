"""What was seen on cards, and the points that the fit is made of."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from bedplate.perf.fit import MovePoint, Prefill, StepPoint, Steps, prefill_steps
from bedplate.runtime.calibration.probe import Times
from bedplate.runtime.calibration.rules import Rules

LATE_SHARE = 0.3
"""Most tokens of a window that may come at once. Where more do, this process was late to read them,
and their times say nothing."""
LAST_STEP = 0.5
"""Of a step that runs when a prompt comes, half is waited for on average."""

Shape = Hashable
"""What is measured again in each round; samples of one shape differ by chance only."""


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """A prompt from its dispatch to its first token; `idle_tokens` is what other slots hold."""

    time_ns: int
    new_tokens: int
    cached_tokens: int
    idle_tokens: int


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """Steps in which nothing but `sequences` decoded.

    `context_tokens` are those of all that decode, in the middle; `idle_tokens` is what slots hold
    that do not.
    """

    time_ns: int
    steps: int
    sequences: int
    context_tokens: float
    idle_tokens: int


@dataclass(frozen=True, slots=True)
class MixedSample:
    """A prompt from its dispatch to its first token while others decoded.

    `context_tokens` and `idle_tokens` as in `DecodeSample`; `emitted` is what one of those that
    decode emitted meanwhile.
    """

    time_ns: int
    new_tokens: int
    cached_tokens: int
    sequences: int
    context_tokens: float
    idle_tokens: int
    emitted: float


@dataclass(frozen=True, slots=True)
class MoveSample:
    """A store or a load; `kind` says which. `size_bytes` is what it really was."""

    kind: str
    time_ns: int
    tokens: int
    size_bytes: int


Sample = PrefillSample | DecodeSample | MixedSample | MoveSample
SampleT = TypeVar("SampleT", PrefillSample, DecodeSample, MixedSample, MoveSample)


@dataclass(slots=True)
class Samples:
    """All samples by shape; `ends_ns` is how long after its last token each turn ended."""

    by_shape: dict[Shape, list[Sample]] = field(default_factory=dict)
    ends_ns: list[int] = field(default_factory=list)

    def add(self, shape: Shape, sample: Sample | None) -> None:
        """Note a sample, where there is one."""
        if sample is not None and sample.time_ns > 0:
            self.by_shape.setdefault((type(sample).__name__, shape), []).append(sample)

    def of(self, kind: type[SampleT]) -> list[SampleT]:
        """Return the middle sample of each shape of one kind, in the order of first measuring."""
        found = []
        for samples in self.by_shape.values():
            ours = [sample for sample in samples if isinstance(sample, kind)]
            if ours:
                found.append(sorted(ours, key=lambda sample: sample.time_ns)[(len(ours) - 1) // 2])
        return found

    def end_ns(self) -> float:
        """Return the median time between a turn's last token and its end; 0 without any."""
        return float(statistics.median(self.ends_ns)) if self.ends_ns else 0.0


def prefill_sample(times: Times, idle_tokens: int) -> PrefillSample:
    """Return what the beginning of a turn says."""
    return PrefillSample(
        times.started_ns - times.sent_ns, times.new_tokens, times.cached_tokens, idle_tokens
    )


def decode_sample(turns: Sequence[Times], idle_tokens: int) -> DecodeSample | None:
    """Return what turns that ran at the same time say of decoding together.

    The window begins when the last of them has its first token and ends when the first of them has
    its last. The turn whose marks cover most of it gives time and steps. None where there is no
    such window, or too many of its tokens came at once.
    """
    if not all(times.marks for times in turns):
        return None
    since = max(times.marks[0].time_ns for times in turns)
    until = min(times.marks[-1].time_ns for times in turns)
    widest, steps, at_once = 0, 0, 0
    for times in turns:
        inside = [at for at, mark in enumerate(times.marks) if since <= mark.time_ns <= until]
        if len(inside) < 2:
            continue
        first, last = times.marks[inside[0]], times.marks[inside[-1]]
        if last.time_ns - first.time_ns > widest:
            widest, steps = last.time_ns - first.time_ns, last.tokens - first.tokens
            counts = [0, *(mark.tokens for mark in times.marks)]
            at_once = max(counts[at + 1] - counts[at] for at in inside)
    if steps == 0 or at_once > max(1, LATE_SHARE * steps):
        return None
    context = 0.0
    for times in turns:
        before = max((m.tokens for m in times.marks if m.time_ns <= since), default=0)
        context += times.prompt_tokens + before + (steps - 1) / 2
    return DecodeSample(widest, steps, len(turns), context, idle_tokens)


def mixed_sample(prompt: Times, decoding: Sequence[Times], idle_tokens: int) -> MixedSample | None:
    """Return what a prompt beside decoding turns says; None if one of them ended before it."""
    if any(not times.marks or times.end_ns for times in decoding):
        return None
    emitted, context = [], 0.0
    for times in decoding:
        before = max((m.tokens for m in times.marks if m.time_ns <= prompt.sent_ns), default=0)
        after = max((m.tokens for m in times.marks if m.time_ns <= prompt.started_ns), default=0)
        emitted.append(after - before)
        context += times.prompt_tokens + (before + after) / 2
    return MixedSample(
        prompt.started_ns - prompt.sent_ns,
        prompt.new_tokens,
        prompt.cached_tokens,
        len(decoding),
        context,
        idle_tokens,
        statistics.mean(emitted),
    )


def step_points(samples: Samples, rules: Rules) -> list[StepPoint]:
    """Return the points of a step's fit, under an engine's rules; its budget must be known."""
    assert rules.batching is not None
    points = []
    for p in samples.of(PrefillSample):
        work = prefill_steps(rules.batching, p.new_tokens, p.cached_tokens, 0)
        cells = work.cells + p.new_tokens * p.idle_tokens
        points.append(_point("prefill", p, work, context_tokens=0.0, cells=cells))
    for d in samples.of(DecodeSample):
        steps = Steps(d.steps, 0, d.sequences)
        work = Prefill((steps,), 0.0, 0.0)
        cells = d.steps * d.sequences * (d.context_tokens + d.idle_tokens)
        points.append(
            _point("decode", d, work, context_tokens=d.steps * d.context_tokens, cells=cells)
        )
    for m in samples.of(MixedSample):
        work = prefill_steps(rules.batching, m.new_tokens, m.cached_tokens, m.sequences)
        waited = Steps(LAST_STEP, 0, m.sequences)
        count = LAST_STEP + sum(steps.count for steps in work.steps if steps.sequences)
        held = m.context_tokens + m.idle_tokens
        decoded = count * m.sequences * (held + m.new_tokens / 2)
        cells = work.cells + m.new_tokens * held + decoded
        work = work._replace(steps=(*work.steps, waited))
        points.append(
            _point("mixed", m, work, context_tokens=count * m.context_tokens, cells=cells)
        )
    if not rules.shared_cache:
        return [replace(point, cells=0.0) for point in points]
    return points


def _point(
    kind: str,
    sample: PrefillSample | DecodeSample | MixedSample,
    work: Prefill,
    *,
    context_tokens: float,
    cells: float,
) -> StepPoint:
    return StepPoint(
        kind,
        sample.time_ns,
        work.steps,
        work.pairs,
        context_tokens,
        cells=cells,
        begins=0 if kind == "decode" else 1,
    )


def move_points(samples: Samples, kind: str, token_bytes: int) -> list[MovePoint]:
    """Return the points of a move's fit, with sizes as the core and the twin count them."""
    return [
        MovePoint(move.kind, move.time_ns, move.tokens * token_bytes)
        for move in samples.of(MoveSample)
        if move.kind == kind
    ]


class Budget(NamedTuple):
    """Tokens of one step. Not `exact`: no prompt was seen to take several, so it may be more."""

    tokens: int
    exact: bool


def measured_budget(samples: Samples) -> Budget:
    """Return the tokens of one step, by what others emitted while a prompt was computed.

    Engines' budgets are powers of two, so the nearest one is taken. A prompt that was computed in
    one step, or beside nobody, says only that the budget may be no less.
    """
    chunks: list[float] = []
    whole = [float(sample.new_tokens) for sample in samples.of(PrefillSample)]
    for sample in samples.of(MixedSample):
        steps = max(1.0, sample.emitted)
        size = sample.new_tokens / steps + sample.sequences
        (chunks if steps > 1.5 else whole).append(size)
    if chunks:
        return Budget(_nearest_power(statistics.median(chunks)), exact=True)
    return Budget(_nearest_power(max(whole), up=True), exact=False)


def _nearest_power(value: float, *, up: bool = False) -> int:
    above = 1 << max(0, int(value) - 1).bit_length()
    if up or value - above // 2 > above - value:
        return above
    return above // 2

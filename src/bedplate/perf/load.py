"""Latency under load: from the time of steps to TTFT and TPOT at a concurrency or a request rate.

An engine batches continuously and mixes prompts into decoding steps. With B sessions that each get
O tokens for a prompt of I, a prompt is computed every O ÷ B steps, so that a token waits for its
own step and, on average, for B ÷ O prompts of others:

    TPOT = step(B, I + O/2) + interference × (B − 1) ÷ O × prompt(I)

where prompt(I) is what computing a prompt adds to the steps it takes part in. TTFT is the time of
those steps plus waiting for other prompts: in a closed loop some of the B − 1 other sessions' (they
begin together and stay partly in step), at a rate those that an M/D/1 queue holds.

When KV of all sessions does not fit, as many run as fit, and the others wait for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bedplate.perf.step import Batch, Parts, StepTime, causal_pairs

MEMORY_SHARE = 0.95
"""Of a card's memory, what engines use for weights and KV."""
BUSY_MAX = 0.95
"""Most of its time that the model lets an engine spend on prompts before it queues without end."""
ROUNDS = 60
"""Most rounds that the search for a steady state takes."""
TOLERANCE = 1e-9


class Load(NamedTuple):
    """Sessions of one replica: lengths in tokens, and a concurrency or a rate (requests/s).

    `cached` tokens of the prompt are already in KV; `chunk` is how many tokens a step takes of a
    prompt, 0 for all at once. With 0 output tokens at a concurrency, sessions of this context only
    decode: no prompt joins them.
    """

    input_tokens: float
    output_tokens: float
    concurrency: float = 0
    rate: float = 0
    cached_tokens: float = 0
    chunk: int = 0


class Latency(NamedTuple):
    """Times in ns, and the state they hold in.

    `step` are the parts of a decoding step of `running` sessions; `prompts` is what others'
    prompts add to a token; `wait` is TTFT before the prompt's own steps, `prefill` those.
    """

    ttft: float
    tpot: float
    step: Parts
    prompts: float
    wait: float
    prefill: float
    running: float
    room: float


def room(time: StepTime, load: Load) -> float:
    """Return how many sessions' KV fits beside the weights; 0 when those alone do not.

    Raises:
        InvalidRequest: the card's memory is unknown.
    """
    d = time.deployment
    free = d.card.need("memory_bytes") * MEMORY_SHARE - d.weight_bytes_per_card
    each = d.kv_bytes_per_card(load.input_tokens + load.output_tokens)
    return max(0.0, free / each) if each else float("inf")


def latency(time: StepTime, load: Load) -> Latency:
    """Return TTFT and TPOT of a load.

    Raises:
        InvalidRequest: a value of the card that is needed is unknown.
    """
    most = max(1.0, room(time, load))
    if load.concurrency:
        return _closed(time, load, load.concurrency, most)
    return _open(time, load, most)


def _closed(time: StepTime, load: Load, sessions: float, most: float) -> Latency:
    c = time.constants
    running = min(sessions, most)
    step, added, prefill = _at(time, load, running)
    others = max(0.0, running - 1)
    prompts = 0.0
    if load.output_tokens:
        prompts = c.interference * others / load.output_tokens * added
    tpot = step.total + prompts
    wait = c.begin + c.queue * others * added
    if sessions > running:
        whole = wait + prefill + load.output_tokens * tpot
        wait += whole * (sessions - running) / running
    return Latency(wait + prefill, tpot, step, prompts, wait, prefill, running, most)


def _open(time: StepTime, load: Load, most: float) -> Latency:
    """Find how many sessions run: as many as arrive while one does (Little)."""
    c = time.constants
    per_ns = load.rate / 1e9

    def at(running: float) -> tuple[Parts, float, float, float]:
        step, added, prefill = _at(time, load, running)
        prompts = c.interference * per_ns * added * step.total
        return step, added, prefill, prompts

    def wanted(running: float) -> float:
        step, _, _, prompts = at(running)
        return min(most, max(1.0, per_ns * load.output_tokens * (step.total + prompts)))

    running = _meeting(wanted, most)
    step, added, prefill, prompts = at(running)
    busy = min(BUSY_MAX, per_ns * added)
    wait = c.begin + step.total / 2 + busy / (2 * (1 - busy)) * added
    return Latency(
        wait + prefill, step.total + prompts, step, prompts, wait, prefill, running, most
    )


def _meeting(wanted: Callable[[float], float], most: float) -> float:
    """Return where a growing function of 1 to most, with values there, meets its argument.

    False position, with the weight of an end halved that stays (Illinois).
    """
    low, high = 1.0, most
    above, below = wanted(low) - low, wanted(high) - high
    if above <= 0:
        return low
    if below >= 0:
        return high
    for _ in range(ROUNDS):
        value = high - below * (high - low) / (below - above)
        gap = wanted(value) - value
        if abs(gap) <= TOLERANCE * value:
            return value
        if gap > 0:
            low, above, below = value, gap, below / 2
        else:
            high, below, above = value, gap, above / 2
    return (low + high) / 2


def _at(time: StepTime, load: Load, running: float) -> tuple[Parts, float, float]:
    """Return a decoding step, what one prompt adds to the steps it is in, and those steps."""
    context = load.input_tokens + load.output_tokens / 2
    step = time.step(Batch(running, context))
    todo = max(1.0, load.input_tokens - load.cached_tokens)
    steps = max(1.0, -(-todo // load.chunk)) if load.chunk else 1.0
    part = todo / steps
    pairs = causal_pairs(todo, load.cached_tokens) / steps
    beside = max(0.0, running - 1)
    mixed = time.step(Batch(beside, context, part, pairs, 1 / steps)).total * steps
    added = max(0.0, mixed - (time.step(Batch(beside, context)).total * steps if beside else 0.0))
    return step, added, mixed

"""Latency under load: from the time of steps to TTFT and TPOT at a concurrency or a request rate.

An engine batches continuously and mixes prompts into decoding steps. With B sessions that each get
O tokens for a prompt of I, a prompt is computed every O ÷ B steps, so that a token waits for its
own step and, on average, for B ÷ O prompts of others:

    TPOT = step(B, I + O/2) + interference × (B − 1) ÷ O × prompt(I)

where prompt(I) is what computing a prompt adds to the steps it takes part in. TTFT is the time of
those steps plus waiting for other prompts: in a closed loop some of the B − 1 other sessions' (they
begin together and stay partly in step), at a rate those that an M/D/1 queue holds.

No work is skipped: in the time from a session's begin to its last token the engine computes B
prompts and O − 1 steps, so that

    TTFT + (O − 1) × TPOT >= B × prompt(I) + (O − 1) × step(B)

and what the fitted shares leave out is added to TPOT. A step takes only so many prompts
(`STEP_TOKENS`, or a chunk), each of which decodes for O steps: no more sessions run than that
makes, the others wait. So B sessions are answered at B ÷ (TTFT + (O − 1) × TPOT) requests a second
(Little), which grows with B. A rate runs the B that answers it; a rate above that of the most
sessions that run queues without end.

When KV of all sessions does not fit, as many run as fit, and the others wait for a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from bedplate.perf.step import Batch, Parts, StepTime, causal_pairs

MEMORY_SHARE = 0.95
"""Of a card's memory, what engines use for weights and KV."""
BUSY_MAX = 0.95
"""Largest share of time on prompts for which the wait of a queue at a rate is computed."""
STEP_TOKENS = 8192
"""Prompt tokens that engines put into one step where nothing else is said (`data/engines.toml`)."""
SESSIONS_MAX = 1e9
"""Most sessions that run, where KV has room for any number."""
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
    prompts add to a token; `wait` is TTFT before the prompt's own steps, `prefill` those. `room`:
    how many sessions fit, a whole number, at least 1. `carries`: requests a second that so many are
    answered at, 0 where no rate is asked; a rate above it queues without end, and no time holds.
    """

    ttft: float
    tpot: float
    step: Parts
    prompts: float
    wait: float
    prefill: float
    running: float
    room: float
    carries: float


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
    fit = max(1.0, float(math.floor(min(room(time, load), SESSIONS_MAX))))
    most = fit
    if load.output_tokens:
        most = max(1.0, min(fit, math.floor(_prompts_of_step(load) * load.output_tokens)))
    if load.concurrency:
        return _closed(time, load, load.concurrency, most)._replace(room=fit)
    return _open(time, load, most)._replace(room=fit)


def cycle_ns(load: Load, ttft: float, tpot: float) -> float:
    """Return the time from a session's request to its last token."""
    return ttft + max(0.0, load.output_tokens - 1) * tpot


class _Steady(NamedTuple):
    """Sessions that run all the time: as `Latency`, and what one prompt adds to its steps."""

    step: Parts
    added: float
    prompts: float
    wait: float
    prefill: float

    def cycle(self, load: Load) -> float:
        return cycle_ns(load, self.wait + self.prefill, self.step.total + self.prompts)


def _steady(time: StepTime, load: Load, running: float) -> _Steady:
    """Return what sessions see that all run, each beginning anew when it has ended."""
    c = time.constants
    step, added, prefill = _at(time, load, running)
    if not load.output_tokens:
        return _Steady(step, added, 0.0, c.begin, prefill)
    others = max(0.0, running - 1)
    prompts = c.interference * others / load.output_tokens * added
    wait = c.begin + c.queue * others * added
    tokens = load.output_tokens - 1
    skipped = max(0.0, running * added - wait - prefill - tokens * prompts)
    if tokens >= 1:
        prompts += skipped / tokens
    else:
        wait += skipped
    return _Steady(step, added, prompts, wait, prefill)


def _prompts_of_step(load: Load) -> float:
    """Return how many prompts one step takes at most; a part of one where it comes in chunks."""
    todo = max(1.0, load.input_tokens - load.cached_tokens)
    if load.chunk:
        return 1.0 / max(1.0, -(-todo // load.chunk))
    return max(1.0, STEP_TOKENS / todo)


def _closed(time: StepTime, load: Load, sessions: float, most: float) -> Latency:
    running = min(sessions, most)
    found = _steady(time, load, running)
    wait = found.wait
    if sessions > running:
        wait += found.cycle(load) * (sessions - running) / running
    return _latency(found, wait, running, most, 0.0)


def _open(time: StepTime, load: Load, most: float) -> Latency:
    """Find how many sessions run: as many as arrive while one does (Little)."""
    per_ns = load.rate / 1e9

    def wanted(running: float) -> float:
        return min(most, max(1.0, per_ns * _steady(time, load, running).cycle(load)))

    running = _meeting(wanted, most)
    found = _steady(time, load, running)
    busy = min(BUSY_MAX, per_ns * found.added)
    queue = busy / (2 * (1 - busy)) * found.added
    wait = time.constants.begin + found.step.total / 2 + queue
    carries = most / _steady(time, load, most).cycle(load) * 1e9
    return _latency(found, wait, running, most, carries)


def _latency(found: _Steady, wait: float, running: float, most: float, carries: float) -> Latency:
    return Latency(
        ttft=wait + found.prefill,
        tpot=found.step.total + found.prompts,
        step=found.step,
        prompts=found.prompts,
        wait=wait,
        prefill=found.prefill,
        running=running,
        room=most,
        carries=carries,
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

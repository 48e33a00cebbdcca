"""What a workload costs at least, turn by turn, with every token of context found in KV."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bedplate.perf.profile import CardProfile
from bedplate.twin.workload.form import Workload, prompt_tokens
from bench.bounds.steps import Engine, Prices, packings, prices

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """One entry a turn, sessions in order, turns in order; times in nanoseconds.

    `work_ns` is card time by any batching, `alone_ns` what the turn takes on an empty card,
    `first_ns` of it to its first token. `area` is KV token × nanoseconds that it holds at least.
    `session` is the index of its session.
    """

    work_ns: Floats
    alone_ns: Floats
    first_ns: Floats
    area: Floats
    session: NDArray[np.int64]
    prices: Prices


def costs(workload: Workload, profile: CardProfile) -> Costs:
    """Return lower bounds of what every turn costs.

    A prompt that no card holds costs as the longest that one does.
    """
    prompt, kept, out, owner = _sizes(workload, profile.context_tokens)
    new = prompt - kept
    step = profile.step
    decoded = np.maximum(out - 1, 0)  # the step that ends the prompt gives the first token
    contexts = decoded * prompt + decoded * (decoded + 1) / 2
    pairs = new * kept + new * (new + 1) / 2
    attention = step.pair_ns * pairs + step.context_ns * contexts
    fixed, found = _dearest(profile, new, decoded, contexts, prompt)
    work = fixed + attention
    first = _prefill_ns(profile, new) + step.pair_ns * pairs + profile.begin_ns
    pace = step.fixed_ns(0, 1)
    decode = decoded * pace + step.context_ns * contexts
    area = prompt * (first - profile.begin_ns) + contexts * pace
    return Costs(work, first + decode + profile.end_ns, first, area, owner, found)


def _dearest(
    profile: CardProfile, new: Floats, decoded: Floats, contexts: Floats, prompt: Floats
) -> tuple[Floats, Prices]:
    """Return card time without attention, under the prices and the packing that bound it best."""
    kv_tokens = float(profile.kv_tokens)
    budget, running = profile.batching.token_budget, profile.running_max
    longest = min(1.0, profile.context_tokens / kv_tokens)
    best, prices_of_best = np.zeros(len(new)), Prices(0.0, 0.0, 0.0)
    for number, packing in enumerate(packings()):
        # The first is the share itself, which grows with every token; the others are of the prompt.
        full = packing(prompt / kv_tokens) * decoded if number else contexts / kv_tokens
        engine = Engine(profile.step.fixed_ns, budget, running, 1.0 if number else longest)
        found = prices(
            engine, prompt=float(new.sum()), tokens=float(decoded.sum()), full=float(full.sum())
        )
        work = found.prompt_ns * new + found.token_ns * decoded + found.full_ns * full
        if work.sum() > best.sum():
            best, prices_of_best = work, found
    return best, prices_of_best


def _prefill_ns(profile: CardProfile, new: Floats) -> Floats:
    """Return the time of a prompt's steps on an empty card, attention aside."""
    budget = profile.batching.token_budget
    memo: dict[int, float] = {}
    full = profile.step.fixed_ns(budget, 0)
    found = np.empty(len(new))
    for index, tokens in enumerate(new):
        steps, rest = divmod(int(tokens), budget)
        if rest and rest not in memo:
            memo[rest] = profile.step.fixed_ns(rest, 0)
        found[index] = steps * full + (memo[rest] if rest else 0.0)
    return found


def _sizes(
    workload: Workload, context_tokens: int
) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    """Return prompt tokens, those of them that were computed before, answers, and sessions."""
    rows: list[tuple[int, int, int, int]] = []
    for index, session in enumerate(workload.sessions):
        context = 0
        for number, turn in enumerate(session.turns):
            prompt, keep = prompt_tokens(turn, context)
            prompt = max(1, prompt)
            kept = min(keep, prompt - 1) if number else 0
            out = max(1, turn.out_tokens)
            context = prompt + out
            over = max(0, prompt + out - context_tokens)
            prompt = max(1, prompt - over)
            rows.append((prompt, min(kept, prompt - 1), out, index))
    table = np.array(rows, dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int64)

"""What the cards can do: a short measurement of both at once, and the bounds that follow from it.

The time of a prompt of `new` tokens behind `cached` ones is a0 + a1·new + a2·new·(new + 2·cached):
each token costs something, and something for each token that it attends to. A token of the answer
costs t0 + t1·context. Both are fitted to turns that run alone on their card, while the other card
runs the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import numpy as np

from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Session, Turn, Workload, prompt_tokens
from bench.bounds.sessions import makespan_bound, mean_bound, quantile_bound
from bench.harness.run import BenchError, Run
from bench.schedule.model import text
from bench.schedule.play import SYSTEM_TOKENS, Ask, chat, client
from bench.schedule.subjects import Room, plain_cards

FIRST_TOKENS = (200, 600, 1_200, 2_000)
MORE_TOKENS = 100
ANSWER_TOKENS = 24
ROUNDS = 2
TEMPLATE_TOKENS = 16
"""What the chat template adds to a turn: about as much as its first prompt shows."""


class Speed(NamedTuple):
    """One card, alone in its work: seconds, by tokens."""

    a0: float
    a1: float
    a2: float
    t0: float
    t1: float

    def prefill_s(self, new: int, cached: int) -> float:
        """Return the least time of a prompt."""
        return self.a0 + self.a1 * new + self.a2 * new * (new + 2 * cached)

    def decode_s(self, out: int, context: int) -> float:
        """Return the least time of an answer's tokens after the first."""
        return max(0, out - 1) * (self.t0 + self.t1 * context)


def turn_work_s(speed: Speed, turn: Turn, context: int) -> tuple[float, int]:
    """Return the card time of a turn with its whole history cached, and the context after it.

    Of a session's first prompt the system prompt counts as cached: others had it before.
    """
    prompt, cached = prompt_tokens(turn, context)
    if not context:
        cached = min(SYSTEM_TOKENS, prompt - 1)
    new = prompt - cached + TEMPLATE_TOKENS
    work = speed.prefill_s(new, cached) + speed.decode_s(turn.out_tokens, prompt)
    return work, prompt + TEMPLATE_TOKENS + turn.out_tokens


def session_work_s(speed: Speed, session: Session) -> float:
    """Return the card time of a session."""
    context, total = 0, 0.0
    for turn in session.turns:
        work, context = turn_work_s(speed, turn, context)
        total += work
    return total


def session_least_s(speed: Speed, session: Session) -> float:
    """Return the least time of a session: its card time on an empty machine, and its gaps."""
    return session_work_s(speed, session) + sum(turn.gap_ns for turn in session.turns) / SECOND_NS


class Bounds(NamedTuple):
    """What nobody can be better than on a load, by the measured speed; not all of it at once."""

    session_median: float
    session_p95: float
    session_mean: float
    goodput: float


def bounds(speed: Speed, workload: Workload, cards: int) -> Bounds:
    """Return the bounds of a load on so many cards, from `bench.bounds.sessions`.

    Goodput: all turns are good, in the least time that the load can take.
    """
    sessions = workload.sessions
    alone = np.array([session_least_s(speed, session) for session in sessions])
    starts = np.array([session.start_ns / SECOND_NS for session in sessions])
    needs = np.array([session_work_s(speed, session) for session in sessions])
    work = [(needs, float(cards))]
    span = makespan_bound(starts, alone, work) - float(starts.min())
    turns = sum(len(session.turns) for session in sessions)
    median, p95 = (
        quantile_bound(starts, alone, needs, float(cards), share) for share in (0.5, 0.95)
    )
    mean = mean_bound(starts, alone, work)
    return Bounds(median, p95, mean, turns / span if span else 0.0)


def measure_speed(run: Run, room: Room) -> Speed:
    """Measure both cards at once, twice, and take the faster of each turn; about 40 s."""
    rounds_max = 1 if run.quick else ROUNDS
    with plain_cards(run, run.scratch / "speed", room) as urls:
        rounds = [asyncio.run(_both(urls, number)) for number in range(rounds_max)]
    return fit([faster(rows) for rows in zip(*rounds, strict=True)])


class Timed(NamedTuple):
    """One turn that ran alone."""

    new: int
    cached: int
    out: int
    first_s: float
    rest_s: float


def faster(rows: Sequence[Timed]) -> Timed:
    """Return one turn with the least times of its repeats: what delays it is not the card."""
    return rows[0]._replace(
        first_s=min(row.first_s for row in rows), rest_s=min(row.rest_s for row in rows)
    )


async def _both(urls: Sequence[str], number: int) -> list[Timed]:
    async with client() as http:
        found = await asyncio.gather(
            *(_one(http, url, f"{card}/{number}") for card, url in enumerate(urls))
        )
    return [row for rows in found for row in rows]


async def _one(http: aiohttp.ClientSession, url: str, label: str) -> list[Timed]:
    rows: list[Timed] = []
    for size in (FIRST_TOKENS[0], *FIRST_TOKENS):  # the first one warms up
        messages = [{"role": "user", "content": text(f"speed/{label}/{len(rows)}", size)}]
        for _ in range(2):
            began = time.perf_counter()
            heard = await chat(http, url, Ask(0, 0, "", 0.0, messages, ANSWER_TOKENS), {})
            if heard.error:
                raise BenchError(f"a card that is measured answers: {heard.error}")
            new = heard.prompt - heard.cached
            rest_s = heard.end_s - heard.first_s
            rows.append(Timed(new, heard.cached, heard.out, heard.first_s - began, rest_s))
            messages += [
                {"role": "assistant", "content": heard.text},
                {"role": "user", "content": text(f"more/{label}", MORE_TOKENS)},
            ]
    return rows[2:]


def fit(rows: Sequence[Timed]) -> Speed:
    """Fit the constants, none below 0, by relative least squares."""
    first = np.array([[1.0, row.new, row.new * (row.new + 2.0 * row.cached)] for row in rows])
    pace = np.array([[1.0, row.new + row.cached + row.out / 2] for row in rows])
    a0, a1, a2 = _positive(first, [row.first_s for row in rows])
    t0, t1 = _positive(pace, [row.rest_s / (row.out - 1) for row in rows])
    return Speed(a0, a1, a2, t0, t1)


def _positive(features: np.ndarray, seconds: Sequence[float]) -> list[float]:
    """Return least-squares weights of relative errors; one that is below 0 is left out as 0."""
    target = np.array(seconds)
    used = list(range(features.shape[1]))
    while True:
        scaled = features[:, used] / target[:, None]
        weights = np.linalg.lstsq(scaled, np.ones(len(target)), rcond=None)[0]
        if (weights >= 0).all():
            break
        used.pop(int(weights.argmin()))
    found = [0.0] * features.shape[1]
    for place, weight in zip(used, weights, strict=True):
        found[place] = float(weight)
    return found

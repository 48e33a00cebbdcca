"""A card that goes token by token, step by step: what the closed form must equal.

Shares no code with the twin. A change at instant t takes part in the first step that begins after
t − 1. Costs in tests are multiples of 1/64 ns, so that every sum here and there is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bedplate.perf.profile import CardProfile


@dataclass
class Job:
    """A turn as a test gives it to both cards."""

    name: str
    at_ns: int
    slot: int
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    cancel_ns: int = -1


@dataclass
class Fate:
    """What became of a job."""

    started_ns: int = -1
    ended_ns: int = -1
    status: str = ""
    out_tokens: int = 0


class _Live:
    def __init__(self, job: Job, serial: int) -> None:
        self.job = job
        self.serial = serial
        self.left = job.prompt_tokens - job.cached_tokens
        self.there = job.cached_tokens
        self.out = 0


def run_naively(
    profile: CardProfile, jobs: list[Job], slowness: list[tuple[int, float]]
) -> dict[str, Fate]:
    """Return the fate of each job; `slowness` are (instant, factor) in order of time."""
    fates = {job.name: Fate() for job in jobs}
    coming = sorted(
        (job.at_ns + math.ceil(profile.begin_ns), serial, job) for serial, job in enumerate(jobs)
    )
    for join_ns, _, job in list(coming):
        if 0 <= job.cancel_ns < join_ns:
            coming = [c for c in coming if c[2] is not job]
            fates[job.name] = Fate(-1, max(job.cancel_ns, job.at_ns), "cancelled", 0)
    live: list[_Live] = []
    now = 0.0
    idle_tokens = 0
    while coming or live:
        if not live and coming[0][0] >= now + 1:
            now = float(coming[0][0])
        seen_ns = math.ceil(now)
        for one in list(live):
            if 0 <= one.job.cancel_ns <= seen_ns:
                live.remove(one)
                fate = fates[one.job.name]
                fate.ended_ns, fate.status, fate.out_tokens = seen_ns, "cancelled", one.out
        while coming and coming[0][0] <= seen_ns:
            _, serial, job = coming.pop(0)
            live.append(_Live(job, serial))
        live = [one for one in live if not _cancelled_on_arrival(one, seen_ns, fates)]
        if not live:
            continue
        factor = 1.0
        for at_ns, value in slowness:
            if at_ns <= seen_ns:
                factor = value
        now += factor * _step(profile, live, idle_tokens)
        idle_tokens += sum(one.there for one in live if one.out == one.job.out_tokens)
        _note(profile, live, fates, now)
        live = [one for one in live if one.out < one.job.out_tokens]
    return fates


def _cancelled_on_arrival(one: _Live, seen_ns: int, fates: dict[str, Fate]) -> bool:
    if not 0 <= one.job.cancel_ns <= seen_ns:
        return False
    fates[one.job.name] = Fate(-1, seen_ns, "cancelled", 0)
    return True


def _step(profile: CardProfile, live: list[_Live], idle_tokens: int) -> float:
    """Carry out one step; return how long it lasts."""
    batching = profile.batching
    decoding = [one for one in live if one.left == 0]
    prompts = [one for one in live if one.left > 0]
    prompts.sort(key=lambda one: one.job.slot if batching.order == "slot" else one.serial)
    room = batching.token_budget - (len(decoding) if batching.mixed else 0)
    shares: list[tuple[_Live, int]] = []
    for one in prompts[: batching.prompts_max or None]:
        share = min(one.left, room)
        if share > 0:
            shares.append((one, share))
            room -= share
    if shares and not batching.mixed:
        decoding = []
    cost = profile.step
    held = idle_tokens + sum(one.there for one in live)
    computed = sum(share for _, share in shares) + len(decoding)
    time = profile.cell_ns * computed * held
    time += cost.fixed_ns(sum(share for _, share in shares), len(decoding))
    for one, share in shares:
        for _ in range(share):
            time += cost.pair_ns * (one.there + 1)
            one.there += 1
            one.left -= 1
        if one.left == 0:
            one.out = 1
    for one in decoding:
        time += cost.context_ns * (one.there + 1)
        one.there += 1
        one.out += 1
    return time


def _note(profile: CardProfile, live: list[_Live], fates: dict[str, Fate], now: float) -> None:
    for one in live:
        fate = fates[one.job.name]
        if one.out >= 1 and fate.started_ns < 0:
            fate.started_ns = math.ceil(now)
        if one.out == one.job.out_tokens:
            fate.ended_ns = max(math.ceil(now), math.ceil(now + profile.end_ns))
            fate.status, fate.out_tokens = "stop", one.out

"""All of a calibration: start the engine, warm it up, measure, stop it, fit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bedplate.core.events import CardDown, CardUp, Event
from bedplate.engines.base import Engine
from bedplate.engines.llamacpp.card import SERVER_VERSION
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.errors import EngineLost, EngineTimeout
from bedplate.perf.fit import MovePoint, fit_move, fit_steps, held_out_errors, move_ns
from bedplate.perf.profile import Batching, CardProfile, MoveCost
from bedplate.perf.profile_file import Calibration, Errors
from bedplate.pool import KvPool
from bedplate.runtime.calibration.contention import alone, measure_contention
from bedplate.runtime.calibration.measure import CardRounds
from bedplate.runtime.calibration.plan import SECONDS, Plan, make_plan
from bedplate.runtime.calibration.probe import Probe
from bedplate.runtime.calibration.rules import Rules
from bedplate.runtime.calibration.samples import (
    DecodeSample,
    MoveSample,
    PrefillSample,
    Samples,
    measured_budget,
    move_points,
    step_points,
)

UP_SECONDS = 200.0
"""Longest wait for a card."""
HOPELESS_SECONDS = 3.0
"""Longest wait for one whose endpoint does not let anybody in; it is looked at twice meanwhile."""
LOOK_SECONDS = 0.5
_STARTS = ("answers the probe with status", "did not answer the probe", "broke off the probe")
"""How what is found wrong with an endpoint that starts begins; the others do not pass with time."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure.

    `cards` are measured at the same time, for so many `seconds`; start and fit come on top. `seed`
    is of texts, order and the points that are held out. `command` goes into the file.
    """

    cards: int
    seconds: float = SECONDS
    seed: int
    command: str


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The profile, how it was made, and its errors on points that it was not fitted to."""

    profile: CardProfile
    calibration: Calibration
    errors: Errors


@dataclass(slots=True)
class _Cards:
    """The cards that are up; `changed` is set at each event."""

    up: dict[str, CardUp]
    down: dict[str, str]
    changed: asyncio.Event

    def take(self, event: Event) -> None:
        if isinstance(event, CardUp):
            self.up[event.card] = event
        elif isinstance(event, CardDown):
            self.down[event.card] = event.reason
        self.changed.set()

    async def wait(self, count: int, engine: Engine) -> list[CardUp]:
        """Return so many cards; say what is waited for, and give up where that is in vain.

        Raises:
            EngineLost: an endpoint takes no connection, refuses the key or has another model.
            EngineTimeout: not all are up in time.
        """
        clock = asyncio.get_running_loop().time
        began = hopeful = clock()
        told = False
        while len(self.up) < count:
            problems = {card: text for card, text in engine.problems.items() if text}
            found = "; ".join(f"{card} {text}" for card, text in problems.items())
            if all(text.startswith(_STARTS) for text in problems.values()):
                hopeful = clock()
            if clock() - hopeful >= HOPELESS_SECONDS:
                raise EngineLost(
                    f"{found}. Nothing was measured; see that the server runs, and that address, "
                    "model and key are right"
                )
            if clock() - began >= UP_SECONDS:
                raise EngineTimeout(
                    f"{len(self.up)} of {count} cards were up after {UP_SECONDS:.0f} s; "
                    f"{found or 'the others never came up'}"
                )
            if not told and hopeful > began:
                told = True
                _LOG.warning("waiting up to %.0f s: %s", UP_SECONDS, found or "cards start")
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.changed.wait()
        return [self.up[card] for card in sorted(self.up)][:count]


async def calibrate(
    engine: Engine,
    pool: KvPool | None,
    rules: Rules,
    settings: Settings,
    *,
    progress: Callable[[float], None],
) -> Calibrated:
    """Start the engine, measure its cards at the same time, stop it, and fit one profile.

    Args:
        engine: Not started; it is stopped at the end, whatever the end is.
        pool: The pool that the engine stores to, None where it stores nothing.
        rules: What is known of it.
        settings: How to measure.
        progress: Told the share of the measuring that is done, 0 to 1.

    Raises:
        EngineError, CapacityError, PoolError, RequestError: As the engine raises them.
    """
    load = os.getloadavg()[0]
    began = time.perf_counter()
    found = _Cards({}, {}, asyncio.Event())
    samples = Samples()
    try:
        await engine.start(found.take)
        ups = await found.wait(settings.cards, engine)
        probes = [Probe(engine, pool, up, seed=settings.seed) for up in ups]
        plan, rounds, notes = await _measure(probes, rules, settings, samples, progress=progress)
        contention = await measure_contention(probes, plan)
        if found.down:
            card, reason = next(iter(found.down.items()))
            raise EngineLost(f"card {card} was lost while it was measured: {reason}")
    finally:
        await engine.stop()
    if not samples.of(PrefillSample) or not samples.of(DecodeSample):
        raise EngineTimeout(
            f"engine {engine.name} is too slow, or its answers too short, to be measured in "
            f"{settings.seconds:.0f} s"
        )
    batching = rules.batching
    if batching is None:
        budget = measured_budget(samples)
        batching = Batching(token_budget=budget.tokens)
        least = "" if budget.exact else "; no prompt was seen to take more than one, it may be more"
        notes.append(f"a step of {budget.tokens} tokens was measured{least}")
    rules = rules._replace(batching=batching)
    together, errors, points = _fit(ups[0], samples, batching, rules, seed=settings.seed)
    profile = alone(together, contention, cards=settings.cards)
    if contention:
        notes.append(f"each other card that computes makes a turn {contention:.0%} longer")
    calibration = Calibration(
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=settings.command,
        machine=machine(),
        cpus=os.cpu_count() or 1,
        load=round(load, 2),
        engine=_version_of(engine),
        cards=settings.cards,
        seconds=round(time.perf_counter() - began, 1),
        timer_ns=max(1, round(time.get_clock_info("perf_counter").resolution * 1e9)),
        seed=settings.seed,
        rounds=rounds,
        points=points,
        notes=tuple(notes),
    )
    return Calibrated(profile, calibration, errors)


async def _measure(
    probes: Sequence[Probe],
    rules: Rules,
    settings: Settings,
    samples: Samples,
    *,
    progress: Callable[[float], None],
) -> tuple[Plan, int, list[str]]:
    """Warm all cards up and run their rounds side by side; return plan, rounds and notes."""
    card = probes[0].card
    warm = await asyncio.gather(*(probe.learn_words() for probe in probes))
    slowest = max(warm, key=lambda times: times.started_ns - times.sent_ns)
    sequences = min(rules.sequences_max, card.slots)
    plan = make_plan(
        card, slowest, seconds=settings.seconds, seed=settings.seed, sequences_max=sequences
    )
    runs = [CardRounds(probe, plan, rules.batching, samples) for probe in probes]
    shares = [0.0] * len(runs)

    def told(at: int, share: float) -> None:
        shares[at] = share
        progress(sum(shares) / len(shares))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.run(partial(told, at))) for at, run in enumerate(runs)]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
    notes = []
    if not all(run.tells_cached for run in runs):
        notes.append(
            "the engine does not say what it reused: first turns only were fitted as prompts"
        )
    if samples.of(MoveSample):
        notes.append(_size_note(samples, card))
    return plan, min(task.result() for task in tasks), notes


def _size_note(samples: Samples, card: CardUp) -> str:
    moves = [move for move in samples.of(MoveSample) if move.kind == "store"]
    longest = max(moves, key=lambda move: move.tokens)
    share = longest.size_bytes / (longest.tokens * card.kv_bytes_per_token)
    return (
        f"the longest store, {longest.tokens} tokens, took {longest.size_bytes} bytes: "
        f"{share:.0%} of what the core counts"
    )


def _fit(
    card: CardUp, samples: Samples, batching: Batching, rules: Rules, *, seed: int
) -> tuple[CardProfile, Errors, int]:
    steps = step_points(samples, rules)
    step_fit = fit_steps(steps)
    errors = held_out_errors(steps, lambda seen: fit_steps(seen).time_ns, seed=seed)
    moves = {"store": MoveCost(0.0, 0.0, False), "load": MoveCost(0.0, 0.0, False)}
    count = len(steps)
    for kind in moves if card.kv == "full" else ():
        points = move_points(samples, kind, card.kv_bytes_per_token)
        moves[kind] = fit_move(points, stalls=rules.stalls)
        fit = partial(_predict_move, stalls=rules.stalls)
        errors |= held_out_errors(points, fit, seed=seed)
        count += len(points)
    profile = CardProfile(
        name=str(card.card).rpartition("-")[0] or str(card.card),
        model=str(card.model),
        evidence="fitted",
        kv=card.kv,
        can_cut=card.can_cut,
        slots=card.slots,
        running_max=card.running_max,
        kv_tokens=card.kv_tokens,
        context_tokens=card.context_tokens,
        kv_bytes_per_token=card.kv_bytes_per_token,
        batching=batching,
        step=step_fit.cost,
        store=moves["store"],
        load=moves["load"],
        begin_ns=step_fit.begin_ns,
        end_ns=samples.end_ns(),
        cell_ns=step_fit.cell_ns,
    )
    return profile, Errors(**errors), count


def _predict_move(seen: Sequence[MovePoint], *, stalls: bool) -> Callable[[MovePoint], float]:
    return partial(move_ns, fit_move(seen, stalls=stalls))


def _version_of(engine: Engine) -> str:
    """Return what an engine's times are those of, as far as it is known here."""
    if isinstance(engine, LlamaCppEngine):
        return SERVER_VERSION
    return f"endpoint {engine.name}"


def machine() -> str:
    """Return system and processor of this machine, in words."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{platform.system()} {platform.machine()}, {name}"

"""How many requests and core events a second the twin does on one core, and how that grows.

Processor time of this process, reading the trace not counted. The events of the core are counted
by the twin; their rate is measured apart: the events of the run are handed to a fresh core alone,
which must end in the same digest.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import Event
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import Site, simulate
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.read import read_workload
from bench.harness.claims import Measured, Spec
from bench.harness.processes import cores, pinned
from bench.harness.run import BenchError, Part, Run
from bench.harness.stats import Spread, spread
from bench.subjects.peers import peer_environment
from bench.twin.sites import TURNS, agents, box, supernode

TRACE = ("azure-llm-2023", "dev", "AzureLLMInferenceTrace_conv.csv")
SR_SIM_VERSION = "0.1.0.dev20260713123629"
CARDS = (8, 60, 384)
"""Sizes of the box; the first one's figure is the claim."""
PEER_SECONDS = 600
LINEAR = (1_250, 2_500, 5_000, 10_000, 20_000)


def measure_azure(run: Run) -> Mapping[str, Measured]:
    """Run an hour of a conversation service through boxes of several sizes."""
    path = trace(*TRACE)
    workload = read_workload(path)
    rounds = 1 if run.quick else 5
    rates: dict[int, list[float]] = {}
    outcome = _done(simulate(box(CARDS[0]), workload, seed=1))  # warm
    for number in range(rounds):
        for cards in CARDS[:1] if run.quick else CARDS:
            seconds, outcome = _timed(box(cards), workload, run.seeds[number])
            rates.setdefault(cards, []).append(len(outcome.turns) / seconds)
        run.say(f"round {number + 1}: {rates[CARDS[0]][-1]:,.0f} requests/s on {CARDS[0]} cards")
    for cards, values in rates.items():
        run.figure(f"requests/s, {cards} cards", spread(values).text(0))
    events_rate, per_request = _core_alone(run, workload, rounds)
    run.rounds["azure"] = {str(cards): list(values) for cards, values in rates.items()}
    first = spread(rates[CARDS[0]])
    return {
        "twin_requests": Measured(first.median, first.n, _peer(run, path, rounds)),
        "twin_events_per_request": Measured(per_request, 1),
        "twin_core_events": Measured(events_rate.median, events_rate.n, "the same events alone"),
    }


def measure_supernode(run: Run) -> Mapping[str, Measured]:
    """Run agents on 384 cards, in growing numbers: the last is the claim."""
    sizes = LINEAR[:2] if run.quick else LINEAR
    taken: list[float] = []
    for sessions in sizes:
        workload = agents(sessions, run.seeds[0])
        seconds, outcome = _timed(supernode(384), workload, run.seeds[0])
        taken.append(seconds)
        turns = sessions * TURNS
        text = f"{seconds:.1f} s, {seconds / turns * 1e6:.0f} µs a turn, "
        text += f"{outcome.events / turns:.1f} core events a turn"
        run.figure(f"384 cards, {sessions:,} sessions of {TURNS} turns", text)
        run.say(f"{sessions:,} sessions: {text}")
    slope = _slope([math.log(s) for s in sizes], [math.log(t) for t in taken])
    run.rounds["supernode"] = {str(s): t for s, t in zip(sizes, taken, strict=True)}
    return {
        "twin_supernode_s": Measured(taken[-1], 1, f"{sizes[-1]:,} sessions"),
        "twin_linear_exponent": Measured(slope, len(sizes), "slope of log time over log turns"),
    }


def trace(*parts: str) -> Path:
    """Return a file of the real data sets.

    Raises:
        BenchError: it is not there.
    """
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("BEDPLATE_DATA", beside)).joinpath(*parts)
    if not path.exists():
        raise BenchError(f"no data set {'/'.join(parts)}; set BEDPLATE_DATA to their folder")
    return path


def _timed(site: Site, workload: Workload, seed: int) -> tuple[float, Outcome]:
    began = time.process_time()
    outcome = simulate(site, workload, seed=seed)
    return time.process_time() - began, _done(outcome)


def _done(outcome: Outcome) -> Outcome:
    left = [row for row in outcome.sessions if row.failed or row.end_ns < 0]
    if left:
        raise BenchError(f"{len(left)} of {len(outcome.sessions)} sessions did not end: {left[0]}")
    return outcome


def _core_alone(run: Run, workload: Workload, rounds: int) -> tuple[Spread, float]:
    """Return events a second of the core on the run's own events, and events a request."""
    record: list[tuple[int, Event]] = []

    def heard(_: Base, now_ns: int, event: Event, __: tuple[Action, ...]) -> None:
        record.append((now_ns, event))

    site = box(CARDS[0])
    outcome = _done(simulate(site, workload, seed=run.seeds[0], heard=heard))
    rates = []
    gc.collect()
    gc.freeze()  # the record is no part of what the core holds: no collection walks over it
    for _ in range(rounds):
        base = Base()
        began = time.process_time()
        for now_ns, event in record:
            base.handle(now_ns, event)
        rates.append(len(record) / (time.process_time() - began))
        if base.digest.hex() != outcome.digest:
            raise BenchError("the core alone came to another digest than the twin")
    gc.unfreeze()
    return spread(rates), outcome.events / len(outcome.turns)


def _peer(run: Run, path: Path, rounds: int) -> str:
    """Time vllm-sr-sim on the same trace and sizes; say what it does, or why it is left out."""
    if not run.peers:
        return "peers left out by --no-peers"
    try:
        python = peer_environment(run.cache, "vllm-sr-sim", SR_SIM_VERSION) / "bin" / "python"
    except BenchError as error:
        return f"vllm-sr-sim is left out: {str(error)[:200]}"
    script = Path(__file__).with_name("peer_srsim.py")
    texts = []
    for cards in CARDS[:1] if run.quick else CARDS:
        rates = []
        for _ in range(rounds if cards == CARDS[0] else 1):
            with pinned(cores()[0]):
                done = subprocess.run(
                    [str(python), str(script), str(path), str(cards)],
                    capture_output=True,
                    check=False,
                    timeout=PEER_SECONDS,
                )
            if done.returncode:
                return f"vllm-sr-sim failed: {done.stderr.decode()[-300:]}"
            found = json.loads(done.stdout)
            rates.append(found["requests"] / found["seconds"])
        texts.append(f"{statistics.median(rates):,.0f}/s on {cards} cards")
    run.rounds["vllm-sr-sim"] = list(texts)
    return f"vllm-sr-sim {SR_SIM_VERSION}: {', '.join(texts)}"


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


AZURE = Part(
    "azure",
    (
        Spec(
            "twin_requests",
            "requests/s",
            ">= 5000",
            "simulated requests of the Azure conversation trace a second, on one core, 8 cards",
        ),
        Spec("twin_events_per_request", "events", "<= 6", "core events a request in that run"),
        Spec(
            "twin_core_events",
            "events/s",
            ">= 50000",
            "events of that run that one core handles a second, digest included",
        ),
    ),
    measure_azure,
)
SUPERNODE = Part(
    "supernode",
    (
        Spec(
            "twin_supernode_s",
            "s",
            "<= 300",
            "384 cards with one pool, 20,000 sessions of 15 turns: processor time of the run",
        ),
        Spec(
            "twin_linear_exponent",
            "ratio",
            "<= 1.1",
            "how the time grows with the number of turns: 1 is linear",
        ),
    ),
    measure_supernode,
)

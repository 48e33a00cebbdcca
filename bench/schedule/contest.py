"""The contest: sessions on two real cards, ours, the peers and the probe, seed by seed.

In every seed each subject serves the same sessions, one subject after the other, and the order
turns by one from seed to seed. The peers' slots and batch size are chosen before, by a sweep on the
first load. A ratio compares means over seeds. Where KV does not fit each source has claims of its
own, and is a part that can run alone; where all fits what is claimed is the least over the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Json, Part, Run
from bench.schedule.compare import SLO_FACTOR, play, table
from bench.schedule.load import CARDS, LIGHT, OVERSUBSCRIBED, SOURCES, Level, Source, load_of
from bench.schedule.measure import Outcome, Ratio, ratio
from bench.schedule.probe import Probe
from bench.schedule.speed import Bounds, Speed, bounds, measure_speed
from bench.schedule.subjects import Pinned, Room, Routed, Subject, router_command
from bench.schedule.variants import BEDPLATE_SLOTS, PEER_BATCH, PEER_SLOTS, ROUTERS, bedplate

OURS, PROBE = "bedplate", "probe"
SWEEP = ((1, 64), (2, 64), (2, 128), (4, 64), (4, 2_048))
"""Slots and batch sizes that the peers are tried with; the last is what a server comes with."""
SPEED_ROOM = Room(4, 8_192)


Row = TypeVar("Row", Outcome, Bounds)


class Tuned(NamedTuple):
    """What the peers run with."""

    slots: int
    batch_tokens: int


class Setup(NamedTuple):
    """What a level is played with."""

    level: Level
    seeds: Sequence[int]
    speed: Speed
    tuned: Tuned


class Rows(NamedTuple):
    """Outcomes of one source, by subject, one a seed; and the bounds of each seed."""

    source: Source
    found: Mapping[str, list[Outcome]]
    least: Sequence[Bounds]

    @property
    def peers(self) -> list[str]:
        """Names of the peers that were measured."""
        return [name for name in self.found if name not in (OURS, PROBE)]


def measure_oversubscribed(run: Run, source: Source) -> Mapping[str, Measured]:
    """Play the loads of a source whose KV does not fit."""
    rows = _played(run, OVERSUBSCRIBED, (source,), 1 if run.quick else 5)
    name = source.name
    return {
        f"goodput_vs_best_peer_{name}": _least(run, rows, "goodput", _better_peer),
        f"session_median_vs_best_peer_{name}": _least(run, rows, "session_median", _better_peer),
        f"session_p95_vs_best_peer_{name}": _least(run, rows, "session_p95", _better_peer),
        f"goodput_vs_probe_{name}": _least(run, rows, "goodput", _probe),
        f"sessions_lost_{name}": _lost(rows),
    }


def measure_light(run: Run) -> Mapping[str, Measured]:
    """Play the loads that leave the cards idle half of the time."""
    sources = SOURCES[:1] if run.quick else SOURCES
    rows = _played(run, LIGHT, sources, 1 if run.quick else 3)
    return {
        "goodput_vs_best_peer_light": _least(run, rows, "goodput", _better_peer),
        "goodput_vs_probe_light": _least(run, rows, "goodput", _probe),
        "sessions_lost_light": _lost(rows),
    }


def speed_of(run: Run) -> Speed:
    """Return the cards' speed, measured once a run."""
    known = run.rounds.get("speed")
    if isinstance(known, dict):
        return Speed(**{name: float(value) for name, value in known.items()})  # type: ignore[arg-type]
    run.say("measuring the cards")
    speed = measure_speed(run, SPEED_ROOM)
    run.rounds["speed"] = dict(speed._asdict())
    prompt, pace = speed.prefill_s(1_000, 0), speed.decode_s(2, 1_000)
    run.figure("a card", f"prompt of 1,000 tokens {prompt:.2f} s, a token behind it {pace:.4f} s")
    return speed


def _played(run: Run, level: Level, sources: Sequence[Source], seeds: int) -> list[Rows]:
    speed = speed_of(run)
    if run.quick:
        level = level._replace(sessions=level.sessions // 4, load=2 * level.load)
    tuned = _tuned(run, speed, level, sources[0])
    run.config[f"{level.name} {sources[0].name}"] = {
        "slo_factor": SLO_FACTOR,
        "level": dict(level._asdict()),
        "sources": [dict(source._asdict()) for source in sources],
        "peers": dict(tuned._asdict()),
    }
    setup = Setup(level, run.seeds[:seeds], speed, tuned)
    return [_source(run, source, setup) for source in sources]


def _subjects(run: Run, kv_tokens: int, tuned: Tuned) -> list[tuple[str, Subject]]:
    room = Room(tuned.slots, kv_tokens, tuned.batch_tokens)
    found: list[tuple[str, Subject]] = [
        (OURS, bedplate(OURS, Room(BEDPLATE_SLOTS, kv_tokens))),
        (PROBE, Probe(Room(1, kv_tokens))),
        ("pinned", Pinned(room)),
    ]
    return found + [(router, Routed(room, router)) for router in _routers(run)]


def _routers(run: Run) -> list[str]:
    """Return the routers that can be installed; one that cannot is told and left out."""
    found = []
    for router in ROUTERS if run.peers else ():
        try:
            router_command(run.cache, router)
            found.append(router)
        except BenchError as error:
            run.say(f"{router} is left out: {error}")
    return found


def _source(run: Run, source: Source, setup: Setup) -> Rows:
    level, speed = setup.level, setup.speed
    found: dict[str, list[Outcome]] = {}
    least = []
    kept: dict[str, Json] = {}
    for number, seed in enumerate(setup.seeds):
        load = load_of(source, level, speed, seed=seed)
        least.append(bounds(speed, load.workload, CARDS))
        subjects = _subjects(run, load.kv_tokens, setup.tuned)
        turn = number % len(subjects)
        for name, subject in subjects[turn:] + subjects[:turn]:
            rows, outcome = play(run, subject, load.workload, f"{source.name}-{level.name}-{seed}")
            found.setdefault(name, []).append(outcome)
            kept[f"{seed} {name}"] = {
                "outcome": dict(outcome._asdict()),
                "turns": [list(row) for row in rows],
            }
    run.rounds[f"{level.name} {source.name}"] = kept
    order = [name for name, _ in _subjects(run, 0, setup.tuned)]
    found = {name: found[name] for name in order}
    means = {name: mean(outcomes) for name, outcomes in found.items()}
    for line in table(means, mean(least)):
        run.figure(f"{level.name}, {source.name}", line)
    return Rows(source, found, least)


def mean(rows: Sequence[Row]) -> Row:
    """Return the field-by-field mean of rows of one kind."""
    return type(rows[0])(*(sum(values) / len(rows) for values in zip(*rows, strict=True)))


def _tuned(run: Run, speed: Speed, level: Level, source: Source) -> Tuned:
    """Return what serves the peers best, by the pinned servers on the first load."""
    if run.quick:
        return Tuned(PEER_SLOTS, PEER_BATCH)
    known = run.rounds.setdefault("sweep", {})
    assert isinstance(known, dict)
    found: dict[Tuned, Outcome] = {}
    load = load_of(source, level, speed, seed=run.seeds[0])
    for slots, batch in SWEEP:
        room = Room(slots, load.kv_tokens, batch)
        label = f"sweep-{source.name}-{level.name}"
        subject = Pinned(room, f"pinned, {slots} slots, batch {batch}")
        _, found[Tuned(slots, batch)] = play(run, subject, load.workload, label)
    known[f"{level.name} {source.name}"] = [
        [*tuned, outcome.goodput] for tuned, outcome in found.items()
    ]
    best = max(found, key=lambda tuned: found[tuned].goodput)
    text = "; ".join(
        f"{tuned.slots} slots, batch {tuned.batch_tokens}: {outcome.goodput:.3f}"
        for tuned, outcome in found.items()
    )
    run.figure(f"{level.name}, {source.name}, peers tuned (goodput)", text)
    return best


def _better_peer(rows: Rows, measure: str) -> str:
    """Return the peer that is best by a measure: most goodput, least time."""

    def total(name: str) -> float:
        values = [getattr(outcome, measure) for outcome in rows.found[name]]
        return float(sum(values))

    return max(rows.peers, key=total) if measure == "goodput" else min(rows.peers, key=total)


def _probe(rows: Rows, _measure: str) -> str:
    return PROBE


def _least(
    run: Run, sources: Sequence[Rows], measure: str, against: Callable[[Rows, str], str]
) -> Measured:
    """Return our ratio in a measure to another subject's, of the source where it is least."""
    worst: Measured | None = None
    for rows in sources:
        other = against(rows, measure)
        ours = [float(getattr(row, measure)) for row in rows.found[OURS]]
        theirs = [float(getattr(row, measure)) for row in rows.found[other]]
        found = ratio(ours, theirs) if measure == "goodput" else ratio(theirs, ours)
        text = f"{other}, {rows.source.name}"
        run.figure(f"{measure} against {text}", f"{found.text()}, 90 % interval over seeds")
        if worst is None or found.value < worst.value:
            worst = Measured(found.value, len(ours), text + _interval(found))
    if worst is None:
        raise BenchError("no load was played")
    return worst


def _interval(found: Ratio) -> str:
    return f", {found.low:.2f} to {found.high:.2f}"


def _lost(sources: Sequence[Rows]) -> Measured:
    ours = [outcome for rows in sources for outcome in rows.found[OURS]]
    sessions = round(sum(outcome.sessions for outcome in ours))
    return Measured(sum(outcome.lost for outcome in ours), len(ours), f"{sessions} sessions")


def _oversubscribed(source: Source) -> Part:
    name = source.name
    return Part(
        f"oversubscribed-{name}",
        (
            Spec(
                f"goodput_vs_best_peer_{name}",
                "×",
                ">= 2",
                "good turns a second, KV of sessions alive at once twice that of the cards",
            ),
            Spec(
                f"session_median_vs_best_peer_{name}",
                "×",
                ">= 2",
                "the peer's median session over ours",
            ),
            Spec(f"session_p95_vs_best_peer_{name}", "×", ">= 1.5", "the same, 95th percentile"),
            Spec(f"goodput_vs_probe_{name}", "×", ">= 1", "good turns a second against the probe"),
            Spec(f"sessions_lost_{name}", "sessions", "<= 0", "sessions of ours without an end"),
        ),
        partial(measure_oversubscribed, source=source),
    )


PARTS = (
    *map(_oversubscribed, SOURCES),
    Part(
        "light",
        (
            Spec(
                "goodput_vs_best_peer_light",
                "×",
                ">= 0.97",
                "good turns a second where all KV fits, load 0.4",
            ),
            Spec("goodput_vs_probe_light", "×", ">= 1", "the same against the simple probe"),
            Spec("sessions_lost_light", "sessions", "<= 0", "sessions of ours that did not end"),
        ),
        measure_light,
    ),
)

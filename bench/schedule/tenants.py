"""Tenants on the same two cards: pooled against partitions, and a noisy one beside a quiet one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bedplate.core.limits import INTERACTIVE, SHARED
from bedplate.twin.workload.form import Session, Workload
from bench.harness.claims import Measured, Spec
from bench.harness.run import Json, Part, Run
from bench.harness.stats import quantile
from bench.schedule.compare import SLO_FACTOR, play
from bench.schedule.contest import speed_of
from bench.schedule.load import CARDS, Source, begun, joined, sessions_of, work_of
from bench.schedule.measure import Outcome, ratio
from bench.schedule.play import Ask, Endpoint, Heard, Played
from bench.schedule.speed import Speed
from bench.schedule.subjects import Bedplate, Room, Subject
from bench.schedule.variants import BEDPLATE_SLOTS, bedplate

KV_TOKENS = 4_096
CHATS = Source("chats", 0.13, 0.13, 0.3, ("customer_service",))
REVIEWS = Source("reviews", 0.035, 0.07, 0.3, ("compliance_review",))
POOLED_LOAD = 0.85
PEAK = 0.85
"""Share of a tenant's sessions that begin in its half of the time, the busy one."""
LONG_SECONDS = 30.0
"""A turn of a long context that has no token after this is timed out."""
SESSIONS = 20
QUIET_SESSIONS = 10
QUIET_LOAD = 0.5
"""Of one card: the quiet tenant uses half of its share."""
NOISY_SHARES = 10
QUIET, NOISY = "quiet", "noisy"


@dataclass(frozen=True, slots=True)
class Partitions:
    """A base of its own for each tenant, with one card: what is fixed when nothing is pooled."""

    room: Room
    name: str = "partitions"

    @contextmanager
    def running(self, run: Run, folder: Path, lanes: Mapping[str, int]) -> Iterator[Endpoint]:
        """Serve each tenant on its card."""
        with ExitStack() as stack:
            found = {}
            for card, (tenant, lane) in enumerate(sorted(lanes.items())):
                base = one_card(f"{self.name}-{tenant}", self.room, card)
                running = base.running(run, folder / tenant, {tenant: lane})
                found[tenant] = stack.enter_context(running)
            yield PartitionsEndpoint(found)


@dataclass(frozen=True, slots=True)
class PartitionsEndpoint:
    """Each tenant asks its own base."""

    bases: Mapping[str, Endpoint]

    async def ask(self, http: aiohttp.ClientSession, ask: Ask) -> Heard:
        """Ask the tenant's base."""
        return await self.bases[ask.tenant].ask(http, ask)


def one_card(name: str, room: Room, card: int) -> Bedplate:
    """Return a base with one card, on one of the two cores."""
    whole = bedplate(name, room)
    return Bedplate(name, room, whole.engine, cards=(card,))


def measure_pooled(run: Run) -> Mapping[str, Measured]:
    """Play chats beside long reviews, busy at different times, on pooled and on fixed cards."""
    speed = speed_of(run)
    room = Room(BEDPLATE_SLOTS, KV_TOKENS)
    rows: dict[str, list[Outcome]] = {"pooled": [], "partitions": []}
    late = offered = 0
    kept: dict[str, Json] = {}
    for number, seed in enumerate(run.seeds[: 1 if run.quick else 3]):
        workload = pooled_load(speed, SESSIONS // 4 if run.quick else SESSIONS, seed)
        subjects: list[tuple[str, Subject]] = [
            ("pooled", bedplate("pooled", room)),
            ("partitions", Partitions(room)),
        ]
        for name, subject in subjects if number % 2 == 0 else subjects[::-1]:
            turns, outcome = play(run, subject, workload, f"pooled-{seed}")
            rows[name].append(outcome)
            kept[f"{seed} {name}"] = {
                "outcome": dict(outcome._asdict()),
                "tenants": [session.tenant for session in workload.sessions],
                "turns": [list(turn) for turn in turns],
            }
            if name == "pooled":
                late += timed_out(workload, turns)
                offered += sum(len(s.turns) for s in workload.sessions if s.tenant == REVIEWS.name)
    run.rounds["pooled"] = kept
    found = ratio(*([outcome.goodput for outcome in rows[name]] for name in rows))
    run.figure("pooled against partitions", f"{found.text()} × good turns a second")
    seeds = len(rows["pooled"])
    return {
        "pooled_vs_partitions": Measured(found.value, seeds, "one card a tenant"),
        "long_context_timeouts": Measured(100 * late / offered, offered, "turns of reviews"),
    }


def pooled_load(speed: Speed, sessions: int, seed: int) -> Workload:
    """Return two tenants of the same work in all, each busy in a half of its own."""
    parts = []
    for source, lane in ((CHATS, INTERACTIVE), (REVIEWS, SHARED)):
        found = sessions_of(source, sessions, seed=seed)
        parts.append([s._replace(tenant=source.name, lane=lane) for s in found])
    work = [work_of(speed, part) for part in parts]
    count = round(sessions * min(1.0, work[1] / work[0]))
    parts[0] = parts[0][:count]
    parts[1] = parts[1][: round(sessions * min(1.0, work[0] / work[1]))]
    half_s = sum(work_of(speed, part) for part in parts) / (CARDS * POOLED_LOAD) / 2
    begins: list[Session] = []
    for number, part in enumerate(parts):
        busy = round(PEAK * len(part))
        for at, some in ((number, part[:busy]), (1 - number, part[busy:])):
            begins += begun(some, at * half_s, half_s, seed=seed)
    return joined(f"chats and reviews, seed {seed}", begins)


def timed_out(workload: Workload, rows: Sequence[Played]) -> int:
    """Return how many turns of reviews had no first token in time, or never came to be asked."""
    long = [n for n, s in enumerate(workload.sessions) if s.tenant == REVIEWS.name]
    offered = sum(len(workload.sessions[n].turns) for n in long)
    in_time = sum(
        row.session in long and 0 <= row.first_s - row.asked_s <= LONG_SECONDS and not row.error
        for row in rows
    )
    return offered - in_time


def measure_noisy(run: Run) -> Mapping[str, Measured]:
    """Play a quiet tenant alone on the card that is its share, and beside a noisy one on both."""
    speed = speed_of(run)
    room = Room(BEDPLATE_SLOTS, KV_TOKENS)
    firsts: dict[str, list[float]] = {"alone": [], "beside": []}
    kept: dict[str, Json] = {}
    for seed in run.seeds[: 1 if run.quick else 3]:
        alone, both = noisy_loads(speed, QUIET_SESSIONS // 2 if run.quick else QUIET_SESSIONS, seed)
        for name, subject, workload in (
            ("alone", one_card("alone", room, 0), alone),
            ("beside", bedplate("beside", room), both),
        ):
            rows, _ = play(run, subject, workload, f"noisy-{seed}", until=(QUIET,))
            quiet = [row for row in rows if workload.sessions[row.session].tenant == QUIET]
            ends = max(row.end_s for row in rows)
            firsts[name] += [
                (row.first_s if row.first_s >= 0 else ends) - row.asked_s for row in quiet
            ]
            kept[f"{seed} {name}"] = {
                "tenants": [session.tenant for session in workload.sessions],
                "turns": [list(row) for row in rows],
            }
    run.rounds["noisy"] = kept
    p99 = {name: quantile(values, 0.99) for name, values in firsts.items()}
    text = "; ".join(
        f"{name}: {len(values)} turns, P50 {quantile(values, 0.5):.2f} s, P99 {p99[name]:.2f} s"
        for name, values in firsts.items()
    )
    run.figure("TTFT of the quiet tenant", text)
    count = len(firsts["beside"])
    against = f"alone on its share, P99 {p99['alone']:.2f} s"
    return {"noisy_p99_ttft": Measured(p99["beside"] / p99["alone"], count, against)}


def noisy_loads(speed: Speed, sessions: int, seed: int) -> tuple[Workload, Workload]:
    """Return the quiet tenant's load, and the same beside one that asks for ten times its share."""
    quiet = [s._replace(tenant=QUIET) for s in sessions_of(CHATS, sessions, seed=seed)]
    span_s = work_of(speed, quiet) / QUIET_LOAD
    quiet = begun(quiet, 0.0, span_s, seed=seed)
    many = round(sessions * NOISY_SHARES / QUIET_LOAD)
    noisy = [s._replace(tenant=NOISY) for s in sessions_of(CHATS, many, seed=seed + 1_000)]
    noisy = begun(noisy, 0.0, span_s, seed=seed + 1_000)
    return joined(f"quiet, seed {seed}", quiet), joined(f"noisy, seed {seed}", [*quiet, *noisy])


PARTS = (
    Part(
        "pooled",
        (
            Spec(
                "pooled_vs_partitions",
                "×",
                ">= 1.65",
                "good turns a second on two pooled cards against one card a tenant, "
                f"SLO times × {SLO_FACTOR:g}",
            ),
            Spec(
                "long_context_timeouts",
                "%",
                "<= 1",
                f"turns of long contexts without a token in {LONG_SECONDS:g} s, pooled",
            ),
        ),
        measure_pooled,
    ),
    Part(
        "noisy",
        (
            Spec(
                "noisy_p99_ttft",
                "×",
                "<= 1.3",
                "P99 TTFT of a tenant beside one at ten times its share, over that alone "
                "with its share",
            ),
        ),
        measure_noisy,
    ),
)

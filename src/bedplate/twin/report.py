"""What a run of the twin says: one report from one outcome, the same for people and programs.

Times in a report are seconds (virtual, but for `Speed.wall_s`), sizes tokens and bytes. Spreads of
TTFT, TPOT and queue time are over turns that ended well, of session time over sessions whose turns
all did; each says its `n`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import NamedTuple

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.twin.bottleneck import Bottleneck, find_bottleneck
from bedplate.twin.evidence import Evidence
from bedplate.twin.fault_cost import FaultCost, fault_costs
from bedplate.twin.goodput import (
    ENDED_WELL,
    Goodput,
    count,
    session_is_good,
    slo_class,
    tpot_ns,
    turn_is_good,
)
from bedplate.twin.outcome import CardRow, Outcome, Sample, SessionRow, TurnRow
from bedplate.twin.site import Site
from bedplate.twin.spread import Spread, spread
from bedplate.twin.workload.form import Workload


class Times(NamedTuple):
    """Spreads in seconds; None where there is nothing to measure."""

    ttft: Spread | None
    tpot: Spread | None
    queue: Spread | None
    turn: Spread | None
    session: Spread | None


class Tokens(NamedTuple):
    """Tokens of turns that ended well. `hit_share` is cached ÷ prompt.

    `again` of the prompt tokens were computed although they had been computed before.
    """

    prompt: int
    cached: int
    again: int
    out: int
    hit_share: float


class LaneReport(NamedTuple):
    """One lane, or `all` of them.

    `turns_offered` are all of the workload, `turns` those of them that arrived: what would have
    followed after a session was given up never does. `session` of `times` is over the part
    `sessions_done_share` of the sessions.
    """

    lane: str
    sessions: int
    sessions_done: int
    sessions_done_share: float
    turns_offered: int
    turns: int
    turns_done: int
    goodput: Goodput
    times: Times
    tokens: Tokens


class Occupancy(NamedTuple):
    """How full a store was over the run, in shares of `total` (tokens or bytes)."""

    total: int
    mean: float
    peak: float


class Moves(NamedTuple):
    """KV that went between cards and pool."""

    stores: int
    loads: int
    moved_bytes: int


class CardUse(NamedTuple):
    """Shares of the time that a card was up: `busy` is steps and stalls, `stalled` stalls only.

    `prompt_tokens` are those that it computed.
    """

    card: str
    up_s: float
    busy: float
    stalled: float
    prompt_tokens: int
    out_tokens: int
    stores: int
    loads: int


class Speed(NamedTuple):
    """The simulator's own speed. Requests are turns that arrived; `times_real` is virtual ÷ wall.

    `events` are those that the core handled.
    """

    wall_s: float
    requests: int
    events: int
    requests_per_s: float
    events_per_s: float
    events_per_request: float
    times_real: float


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `statuses` counts turns by how they ended, `counters` are the core's own.

    `evidence` is what the times rest on. `notes` say what in the scenario had no effect. `failures`
    counts calls that were refused or broke, retries included, by their reason.
    `too_long` of the refused turns had a prompt that no card takes: `context_tokens` is the most.
    """

    name: str
    workload: str
    workload_source: str
    seed: int
    digest: str
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]
    slo_factor: float
    duration_s: float
    lanes: tuple[LaneReport, ...]
    overall: LaneReport
    kv_used: Occupancy
    kv_running: Occupancy
    pool: Occupancy
    moves: Moves
    cards: tuple[CardUse, ...]
    bottleneck: Bottleneck
    faults: tuple[FaultCost, ...]
    speed: Speed
    statuses: dict[str, int]
    context_tokens: int
    too_long: int
    failures: dict[str, int]
    counters: dict[str, int]

    def document(self) -> dict[str, object]:
        """Return all of it as JSON values."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def make_report(
    outcome: Outcome,
    workload: Workload,
    site: Site,
    *,
    slo_factor: float = 1.0,
    evidence: tuple[Evidence, ...] = (),
    notes: tuple[str, ...] = (),
) -> Report:
    """Add up one run.

    Args:
        outcome: What came of it.
        workload: What was asked; its indices are those of the outcome's rows.
        site: What it ran on.
        slo_factor: Stretches the limits of the SLO classes (`goodput`), above 0.
        evidence: What the site's times rest on.
        notes: What was found when the scenario was read.

    Cost: O(turns log turns + samples).
    """
    duration_s = outcome.duration_ns / SECOND_NS
    context = max(card.profile.context_tokens for card in site.cards)
    lanes = lane_reports(outcome, workload, slo_factor=slo_factor)
    samples = outcome.samples
    room, size = outcome.kv_total_tokens, outcome.pool_total_bytes
    return Report(
        name=outcome.name,
        workload=workload.name,
        workload_source=workload.source,
        seed=outcome.seed,
        digest=outcome.digest,
        evidence=evidence,
        notes=notes,
        slo_factor=slo_factor,
        duration_s=duration_s,
        lanes=lanes[:-1],
        overall=lanes[-1],
        kv_used=_occupancy(samples, [each.kv_used_tokens for each in samples], room),
        kv_running=_occupancy(samples, [each.kv_running_tokens for each in samples], room),
        pool=_occupancy(samples, [each.pool_bytes for each in samples], size),
        moves=Moves(
            sum(card.stores for card in outcome.cards),
            sum(card.loads for card in outcome.cards),
            sum(card.moved_bytes for card in outcome.cards),
        ),
        cards=tuple(map(_card_use, outcome.cards)),
        bottleneck=find_bottleneck(outcome, site),
        faults=fault_costs(outcome, workload, slo_factor=slo_factor),
        speed=_speed(outcome, duration_s),
        context_tokens=context,
        too_long=sum(
            row.status == "refused" and row.prompt_tokens >= context for row in outcome.turns
        ),
        statuses=dict(sorted(Counter(row.status for row in outcome.turns).items())),
        failures=dict(outcome.failures),
        counters=dict(sorted(outcome.counters.items())),
    )


def lane_reports(
    outcome: Outcome, workload: Workload, *, slo_factor: float
) -> tuple[LaneReport, ...]:
    """Return one report for each lane that has sessions, by rank, then one for `all`."""
    asked = workload.sessions
    lane_of = [session.lane for session in asked]
    turns: list[list[TurnRow]] = [[] for _ in LANE_NAMES]
    sessions: list[list[SessionRow]] = [[] for _ in LANE_NAMES]
    offered = [0] * len(LANE_NAMES)
    for asks in asked:
        offered[asks.lane] += len(asks.turns)
    for turn in outcome.turns:
        if turn.arrival_ns >= 0:
            turns[lane_of[turn.session]].append(turn)
    for session in outcome.sessions:
        sessions[lane_of[session.session]].append(session)
    duration_s = outcome.duration_ns / SECOND_NS
    found = []
    for lane, rows in enumerate(sessions):
        if rows:
            slo = slo_class(lane, slo_factor)
            judged = [turn_is_good(row, slo) for row in turns[lane]]
            good = Counter(row.session for row, met in zip(turns[lane], judged, strict=True) if met)
            whole = (
                session_is_good(row, good[row.session], len(asked[row.session].turns), slo)
                for row in rows
            )
            goodput = count(lane, judged, whole, turns_offered=offered[lane], duration_s=duration_s)
            found.append(_summary(LANE_NAMES[lane], turns[lane], rows, offered[lane], goodput))
    total = sum(each.goodput.sessions_good for each in found)
    rate = total / duration_s if duration_s > 0 else 0.0
    sessions_offered = len(outcome.sessions)
    share = total / sessions_offered if sessions_offered else 0.0
    goodput = Goodput("sessions", sessions_offered, total, share, rate, total, rate)
    turns_offered = sum(each.turns_offered for each in found)
    every = _summary("all", [*chain(*turns)], outcome.sessions, turns_offered, goodput)
    return (*found, every)


def _summary(
    lane: str,
    turns: Sequence[TurnRow],
    sessions: Sequence[SessionRow],
    turns_offered: int,
    goodput: Goodput,
) -> LaneReport:
    done = [row for row in turns if row.status in ENDED_WELL]
    ended = [row for row in sessions if not row.failed and row.end_ns >= 0]
    prompt = sum(row.prompt_tokens for row in done)
    cached = sum(row.cached_tokens for row in done)
    return LaneReport(
        lane=lane,
        sessions=len(sessions),
        sessions_done=len(ended),
        sessions_done_share=len(ended) / len(sessions) if sessions else 0.0,
        turns_offered=turns_offered,
        turns=len(turns),
        turns_done=len(done),
        goodput=goodput,
        times=Times(
            ttft=_seconds(row.first_ns - row.arrival_ns for row in done if row.first_ns >= 0),
            tpot=_seconds(pace for row in done if (pace := tpot_ns(row)) is not None),
            queue=_seconds(row.queue_ns for row in done),
            turn=_seconds(row.end_ns - row.arrival_ns for row in done),
            session=_seconds(row.end_ns - row.start_ns for row in ended),
        ),
        tokens=Tokens(
            prompt,
            cached,
            sum(row.again_tokens for row in done),
            sum(row.out_tokens for row in done),
            cached / prompt if prompt else 0.0,
        ),
    )


def _seconds(values_ns: Iterable[float]) -> Spread | None:
    return spread(values_ns, unit=SECOND_NS)


def _occupancy(samples: Sequence[Sample], values: Sequence[int], total: int) -> Occupancy:
    """Return mean and peak; each sample holds until the next, the last one for no time."""
    if not total or not values:
        return Occupancy(total, 0.0, 0.0)
    spans = [later.time_ns - each.time_ns for each, later in pairwise(samples)]
    whole = sum(spans)
    area = sum(value * span for value, span in zip(values, spans, strict=False))
    mean = area / whole if whole else values[-1]
    return Occupancy(total, mean / total, max(values) / total)


def _card_use(card: CardRow) -> CardUse:
    up_ns = max(1, card.up_ns)
    return CardUse(
        card.card,
        card.up_ns / SECOND_NS,
        card.busy_ns / up_ns,
        card.stall_ns / up_ns,
        card.prompt_tokens,
        card.out_tokens,
        card.stores,
        card.loads,
    )


def _speed(outcome: Outcome, duration_s: float) -> Speed:
    wall_s, requests = outcome.wall_s, len(outcome.turns)
    rate = 1 / wall_s if wall_s > 0 else 0.0
    return Speed(
        wall_s=wall_s,
        requests=requests,
        events=outcome.events,
        requests_per_s=requests * rate,
        events_per_s=outcome.events * rate,
        events_per_request=outcome.events / requests if requests else 0.0,
        times_real=duration_s * rate,
    )


def _plain(value: object) -> object:
    """Return named tuples as objects, other tuples as lists, all the way down."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is None:
            return [_plain(item) for item in value]
        return {name: _plain(item) for name, item in zip(names, value, strict=True)}
    return value

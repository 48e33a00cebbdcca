"""What binds first: the resource whose lack makes turns slow, with the figures that say so.

Six resources are looked at, each as a share of what there is:

    compute   steps of the cards, of the time that they were up: 1 says that one turn at least ran
              all the time, not that no more would fit
    slots     turns on cards, of the turns that all cards run at once, while others waited
    kv_room   KV of running turns, of all cards' KV room, while others waited
    pool      bytes in the pool at their peak, of its size
    link      bytes moved, of what the pool's link carries when nothing is broken, while turns
              waited: of all moves, as many as are seen then
    tools     tool gaps, of the time of the sessions

Turns wait in queues, and between the tries of a client that was refused or whose call broke. The
verdict follows in this order:

 1. Turns spend under 5 % of their time waiting: nothing holds them up. What takes most of a
    session's time then binds: `tools`, or `compute`, a turn's own prefill and decoding.
 2. Turns wait longer between tries than in queues, and most calls that failed found no card up:
    `cards`; found no service: `gateway`; met a limit of lane, tenant or sessions: `limits`.
 3. While turns wait, the link carries 80 % of what it can or more, or half of those first in line
    wait for a KV move: `link`, with all that makes moves slow (a card's own way to the link, a
    fault). Turns that only wait for others before them are not first in line.
 4. While turns wait, running turns hold 80 % of the KV room or more, and of the room more than of
    the running turns that are possible: `kv_room`.
 5. While turns wait, 80 % of the running turns or more are taken: `slots`, if a card would gain
    20 % or more from running twice as many, else `compute`. The gain comes from the card's profile
    and the work of the run: prefill gains nothing, decoding as much as its step time grows slower
    than the batch.
 6. While turns wait, KV at rest fills the cards, and the pool where there is one, or half of those
    first in line are not admitted, since all KV room for their lane is promised to sessions that
    are open: `pool`, or `kv_room` without one.
 7. Half of those first in line wait for a limit of their tenant: `limits`.
 8. Else `unclear`, with what most of them wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bedplate.core.units import SECOND_NS
from bedplate.core.view import WHY_TEXT
from bedplate.perf.profile import CardProfile
from bedplate.twin.outcome import Outcome, Sample, TurnRow
from bedplate.twin.site import Site

QUEUE_SMALL = 0.05
FULL = 0.8
GAIN_WORTH = 1.2
HALF = 0.5
MOVES = frozenset({"loading", "room", "store_in_flight"})
"""What turns wait for whose KV, or that of others in their way, is on the move."""
IN_LINE = frozenset({"ready", "behind"})
"""What turns wait for that only wait until others before them are served."""
FAILED_FOR = {
    "no_engine": "cards",
    "lost": "gateway",
    "quota_exceeded": "limits",
    "capacity": "limits",
}
"""What binds where most calls fail for a reason; other reasons say nothing of it."""


class Parts(NamedTuple):
    """Where the time of the sessions went, as shares of its whole.

    `tools` are the gaps between turns, sub-agents that a turn waits for included. `retries` is from
    the arrival of a turn to its last try, and all of a turn that failed for good. `prefill` is from
    dispatch to the first token, `decode` from there to the end.
    """

    tools: float
    queue: float
    retries: float
    prefill: float
    decode: float


class Pressure(NamedTuple):
    """How far one resource is used, 0 to 1, and in words of what."""

    resource: str
    share: float
    evidence: str


class Bottleneck(NamedTuple):
    """The verdict.

    `binds`: compute | slots | kv_room | pool | link | tools | limits | cards | gateway | unclear,
    or `nothing` when no turn arrived.
    """

    binds: str
    why: str
    parts: Parts
    pressures: tuple[Pressure, ...]


def find_bottleneck(outcome: Outcome, site: Site) -> Bottleneck:
    """Say what binds first. Cost: O(turns + samples)."""
    parts = time_parts(outcome.turns)
    pressures = tuple(_pressures(outcome, site, parts))
    binds, why = _verdict(outcome, site, parts, {each.resource: each for each in pressures})
    return Bottleneck(binds, why, parts, pressures)


def time_parts(turns: Sequence[TurnRow]) -> Parts:
    """Split the time of all turns that came to an end, and of the gaps before them.

    `turns` of one session are in order.
    """
    tools = queue = retries = prefill = decode = 0
    ends: dict[int, int] = {}
    for row in turns:
        if row.arrival_ns >= 0 and row.session in ends:
            tools += max(0, row.arrival_ns - ends[row.session])
        if row.end_ns >= 0:
            ends[row.session] = row.end_ns
        if row.end_ns < 0:
            continue
        if row.first_ns >= 0:
            queue += row.queue_ns
            retries += row.retry_ns
            prefill += max(0, row.first_ns - row.arrival_ns - row.queue_ns - row.retry_ns)
            decode += row.end_ns - row.first_ns
        elif row.status != "unfinished":
            retries += row.end_ns - row.arrival_ns
    whole = max(1, tools + queue + retries + prefill + decode)
    return Parts(*(part / whole for part in (tools, queue, retries, prefill, decode)))


def _verdict(
    outcome: Outcome, site: Site, parts: Parts, found: dict[str, Pressure]
) -> tuple[str, str]:
    at_work = parts.queue + parts.retries + parts.prefill + parts.decode
    if at_work == 0.0:
        return "nothing", "no turn ran"
    queued, retried = parts.queue / at_work, parts.retries / at_work
    if queued + retried < QUEUE_SMALL:
        calm = f"turns spend {queued + retried:.1%} of their time in queues and retries"
        if parts.tools >= HALF:
            return "tools", f"{calm}, and sessions {parts.tools:.0%} of theirs in tool gaps"
        return "compute", f"{calm}: it is their own prefill and decoding that takes the time"
    if retried > queued:
        waits = f"turns spend {retried:.0%} of their time until the last try of their clients"
        binds, told = _failures(outcome.failures)
        if binds:
            return binds, f"{waits}; {told}"
    waits = f"turns spend {queued:.0%} of their time in queues, {retried:.0%} until their last try"
    return _held_up(outcome, site, found, waits)


def _failures(failures: Mapping[str, int]) -> tuple[str, str]:
    """Return what most calls failed for, and it in words; empty where that says nothing."""
    kinds: Counter[str] = Counter()
    for reason, count in failures.items():
        kinds[FAILED_FOR.get(reason, "")] += count
    binds, most = kinds.most_common(1)[0] if kinds else ("", 0)
    texts = {
        "cards": "found no card up that serves the model",
        "gateway": "found the service away",
        "limits": "were refused for a limit of lane, tenant or sessions",
    }
    whole = sum(failures.values())
    return binds, f"{most:,} of {whole:,} calls that failed {texts[binds]}" if binds else ""


def _held_up(
    outcome: Outcome, site: Site, found: dict[str, Pressure], waits: str
) -> tuple[str, str]:
    """Say what turns wait for that wait mostly in queues."""
    why = _waiting_for(outcome.samples)
    moves = sum(share for reason, share in why.items() if reason in MOVES)
    if found["link"].share >= FULL or moves >= HALF:
        told = f"of those first in line {moves:.0%} wait for a KV move; {found['link'].evidence}"
        if found["link"].share < FULL:
            told += ": moves are slow for a fault, latency or the cards' own way to it"
        return "link", f"{waits}; {told}"
    if found["kv_room"].share >= max(FULL, found["slots"].share):
        return "kv_room", f"{waits}; {found['kv_room'].evidence}"
    if found["slots"].share >= FULL:
        gain = doubling_gain(outcome.turns, site)
        told = f"{waits}; {found['slots'].evidence}, and twice as many would be {gain:.2f} × faster"
        return ("slots" if gain >= GAIN_WORTH else "compute"), told
    memory = "pool" if outcome.pool_total_bytes else "kv_room"
    at_rest = _while_waiting(outcome.samples, outcome.kv_total_tokens, "kv_used_tokens")
    if at_rest >= FULL and (memory == "kv_room" or found["pool"].share >= FULL):
        full = "and the pool is full" if memory == "pool" else "without a pool"
        return memory, f"{waits}; KV at rest fills {at_rest:.0%} of the cards, {full}"
    shut_out = why.get("admission", 0.0)
    if shut_out >= HALF:
        told = f"of those first in line {shut_out:.0%} are not admitted"
        return memory, f"{waits}; {told}: all KV room for their lane is promised to open sessions"
    limited = why.get("tenant_running_max", 0.0)
    if limited >= HALF:
        told = f"of those first in line {limited:.0%} wait for their tenant's running_max"
        return "limits", f"{waits}; {told}"
    most = max(why, key=lambda reason: why[reason], default="")
    told = f"most often {WHY_TEXT[most]}" if most else "none was seen first in line"
    return "unclear", f"{waits} though cards and KV have room; {told}"


def _waiting_for(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the shares of the turns first in line, over all samples, by what they wait for."""
    found: Counter[str] = Counter()
    for sample in samples:
        for reason, count in sample.why:
            if reason not in IN_LINE:
                found[reason] += count
    whole = found.total()
    return {reason: count / whole for reason, count in found.items()}


def _pressures(outcome: Outcome, site: Site, parts: Parts) -> Iterator[Pressure]:
    up_ns = sum(card.up_ns for card in outcome.cards)
    steps_ns = sum(card.busy_ns - card.stall_ns for card in outcome.cards)
    compute = steps_ns / up_ns if up_ns else 0.0
    most, room = sum(card.profile.running_max for card in site.cards), outcome.kv_total_tokens
    told = f"cards compute {compute:.0%} of the time that they are up"
    running = _mean_running(outcome.samples)
    if running is not None:
        told += f", at {running:,.1f} of the {most:,} turns that could run: busy is not full"
    yield Pressure("compute", compute, told)
    slots = _while_waiting(outcome.samples, most, "running")
    kv = _while_waiting(outcome.samples, room, "kv_running_tokens")
    if any(sample.waiting for sample in outcome.samples):
        on = f"while turns wait, {slots:.0%} of the {most:,} that can run at once do"
        held = f"while turns wait, running ones hold {kv:.0%} of {room:,} KV tokens"
    else:
        on = held = "no turn waits at any instant that was looked at"
    yield Pressure("slots", slots, on)
    yield Pressure("kv_room", kv, held)
    size = outcome.pool_total_bytes
    peak = max((sample.pool_bytes for sample in outcome.samples), default=0)
    pool = peak / size if size else 0.0
    dropped = outcome.counters.get("pool_evictions", 0)
    told = f"the pool is {pool:.0%} full at its peak, {dropped:,} copies were dropped for others"
    yield Pressure("pool", pool, told if size else "there is no pool")
    link = _link_share(outcome, site)
    told = f"while turns wait, the pool's link carries {link:.0%} of what it does when well"
    yield Pressure("link", link, told)
    told = f"sessions spend {parts.tools:.0%} of their time in tool gaps"
    yield Pressure("tools", parts.tools, told)


def _while_waiting(samples: Sequence[Sample], total: int, name: str) -> float:
    """Return the mean share of `total` at the instants at which turns waited, 0 without any."""
    values = [getattr(sample, name) for sample in samples if sample.waiting > 0]
    return sum(values) / len(values) / total if values and total else 0.0


def _mean_running(samples: Sequence[Sample]) -> float | None:
    """Return how many turns run at once, over the instants at which any does."""
    values = [sample.running for sample in samples if sample.running]
    return sum(values) / len(values) if values else None


def _link_share(outcome: Outcome, site: Site) -> float:
    """Return the mean use of the pool's bandwidth at the instants at which turns waited."""
    samples = outcome.samples
    waited = [sample.moves for sample in samples if sample.waiting > 0]
    moves = sum(sample.moves for sample in samples)
    if not waited or not moves:
        return 0.0
    moved = sum(card.moved_bytes for card in outcome.cards) * sum(waited) / moves
    waited_s = outcome.duration_ns / SECOND_NS * len(waited) / len(samples)
    return min(1.0, moved / (site.pool.bytes_per_s * waited_s)) if waited_s else 0.0


def doubling_gain(turns: Sequence[TurnRow], site: Site) -> float:
    """Return how much faster the same work would be done if cards ran twice as many turns.

    Weighs prefill, which gains nothing, against decoding in batches of `running_max`, each card
    with the turns that ended on it. 1 means no gain, 2 that time halves.
    """
    profiles = {card.id: card.profile for card in site.cards}
    now_ns = then_ns = 0.0
    decoded: Counter[str] = Counter()
    context: Counter[str] = Counter()
    for row in turns:
        profile = profiles.get(row.card)
        if profile is None or row.end_ns < 0:
            continue
        prefill_ns = _prefill_ns(profile, row)
        now_ns += prefill_ns
        then_ns += prefill_ns
        decoded[row.card] += row.out_tokens
        context[row.card] += row.out_tokens * (row.prompt_tokens + row.out_tokens // 2)
    for card, tokens in decoded.items():
        profile = profiles[card]
        attention_ns = profile.step.context_ns * context[card]
        for batch in (profile.running_max, 2 * profile.running_max):
            ns = tokens / batch * profile.step.fixed_ns(0, batch) + attention_ns
            if batch == profile.running_max:
                now_ns += ns
            else:
                then_ns += ns
    return now_ns / then_ns if then_ns else 1.0


def _prefill_ns(profile: CardProfile, row: TurnRow) -> float:
    computed = max(0, row.prompt_tokens - row.cached_tokens)
    budget = profile.batching.token_budget
    pairs = computed * row.cached_tokens + computed * (computed + 1) / 2
    steps_ns = computed / budget * profile.step.fixed_ns(budget, 0)
    return steps_ns + profile.step.pair_ns * pairs

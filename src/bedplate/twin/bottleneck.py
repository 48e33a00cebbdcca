"""What binds first: the resource whose lack makes turns slow, with the figures that say so.

Six resources are looked at, each as a share of what there is:

    compute   steps of the cards, of the time that they were up
    slots     turns on cards, of the turns that all cards run at once, while others waited
    kv_room   KV of running turns, of all cards' KV room, while others waited
    pool      bytes in the pool at their peak, of its size
    link      bytes moved, of what the pool's link carries, while turns waited: of all moves, as
              many as are seen then
    tools     tool gaps, of the time of the sessions

The verdict follows in this order:

 1. Turns spend under 5 % of their time in queues: nothing makes them wait. What takes most of a
    session's time then binds: `tools`, or `compute`, a turn's own prefill and decoding.
 2. While turns wait, the link carries 80 % of what it can or more: `link`.
 3. While turns wait, running turns hold 80 % of the KV room or more, and of the room more than of
    the running turns that are possible: `kv_room`.
 4. While turns wait, 80 % of the running turns or more are taken: `slots`, if a card would gain
    20 % or more from running twice as many, else `compute`. The gain comes from the card's profile
    and the work of the run: prefill gains nothing, decoding as much as its step time grows slower
    than the batch.
 5. While turns wait, KV at rest fills the cards, and the pool where there is one: `pool`, or
    `kv_room` without one.
 6. Else `limits`: turns wait though there is room, for their lane's or tenant's limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bedplate.core.units import SECOND_NS
from bedplate.perf.profile import CardProfile
from bedplate.twin.outcome import Outcome, Sample, TurnRow
from bedplate.twin.site import Site

QUEUE_SMALL = 0.05
FULL = 0.8
GAIN_WORTH = 1.2


class Parts(NamedTuple):
    """Where the time of the sessions went, as shares of its whole.

    `tools` are the gaps between turns, sub-agents that a turn waits for included. `prefill` is from
    dispatch to the first token, `decode` from there to the end.
    """

    tools: float
    queue: float
    prefill: float
    decode: float


class Pressure(NamedTuple):
    """How far one resource is used, 0 to 1, and in words of what."""

    resource: str
    share: float
    evidence: str


class Bottleneck(NamedTuple):
    """The verdict.

    `binds`: compute | slots | kv_room | pool | link | tools | limits, or `nothing` when no turn
    ran.
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
    """Split the time of all turns that had a first token and an end, and of the gaps before them.

    `turns` of one session are in order.
    """
    tools = queue = prefill = decode = 0
    ends: dict[int, int] = {}
    for row in turns:
        if row.arrival_ns >= 0 and row.session in ends:
            tools += max(0, row.arrival_ns - ends[row.session])
        if row.end_ns >= 0:
            ends[row.session] = row.end_ns
        if row.first_ns >= 0 and row.end_ns >= 0:
            queue += row.queue_ns
            prefill += max(0, row.first_ns - row.arrival_ns - row.queue_ns)
            decode += row.end_ns - row.first_ns
    whole = max(1, tools + queue + prefill + decode)
    return Parts(tools / whole, queue / whole, prefill / whole, decode / whole)


def _verdict(
    outcome: Outcome, site: Site, parts: Parts, found: dict[str, Pressure]
) -> tuple[str, str]:
    at_work = parts.queue + parts.prefill + parts.decode
    if at_work == 0.0:
        return "nothing", "no turn ran"
    queued = parts.queue / at_work
    if queued < QUEUE_SMALL:
        calm = f"turns spend {queued:.1%} of their time in queues"
        if parts.tools >= 0.5:
            return "tools", f"{calm}, and sessions {parts.tools:.0%} of theirs in tool gaps"
        return "compute", f"{calm}: it is their own prefill and decoding that takes the time"
    waits = f"turns spend {queued:.0%} of their time in queues"
    if found["link"].share >= FULL:
        return "link", f"{waits}; {found['link'].evidence}"
    if found["kv_room"].share >= max(FULL, found["slots"].share):
        return "kv_room", f"{waits}; {found['kv_room'].evidence}"
    if found["slots"].share >= FULL:
        gain = doubling_gain(outcome.turns, site)
        told = f"{waits}; {found['slots'].evidence}, and twice as many would be {gain:.2f} × faster"
        return ("slots" if gain >= GAIN_WORTH else "compute"), told
    at_rest = _while_waiting(outcome.samples, outcome.kv_total_tokens, "kv_used_tokens")
    if at_rest >= FULL and not outcome.pool_total_bytes:
        return "kv_room", f"{waits}; KV at rest fills {at_rest:.0%} of the cards, without a pool"
    if at_rest >= FULL and found["pool"].share >= FULL:
        return "pool", f"{waits}; KV at rest fills {at_rest:.0%} of the cards, and the pool is full"
    return "limits", f"{waits} though cards and KV have room: by limits of lane or tenant"


def _pressures(outcome: Outcome, site: Site, parts: Parts) -> Iterator[Pressure]:
    up_ns = sum(card.up_ns for card in outcome.cards)
    steps_ns = sum(card.busy_ns - card.stall_ns for card in outcome.cards)
    compute = steps_ns / up_ns if up_ns else 0.0
    yield Pressure("compute", compute, f"cards compute {compute:.0%} of the time that they are up")
    most, room = sum(card.profile.running_max for card in site.cards), outcome.kv_total_tokens
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
    yield Pressure("link", link, f"while turns wait, the pool's link carries {link:.0%}")
    told = f"sessions spend {parts.tools:.0%} of their time in tool gaps"
    yield Pressure("tools", parts.tools, told)


def _while_waiting(samples: Sequence[Sample], total: int, name: str) -> float:
    """Return the mean share of `total` at the instants at which turns waited, 0 without any."""
    values = [getattr(sample, name) for sample in samples if sample.waiting > 0]
    return sum(values) / len(values) / total if values and total else 0.0


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

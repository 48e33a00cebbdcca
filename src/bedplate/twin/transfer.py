"""KV moves between cards and pool: they share the pool's bandwidth.

A move first waits for its latency (its card's, the pool's, and now and then a tail), then its bytes
flow. Flows share the bandwidth evenly, except that none is faster than its card can be; what slow
cards leave is shared by the others. On a link that is slow each flow gets its share divided by the
factor.

Flows that are alike (same card speed, same partition) form a class and always have the same rate.
So a class keeps one number, the bytes that each of its flows has received since the class came into
being, and a flow ends when that number reaches its own mark: between two changes the next end is
one division a class, however many flows there are.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bedplate.core.ids import CardId, EntryId, SlotId
from bedplate.core.units import SECOND_NS
from bedplate.perf.profile import MoveCost
from bedplate.twin.heap import MOVE, Heap

MOVE_NS = 60 * SECOND_NS
"""Longest time of one move; as in the live service it fails after that."""


@dataclass(frozen=True, slots=True)
class TailSpec:
    """Rare long waits: of all moves the part `share` (0 to 1) waits longer.

    The wait has a Lomax distribution with shape 2, whose mean is `scale_ns` and whose variance has
    no bound; it is cut at `max_ns`, which leaves a mean of scale × max ÷ (scale + max). (Shape 2,
    since that needs a square root only and so is the same number on every machine.)
    """

    share: float
    scale_ns: float
    max_ns: float

    def draw_ns(self, rng: random.Random) -> float:
        """Return the extra wait of one move, most often 0. Draws one or two numbers."""
        if rng.random() >= self.share:
            return 0.0
        return min(self.max_ns, self.scale_ns * (1 / math.sqrt(1 - rng.random()) - 1))


class Move:
    """One store or load. `op`: store | load. `over` once it is answered or void."""

    __slots__ = (
        "card",
        "cost",
        "deadline_ns",
        "entry",
        "flowing",
        "op",
        "over",
        "partition",
        "size_bytes",
        "slot",
        "tokens",
    )

    def __init__(self, op: str, entry: EntryId, cost: MoveCost) -> None:
        self.op = op
        self.entry = entry
        self.cost = cost
        self.card = CardId("")
        self.slot = SlotId(-1)
        self.partition = ""
        self.tokens = 0
        self.size_bytes = 0
        self.deadline_ns = 0
        self.flowing: FlowClass | None = None
        self.over = False


class FlowClass:
    """Flows that are alike: at most `limit` bytes a nanosecond each, over one partition's link.

    `flows` is a heap by the value of `received` at which each flow ends; those that are over are
    skipped. `active` counts the others.
    """

    __slots__ = ("active", "flows", "limit", "partition", "rate", "received")

    def __init__(self, limit: float, partition: str) -> None:
        self.limit = limit
        self.partition = partition
        self.rate = 0.0
        self.received = 0.0
        self.active = 0
        self.flows: list[tuple[float, int, Move]] = []

    def first(self) -> float:
        """Return the mark of the flow that ends first; there is one."""
        flows = self.flows
        while flows[0][2].over:
            heapq.heappop(flows)
        return flows[0][0]


class Link:
    """A partition's way to the pool."""

    __slots__ = ("factor", "lost", "tail")

    def __init__(self) -> None:
        self.lost = False
        self.factor = 1.0
        self.tail: TailSpec | None = None


class Transfer:
    """All moves under way. `done(move, failure)` hears of each one's end."""

    def __init__(
        self,
        heap: Heap,
        rng: random.Random,
        *,
        bytes_per_s: float,
        base_ns: float,
        tail: TailSpec | None,
        done: Callable[[Move, str], None],
    ) -> None:
        self._heap = heap
        self._rng = rng
        self._bandwidth = bytes_per_s / SECOND_NS
        self._base_ns = base_ns
        self._tail = tail
        self._done = done
        self._classes: dict[tuple[float, str], FlowClass] = {}
        self._sharing: list[FlowClass] = []
        self._links: dict[str, Link] = {}
        self._moves: dict[Move, None] = {}
        self._by_deadline: deque[Move] = deque()
        self._serial = 0
        self._version = 0
        self._since_ns = 0
        self.timed_out = 0

    @property
    def active(self) -> int:
        """Moves that have begun and are not answered."""
        return len(self._moves)

    def under_way(self, *, card: str | None = None, partition: str | None = None) -> int:
        """Return how many moves are not answered: of a card, a partition, or without both of all.

        Cost: linear in moves.
        """
        return sum(
            card in (None, move.card) and partition in (None, move.partition)
            for move in self._moves
        )

    def link(self, partition: str) -> Link:
        """Return the link of a partition."""
        found = self._links.get(partition)
        if found is None:
            found = self._links[partition] = Link()
        return found

    def start(self, move: Move) -> None:
        """Begin a move; over a lost link it fails at once."""
        now_ns = self._heap.now_ns
        self._moves[move] = None
        link = self.link(move.partition)
        if link.lost:
            self._heap.at(now_ns, MOVE, self._fail, move)
            return
        wait_ns = move.cost.base_ns + self._base_ns
        if self._tail is not None:
            wait_ns += self._tail.draw_ns(self._rng)
        if link.tail is not None:
            wait_ns += link.tail.draw_ns(self._rng)
        move.deadline_ns = now_ns + MOVE_NS
        if not self._by_deadline:
            self._heap.at(move.deadline_ns, MOVE, self._time_out, None)
        self._by_deadline.append(move)
        self._heap.at(now_ns + math.ceil(wait_ns), MOVE, self._flow, move)

    def abandon(self, card: CardId | None = None) -> None:
        """Forget the moves of a card, or all, without a word."""
        self._catch_up()
        for move in [m for m in self._moves if card is None or m.card == card]:
            self._remove(move)
        self._share()

    def fail(self, partition: str) -> None:
        """Fail all moves over the link of a partition, once faults of this instant are over."""
        for move in self._moves:
            if move.partition == partition:
                self._heap.at(self._heap.now_ns, MOVE, self._fail, move)

    def set_factor(self, partition: str, factor: float) -> None:
        """Make the flows over a partition's link so many times slower than their share."""
        self._catch_up()
        self.link(partition).factor = factor
        self._share()

    def _fail(self, move: Move) -> None:
        if not move.over:
            self._catch_up()
            self._remove(move)
            self._share()
            self._done(move, "pool_error")

    def _time_out(self, _: None) -> None:
        waiting = self._by_deadline
        late = []
        while waiting and (waiting[0].over or waiting[0].deadline_ns <= self._heap.now_ns):
            move = waiting.popleft()
            if not move.over:
                late.append(move)
        if waiting:
            self._heap.at(waiting[0].deadline_ns, MOVE, self._time_out, None)
        if late:
            self._catch_up()
            for move in late:
                self._remove(move)
            self._share()
            self.timed_out += len(late)
            for move in late:
                self._done(move, "engine_timeout")

    def _remove(self, move: Move) -> None:
        move.over = True
        del self._moves[move]
        if move.flowing is not None:
            self._leave(move.flowing)

    def _leave(self, flows: FlowClass) -> None:
        flows.active -= 1
        if flows.active == 0:
            flows.flows.clear()
            flows.received = 0.0
            self._sharing.remove(flows)

    def _flow(self, move: Move) -> None:
        """The latency is over: the bytes of the move begin to flow."""
        if move.over:
            return
        self._catch_up()
        byte_ns = move.cost.byte_ns
        key = (1 / byte_ns if byte_ns > 0 else self._bandwidth, move.partition)
        flows = self._classes.get(key)
        if flows is None:
            flows = self._classes[key] = FlowClass(*key)
        if flows.active == 0:
            self._sharing.append(flows)
            self._sharing.sort(key=lambda c: (c.limit, c.partition))
        flows.active += 1
        move.flowing = flows
        self._serial += 1
        heapq.heappush(flows.flows, (flows.received + move.size_bytes, self._serial, move))
        self._share()

    def _catch_up(self) -> None:
        """Let the bytes flow up to now."""
        now_ns = self._heap.now_ns
        past_ns = now_ns - self._since_ns
        self._since_ns = now_ns
        if past_ns:
            for flows in self._sharing:
                flows.received += flows.rate * past_ns

    def _share(self) -> None:
        """Share the bandwidth anew, slowest cards first, and look for the next end."""
        self._version += 1
        left, count = self._bandwidth, sum(flows.active for flows in self._sharing)
        wait_ns = math.inf
        next_class: FlowClass | None = None
        for flows in self._sharing:
            rate = min(flows.limit, left / count)
            left -= rate * flows.active
            count -= flows.active
            flows.rate = rate / self.link(flows.partition).factor
            ends_ns = (flows.first() - flows.received) / flows.rate
            if ends_ns < wait_ns:
                wait_ns, next_class = ends_ns, flows
        if next_class is not None:
            at_ns = self._heap.now_ns + max(0, math.ceil(wait_ns))
            self._heap.at(at_ns, MOVE, self._arrived, (self._version, next_class))

    def _arrived(self, plan: tuple[int, FlowClass]) -> None:
        version, expected = plan
        if version != self._version:
            return
        self._catch_up()
        expected.received = max(expected.received, expected.first())  # what rounding left out
        arrived: list[Move] = []
        for flows in list(self._sharing):
            while flows.active and flows.first() <= flows.received:
                move = heapq.heappop(flows.flows)[2]
                move.over = True
                del self._moves[move]
                self._leave(flows)
                arrived.append(move)
        self._share()
        for move in arrived:
            self._done(move, "")

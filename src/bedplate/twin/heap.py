"""The event heap: everything that will happen, in the one order in which it does.

Entries are ordered by (time, rank, serial). Ranks order what happens at one instant: first a fault,
then ends of steps and of moves, then clients, and the core's timer last. The serial is the order of
scheduling, so no two entries are equal and what follows it is never compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

FAULT, CARD, MOVE, CLIENT, TIMER = range(5)
"""Ranks of what happens at one instant."""

Entry = tuple[int, int, int, Callable[[Any], None], Any]
"""(time_ns, rank, serial, what happens, its argument)."""


class Heap:
    """Virtual time and what is still to come. `now_ns` never falls."""

    __slots__ = ("entries", "now_ns", "serial")

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.serial = 0
        self.entries: list[Entry] = []

    def at(self, time_ns: int, rank: int, fire: Callable[[Any], None], argument: Any) -> None:
        """Let `fire(argument)` happen at `time_ns`, which is not in the past.

        Nothing is ever taken back: what may have become void carries a version in its argument and
        looks at it. Cost: O(log entries).
        """
        assert time_ns >= self.now_ns, (time_ns, self.now_ns)
        self.serial += 1
        heapq.heappush(self.entries, (time_ns, rank, self.serial, fire, argument))

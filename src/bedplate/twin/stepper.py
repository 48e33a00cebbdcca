"""A card's time: runs of steps, what happens between two steps, and stalls.

    boundary ─ plan ─► run of equal steps ─► boundary ─ work that stalls ─► boundary ─► ...

Between two steps (`boundary`) the owner of the card hears which sequences started and ended, work
that cannot happen during a step is done, and the next run is planned. The stepper is woken only at
boundaries where something may change. Each wake-up carries the version of the plan that it belongs
to; one of an older plan does nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from bedplate.twin.batch import Batch, Sequence
from bedplate.twin.heap import CARD, Heap
from bedplate.twin.steps import steps_until

Boundary = Callable[[list[Sequence], list[Sequence]], None]
"""Hears at a boundary who started and who ended."""


class Stepper:
    """Moves one batch through time.

    `limit`, where given, returns after how many steps of the run just planned the owner wants to be
    woken. `began_ns` is when the run under way began.
    """

    __slots__ = (
        "_boundary",
        "_heap",
        "_lasts_ns",
        "_limit",
        "_stall_began_ns",
        "_version",
        "_work",
        "at_boundary",
        "batch",
        "began_ns",
        "busy_ns",
        "stall_ns",
        "stalled",
    )

    def __init__(
        self, batch: Batch, heap: Heap, boundary: Boundary, limit: Callable[[], int] | None
    ) -> None:
        self.batch = batch
        self._heap = heap
        self._boundary = boundary
        self._limit = limit
        self._version = 0
        self._lasts_ns = 0.0
        self.busy_ns = self.stall_ns = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget all sequences and all work, those under way too."""
        self._version += 1
        self._work: deque[Callable[[], bool]] = deque()
        self.at_boundary = False
        self.stalled = False
        self._stall_began_ns = 0
        self.began_ns = 0.0
        self.batch.clear()

    def stop(self) -> None:
        """End in the middle of a step: the run is cut to the steps that are done."""
        self._version += 1
        past_ns = self._heap.now_ns - (self._stall_began_ns if self.stalled else self.began_ns)
        batch = self.batch
        if self.stalled:
            self.stall_ns += past_ns
        elif batch.run_steps:
            done = steps_until(past_ns, batch.first_ns, batch.growth_ns) - 1
            batch.cut(min(max(done, 0), batch.run_steps))
        else:
            return
        self.busy_ns += past_ns

    def disturb(self) -> None:
        """Something may change the batch: let the run end with the step that is under way."""
        if self.at_boundary or self.stalled:
            return
        batch = self.batch
        now_ns = self._heap.now_ns
        if batch.run_steps == 0:
            if now_ns >= self.began_ns + 1:  # else a step ended in this very nanosecond
                self.began_ns = float(now_ns)
            self._between_steps([], [])
            return
        done = steps_until(now_ns - 1 - self.began_ns, batch.first_ns, batch.growth_ns)
        if done == 0:
            batch.cut(0)
            self._version += 1
            self._between_steps([], [])
        elif done < batch.run_steps:
            batch.cut(done)
            self._schedule()

    def between_steps(self, work: Callable[[], bool]) -> None:
        """Do some work at the next boundary; True from it stalls the card until `end_stall`."""
        self._work.append(work)
        self.disturb()

    def end_stall(self, answer: Callable[[], None]) -> None:
        """Give the answer of the work that stalled the card, then go on."""
        past_ns = self._heap.now_ns - self._stall_began_ns
        self.stall_ns += past_ns
        self.busy_ns += past_ns
        self.stalled = False
        self.began_ns = float(self._heap.now_ns)
        self.at_boundary = True
        answer()
        self._between_steps([], [])

    def _schedule(self) -> None:
        self._version += 1
        self._lasts_ns = lasts_ns = self.batch.duration_ns()
        self._heap.at(math.ceil(self.began_ns + lasts_ns), CARD, self._run_over, self._version)

    def _run_over(self, version: int) -> None:
        if version != self._version:
            return
        self.began_ns += self._lasts_ns
        self.busy_ns += self._lasts_ns
        started: list[Sequence] = []
        ended: list[Sequence] = []
        self.batch.advance(started, ended)
        self._between_steps(started, ended)

    def _between_steps(self, started: list[Sequence], ended: list[Sequence]) -> None:
        self.at_boundary = True
        self._boundary(started, ended)
        while self._work and not self.stalled:
            self._stall_began_ns = self._heap.now_ns
            self.stalled = self._work.popleft()()
        self.at_boundary = False
        if not self.stalled and self.batch.plan():
            if self._limit is not None:
                self.batch.cut(self._limit())
            self._schedule()

"""A card's time: runs of steps, what happens between two steps, and stalls.

    boundary ─ plan ─► run of equal steps ─► boundary ─ work that stalls ─► boundary ─► ...

Between two steps (`boundary`) the owner of the card hears which sequences started and ended, work
that cannot happen during a step is done, and the next run is planned. The stepper is woken only at
boundaries where something may change. Each wake-up carries the version of the plan that it belongs
to; one of an older plan does nothing.

Cards that share processors (`Host`) slow one another down: a run is planned in the time of a card
alone, and passes at the pace of the moment.
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


class Host:
    """Cards that share processors: each takes `contention` longer for each other that computes."""

    __slots__ = ("_busy", "_contention", "_members")

    def __init__(self, contention: float) -> None:
        self._contention = contention
        self._members: list[Stepper] = []
        self._busy = 0

    def join(self, stepper: Stepper) -> None:
        """Add a card, which computes nothing yet."""
        self._members.append(stepper)

    def tell(self, stepper: Stepper, *, computing: bool) -> None:
        """Hear whether a card computes now, and change the pace of all if that is news."""
        if stepper.computing == computing:
            return
        stepper.computing = computing
        self._busy += 1 if computing else -1
        pace = 1.0 + self._contention * max(0, self._busy - 1)
        for member in self._members:
            member.set_pace(pace)


class Stepper:
    """Moves one batch through time.

    `limit`, where given, returns after how many steps of the run just planned the owner wants to be
    woken. `began_ns` is when the run under way began, or last changed its pace.
    """

    __slots__ = (
        "_boundary",
        "_done_ns",
        "_heap",
        "_host",
        "_lasts_ns",
        "_limit",
        "_pace",
        "_stall_began_ns",
        "_version",
        "_work",
        "at_boundary",
        "batch",
        "began_ns",
        "busy_ns",
        "computing",
        "stall_ns",
        "stalled",
    )

    def __init__(
        self,
        batch: Batch,
        heap: Heap,
        boundary: Boundary,
        limit: Callable[[], int] | None,
        host: Host | None,
    ) -> None:
        self.batch = batch
        self._host = host
        self.computing = False
        self._pace = 1.0
        if host is not None:
            host.join(self)
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
        self._done_ns = 0.0
        self.batch.clear()
        self._tell_host(computing=False)

    def _tell_host(self, *, computing: bool) -> None:
        if self._host is not None:
            self._host.tell(self, computing=computing)

    def worked_ns(self, time_ns: float) -> float:
        """Return how much of the run under way is done by then, in the time of a card alone."""
        return self._done_ns + (time_ns - self.began_ns) / self._pace

    def set_pace(self, pace: float) -> None:
        """Let what is left of the run, and all to come, take `pace` times as long as alone."""
        if not self.computing or self.at_boundary or self.stalled:
            self._pace = pace
            return
        now_ns = self._heap.now_ns
        self._done_ns = self.worked_ns(now_ns)
        self.busy_ns += now_ns - self.began_ns
        self.began_ns = float(now_ns)
        self._pace = pace
        self._schedule()

    def stop(self) -> None:
        """End in the middle of a step: the run is cut to the steps that are done."""
        self._version += 1
        past_ns = self._heap.now_ns - (self._stall_began_ns if self.stalled else self.began_ns)
        batch = self.batch
        if self.stalled:
            self.stall_ns += past_ns
        elif batch.run_steps:
            worked_ns = self.worked_ns(self._heap.now_ns)
            done = steps_until(worked_ns, batch.first_ns, batch.growth_ns) - 1
            batch.cut(min(max(done, 0), batch.run_steps))
        else:
            return
        self.busy_ns += past_ns
        self._tell_host(computing=False)

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
        done = steps_until(self.worked_ns(now_ns - 1), batch.first_ns, batch.growth_ns)
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
        self._lasts_ns = self.batch.duration_ns()
        end_ns = max(self._heap.now_ns, math.ceil(self.began_ns + self._left_ns()))
        self._heap.at(end_ns, CARD, self._run_over, self._version)

    def _left_ns(self) -> float:
        """Return how long the run goes on after `began_ns`, at its pace."""
        return (self._lasts_ns - self._done_ns) * self._pace

    def _run_over(self, version: int) -> None:
        if version != self._version:
            return
        left_ns = self._left_ns()
        self.began_ns += left_ns
        self.busy_ns += left_ns
        self._done_ns = 0.0
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
        batch = self.batch
        busy = self.stalled or bool(batch.prompts) or batch.decoding > 0
        self._tell_host(computing=busy)
        self.at_boundary = False
        if not self.stalled and batch.plan():
            if self._limit is not None:
                batch.cut(self._limit())
            self._schedule()

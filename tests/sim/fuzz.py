"""One seed of the real core: world, checkers, the core's own invariants, and a restored shadow."""

from __future__ import annotations

import json
import random

from bedplate.core import invariants
from bedplate.core.actions import Action
from bedplate.core.base import Base
from bedplate.core.events import Event
from bedplate.core.snapshot import restore, snapshot
from tests.sim.checkers import Checkers, CheckFailed
from tests.sim.options import Options, draw
from tests.sim.world import Result, World

INVARIANTS_EVERY = 16


class Watched:
    """The core, its invariants asserted now and then, and after a while a twin restored from it."""

    def __init__(self, options: Options) -> None:
        self.base = Base()
        self.shadow: Base | None = None
        self.steps = 0
        rng = random.Random(f"shadow {options.seed}")
        self.snapshot_at = rng.randint(1, 1500) if options.shadow else -1

    @property
    def digest(self) -> bytes:
        """The core's."""
        return self.base.digest

    def handle(self, now_ns: int, event: Event) -> tuple[Action, ...]:
        """Take one step; the shadow must take the same."""
        if self.steps == self.snapshot_at:
            self.shadow = restore(json.loads(json.dumps(snapshot(self.base))))
        self.steps += 1
        actions = self.base.handle(now_ns, event)
        if self.steps % INVARIANTS_EVERY == 0:
            invariants.check(self.base)
        if self.shadow is not None:
            again = self.shadow.handle(now_ns, event)
            if again != actions or self.shadow.digest != self.base.digest:
                raise CheckFailed("snapshot", f"restored core: {again}, first: {actions}")
        return actions


def run_seed(seed: int) -> Result:
    """Run one seed to its end.

    Raises:
        CheckFailed: a property does not hold.
        InvariantViolation: the core's own assertion does not hold.
    """
    options = draw(seed)
    core = Watched(options)
    result = World(options, core, Checkers()).run()
    invariants.check(core.base)
    return result

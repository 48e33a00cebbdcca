"""A core that is surely right passes: world and checkers raise no false alarm."""

from __future__ import annotations

import pytest

from tests.sim.checkers import Checkers, all_checks
from tests.sim.checks_breakers import Breakers
from tests.sim.checks_budgets import Budgets
from tests.sim.checks_reserves import Floor, Kept, OnCards
from tests.sim.naive import Naive
from tests.sim.options import draw
from tests.sim.world import World

KINDS = [kind for kind in all_checks() if kind not in (Budgets, Breakers, OnCards, Kept, Floor)]
"""Naive knows no budgets, no breakers, no limits of KV on cards, no reserves."""


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_naive_core_passes_every_check(seed: int) -> None:
    result = World(draw(seed), Naive(), Checkers(KINDS)).run()
    assert result.turns > 0

from __future__ import annotations

from itertools import product

import pytest

from bench.bounds.eviction import cheapest
from bench.retention.orders import (
    Farthest,
    Guarded,
    LeastRecent,
    ReleaseOnCompletion,
    ShortestFirst,
    guarded_density,
)
from bench.retention.part import ORDERS, ratios_of
from bench.retention.part import Case as Draw
from bench.retention.regimes import LINEAR, LONG_30, MILD, QUADRATIC, Drawn, Gap, Running, draw
from bench.retention.replay import least, replay

NOTHING = Drawn((), (), 0)


def _load() -> Drawn:
    """Two idle contexts of 40 and 60 tokens, and a turn of 50 that needs the room of one.

    a ──40── gap ........................ 9 ──
    b ──60── gap ............ 5 ──
    c              3 ──50──4
    """
    turns = (
        Running(0, 0.0, 1.0, 40),
        Running(1, 0.5, 2.0, 60),
        Running(2, 3.0, 4.0, 50),
        Running(1, 5.0, 6.0, 60),
        Running(0, 9.0, 10.0, 40),
    )
    gaps = (Gap(0, "slow", 1.0, 9.0, 40), Gap(1, "quick", 2.0, 5.0, 60))
    return Drawn(turns, gaps, 120)


def test_each_order_pays_for_what_it_dropped() -> None:
    load = _load()
    costs = {
        order.__name__: replay(load, order(load, NOTHING), LINEAR).cost
        for order in (LeastRecent, ShortestFirst, Farthest, ReleaseOnCompletion)
    }
    # 50 + 40 + 60 is 30 over: the older (a, 40), the shorter (a), the later to return (a); or both.
    assert costs == {
        "LeastRecent": 40,
        "ShortestFirst": 40,
        "Farthest": 40,
        "ReleaseOnCompletion": 100,
    }
    assert least(load, LINEAR, integral=True) == pytest.approx(40)
    assert least(load, LINEAR, integral=False) == pytest.approx(30)


def test_a_context_that_came_back_is_not_in_the_way() -> None:
    load = _load()._replace(kv_tokens=150)
    assert replay(load, LeastRecent(load, NOTHING), LINEAR).misses == 0
    assert least(load, LINEAR, integral=True) == 0


@pytest.mark.parametrize("form", [LINEAR, QUADRATIC])
def test_no_order_beats_the_optimum(form: str) -> None:
    ratios = ratios_of(Draw(MILD, form, 3))
    assert set(ratios) == {*ORDERS, "optimum by blocks"}
    assert all(value >= 1 - 1e-6 for name, value in ratios.items() if name in ORDERS)
    assert ratios["optimum by blocks"] <= 1 + 1e-6
    assert ratios["release"] == max(ratios.values())


def test_draws_repeat_and_differ_by_seed() -> None:
    assert draw(LONG_30, 1) == draw(LONG_30, 1)
    assert draw(LONG_30, 1) != draw(LONG_30, 2)
    long = [gap for gap in draw(LONG_30, 1).gaps if gap.tool.startswith("long")]
    assert 0.2 < len(long) / len(draw(LONG_30, 1).gaps) < 0.4


def test_guarded_choices_cost_at_most_twice_the_least() -> None:
    for sizes in product((1, 2, 5, 9), repeat=4):
        weights = [size * size for size in sizes]
        for need in (1, sum(sizes) // 3, sum(sizes) // 2, sum(sizes)):
            names = list(range(4))
            chosen = guarded_density(
                names, dict(enumerate(sizes)), dict(enumerate(map(float, weights))), need
            )
            best = cheapest(sizes, weights, need)
            assert best is not None
            assert sum(sizes[one] for one in chosen) >= need
            assert sum(weights[one] for one in chosen) <= 2 * best.cost


def test_guarded_is_an_order_like_the_others() -> None:
    load = _load()
    assert replay(load, Guarded(load, NOTHING), LINEAR).cost == 40

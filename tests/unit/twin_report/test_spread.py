from __future__ import annotations

import statistics

import pytest

from bedplate.twin.spread import quantile, spread


def test_figures_of_one_to_a_hundred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    found = spread(values)
    assert found is not None
    assert (found.n, found.mean, found.p50, found.most) == (100, 50.5, 50.5, 100.0)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert found.p90 == pytest.approx(cuts[89])
    assert found.p95 == pytest.approx(cuts[94])
    assert found.p99 == pytest.approx(cuts[98])


def test_nothing_has_no_figures() -> None:
    assert spread([]) is None


def test_one_value_is_all_of_them() -> None:
    assert spread([3.0]) == (1, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert quantile([3.0], 0.99) == 3.0

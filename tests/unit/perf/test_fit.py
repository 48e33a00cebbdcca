from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bedplate.perf.fit import (
    MovePoint,
    StepFit,
    StepPoint,
    Steps,
    fit_error,
    fit_move,
    fit_steps,
    held_out_errors,
    move_ns,
    prefill_steps,
)
from bedplate.perf.profile import Batching, LinearCost

RULE = Batching(token_budget=128)
COMPUTE = LinearCost(2e6, 0.0, 8e6, 40e6, 300.0, 2_000.0)
"""A processor: arithmetic hides everything."""
MEMORY = LinearCost(0.5e6, 12e6, 0.02e6, 0.05e6, 3.0, 40.0)
"""An accelerator: reading the weights hides the arithmetic of up to 600 tokens."""
BEGIN_NS = 3e6
CELL_NS = 25.0


def time_of(cost: LinearCost, point: StepPoint) -> float:
    """Add the time of each step up, one by one."""
    total = BEGIN_NS * point.begins + CELL_NS * point.cells
    total += cost.pair_ns * point.pairs + cost.context_ns * point.context_tokens
    for steps in point.steps:
        work = cost.prompt_ns * steps.prompt_tokens + cost.sequence_ns * steps.sequences
        total += steps.count * (cost.launch_ns + max(cost.weights_ns, work))
    return total


def timed(
    cost: LinearCost,
    kind: str,
    steps: tuple[Steps, ...],
    *,
    pairs: float = 0.0,
    context: float = 0.0,
    cells: float = 0.0,
) -> StepPoint:
    begins = 0 if kind == "decode" else 1
    point = StepPoint(kind, 1.0, steps, pairs, context, cells=cells, begins=begins)
    return StepPoint(kind, time_of(cost, point), steps, pairs, context, cells=cells, begins=begins)


def points(cost: LinearCost, rule: Batching = RULE) -> list[StepPoint]:
    """Return what a calibration would see of a card, without noise."""
    found = []
    for at, new in enumerate((12, 17, 24, 33, 47, 66, 94, 150, 260, 420, 700, 1_500)):
        cached, idle = 200 * (at % 5), 900 * (at % 3)
        work = prefill_steps(rule, new, cached, 0)
        cells = work.cells + new * idle
        found.append(timed(cost, "prefill", work.steps, pairs=work.pairs, cells=cells))
    for at, size in enumerate((1, 1, 1, 1, 2, 3, 4, 6, 8, 8)):
        context, idle = 60.0 * size * (1 + at * at), 700 * (at % 4)
        steps = (Steps(20, 0, size),)
        cells = 20 * size * (context + idle)
        found.append(timed(cost, "decode", steps, context=20 * context, cells=cells))
    for beside, new in ((1, 200), (3, 300), (1, 500), (3, 900)):
        work = prefill_steps(rule, new, 0, beside)
        beside_steps = (*work.steps, Steps(0.5, 0, beside))
        found.append(
            timed(
                cost, "mixed", beside_steps, pairs=work.pairs, context=90.0 * new, cells=work.cells
            )
        )
    return found


def noisy(exact: Sequence[StepPoint], share: float, *, seed: int) -> list[StepPoint]:
    dice = random.Random(seed)
    return [
        replace(point, time_ns=point.time_ns * (1 + dice.uniform(-share, share))) for point in exact
    ]


def spoiled(exact: Sequence[StepPoint], *at: int) -> list[StepPoint]:
    """Return the points, some of them measured while something else ran."""
    return [
        replace(point, time_ns=point.time_ns * 3) if index in at else point
        for index, point in enumerate(exact)
    ]


def worst(fit: StepFit, cost: LinearCost, seen: Sequence[StepPoint]) -> float:
    """Return the largest error of a fit against the truth, over the work of these points."""
    return max(abs(fit.time_ns(point) / time_of(cost, point) - 1) for point in seen)


@pytest.mark.parametrize("cost", [COMPUTE, MEMORY])
def test_points_without_noise_give_their_times_again(cost: LinearCost) -> None:
    rule = RULE if cost is COMPUTE else Batching(token_budget=2_048)
    exact = points(cost, rule)
    assert worst(fit_steps(exact), cost, exact) < 0.002


def test_the_constants_of_a_processor_are_found() -> None:
    fit = fit_steps(points(COMPUTE))
    assert fit.cost.prompt_ns == pytest.approx(COMPUTE.prompt_ns, rel=0.01)
    assert fit.cost.sequence_ns == pytest.approx(COMPUTE.sequence_ns, rel=0.02)
    assert fit.cost.pair_ns == pytest.approx(COMPUTE.pair_ns, rel=0.05)
    assert fit.cost.context_ns == pytest.approx(COMPUTE.context_ns, rel=0.05)
    assert fit.cell_ns == pytest.approx(CELL_NS, rel=0.1)


def test_the_constants_of_an_accelerator_are_found() -> None:
    rule = Batching(token_budget=2_048)
    fit = fit_steps(points(MEMORY, rule))
    floor = fit.cost.launch_ns + fit.cost.weights_ns
    assert floor == pytest.approx(MEMORY.launch_ns + MEMORY.weights_ns, rel=0.01)
    assert fit.cost.prompt_ns == pytest.approx(MEMORY.prompt_ns, rel=0.05)
    assert fit.cost.context_ns == pytest.approx(MEMORY.context_ns, rel=0.05)
    # A decoding sequence never costs less than a prompt token, even where weights hide both.
    assert fit.cost.sequence_ns >= fit.cost.prompt_ns


def test_noise_moves_the_fit_by_no_more_than_itself() -> None:
    exact = points(COMPUTE)
    for seed in range(2):
        assert worst(fit_steps(noisy(exact, 0.05, seed=seed)), COMPUTE, exact) < 0.1


def test_outliers_do_not_bend_the_fit() -> None:
    exact = points(COMPUTE)
    fit = fit_steps(spoiled(noisy(exact, 0.02, seed=1), 3, 14, 20))
    errors = sorted(abs(fit.time_ns(point) / point.time_ns - 1) for point in exact)
    assert errors[len(errors) // 2] < 0.03
    assert errors[-1] < 0.15


def test_a_card_without_a_shared_cache_has_no_cost_of_cells() -> None:
    own = [
        replace(point, time_ns=point.time_ns - CELL_NS * point.cells, cells=0.0)
        for point in points(COMPUTE)
    ]
    assert fit_steps(own).cell_ns == pytest.approx(0.0, abs=1.0)


def test_constants_have_few_digits() -> None:
    fit = fit_steps(noisy(points(COMPUTE), 0.05, seed=4))
    assert fit.begin_ns == float(f"{fit.begin_ns:.6g}")


def test_a_prompt_in_steps() -> None:
    work = prefill_steps(Batching(token_budget=10), 25, 100, 2)
    assert work.steps == (Steps(3, 8, 2), Steps(1, 1, 2))
    assert work.pairs == sum(100 + at for at in range(1, 26))
    assert work.cells == 8 * 100 + 8 * 108 + 8 * 116 + 1 * 124


def test_a_prompt_that_shares_no_step() -> None:
    rule = Batching(token_budget=10, mixed=False)
    assert prefill_steps(rule, 20, 0, 5).steps == (Steps(2, 10, 0),)


def moves(base_ns: float, byte_ns: float) -> list[MovePoint]:
    return [
        MovePoint("store", base_ns + byte_ns * size, size)
        for size in (500_000, 1_500_000, 4_000_000, 9_000_000, 11_000_000, 13_000_000)
    ]


def test_a_move_is_a_base_and_a_rate() -> None:
    cost = fit_move(moves(4e6, 1.25), stalls=True)
    assert cost.stalls
    assert cost.base_ns == pytest.approx(4e6, rel=0.01)
    assert cost.byte_ns == pytest.approx(1.25, rel=0.01)
    assert move_ns(cost, moves(4e6, 1.25)[2]) == pytest.approx(9e6, rel=0.001)


def test_a_move_without_a_base() -> None:
    cost = fit_move(moves(0.0, 2.0), stalls=False)
    assert cost.base_ns == pytest.approx(0.0, abs=2e4)
    assert cost.byte_ns == pytest.approx(2.0, rel=0.01)


def test_held_out_points_are_judged_by_fits_that_have_not_seen_them() -> None:
    exact = points(COMPUTE)
    seen_by_fits: list[set[int]] = []

    def fit(seen: Sequence[StepPoint]) -> object:
        seen_by_fits.append({id(point) for point in seen})

        def predict(point: StepPoint) -> float:
            assert id(point) not in seen_by_fits[-1]
            return 1.1 * point.time_ns

        return predict

    errors = held_out_errors(exact, fit, seed=3)  # type: ignore[arg-type]
    assert {kind: error.points for kind, error in errors.items()} == {
        "prefill": 12,
        "decode": 10,
        "mixed": 4,
    }
    assert all(error.mean == pytest.approx(0.1) for error in errors.values())
    assert len(seen_by_fits) == 4
    assert {len(seen) for seen in seen_by_fits} <= {19, 20}


def test_the_held_out_error_is_that_of_the_noise() -> None:
    errors = held_out_errors(
        noisy(points(COMPUTE), 0.1, seed=2), lambda seen: fit_steps(seen).time_ns, seed=0
    )
    for error in errors.values():
        assert 0.01 < error.mean < 0.15
    again = held_out_errors(
        noisy(points(COMPUTE), 0.1, seed=2), lambda seen: fit_steps(seen).time_ns, seed=0
    )
    assert again == errors


def test_errors_are_summed_up() -> None:
    error = fit_error([0.1, 0.0, 0.3, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert (error.points, error.mean, error.median, error.p90) == (10, 0.45, 0.45, 0.8)

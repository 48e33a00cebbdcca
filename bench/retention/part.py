"""Part `retention`: what each eviction order computes again, as a multiple of the optimum."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from bench.harness.claims import Measured, Spec
from bench.harness.run import Json, Part, Run
from bench.retention import orders
from bench.retention.regimes import LINEAR, LONG_30, LONG_50, MILD, QUADRATIC, Regime, draw
from bench.retention.replay import least, replay
from bench.schedule_twin.cells import spread_out

LEARNED = "learned"
ORDERS: dict[str, type[orders.Ranked]] = {
    LEARNED: orders.Learned,
    "learned, no history": orders.Cold,
    "guarded": orders.Guarded,
    "true distributions": orders.Oracle,
    "lru": orders.LeastRecent,
    "shortest first": orders.ShortestFirst,
    "release": orders.ReleaseOnCompletion,
    "farthest use": orders.Farthest,
    "farthest by size": orders.FarthestSized,
}


class Case(NamedTuple):
    """One draw."""

    regime: Regime
    form: str
    seed: int


def measure(run: Run) -> Mapping[str, Measured]:
    """Replay every order on every draw."""
    seeds = run.seeds[:2] if run.quick else (*run.seeds, run.seeds[-1] + 1)
    cases = [
        Case(regime, form, seed)
        for regime in (MILD, LONG_30, LONG_50)
        for form in (LINEAR, QUADRATIC)
        for seed in seeds
    ]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for case, ratios in zip(cases, spread_out(ratios_of, cases), strict=True):
        found.setdefault((case.regime.name, case.form), []).append(ratios)
    table: dict[str, Json] = {}
    for (regime, form), rows in found.items():
        means = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        text = ", ".join(f"{name} {value:.2f}" for name, value in means.items())
        run.figure(f"computed again ÷ optimum, {regime}, {form}", text)
        run.say(f"{regime}, {form}: {text}")
        table[f"{regime}, {form}"] = dict(means)
    run.rounds["retention"] = table
    mild = _worst(found, (MILD,))
    long = _worst(found, (LONG_30, LONG_50))
    count = len(seeds)
    return {
        "retention_mild": Measured(mild, count, "offline optimum"),
        "retention_long_tools": Measured(long, count, "offline optimum"),
    }


def ratios_of(case: Case) -> dict[str, float]:
    """Return what each order pays on one draw, as a multiple of what no choice is below."""
    drawn = draw(case.regime, case.seed)
    best = least(drawn, case.form, integral=True)
    found = {
        name: replay(drawn, make(drawn, draw(case.regime, -case.seed)), case.form).cost / best
        for name, make in ORDERS.items()
    }
    found["optimum by blocks"] = least(drawn, case.form, integral=False) / best
    return found


def _worst(
    found: Mapping[tuple[str, str], list[dict[str, float]]], regimes: tuple[Regime, ...]
) -> float:
    """Return the learned order's mean ratio in the regime and form of cost where it is worst."""
    names = {regime.name for regime in regimes}
    return max(
        statistics.fmean(row[LEARNED] for row in rows)
        for (name, _), rows in found.items()
        if name in names
    )


PART = Part(
    "retention",
    (
        Spec(
            "retention_mild",
            "ratio",
            "<= 1.35",
            "tokens computed again over the offline optimum, estimates learned; few long tools",
        ),
        Spec(
            "retention_long_tools",
            "ratio",
            "<= 1.75",
            "the same with 30 and 50 % of tool gaps minutes long; the worse of both",
        ),
    ),
    measure,
)

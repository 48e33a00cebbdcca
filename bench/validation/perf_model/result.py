"""The outcome of a validation: the fit, what was left out, and the errors of both."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bedplate.perf.fitted import Error
from bench.harness.results import ROOT
from bench.harness.run import BenchError
from bench.validation.perf_model.fit import Parameters, Vector, fit, left_out
from bench.validation.perf_model.predict import Said, say, say_plain
from bench.validation.perf_model.rows import Row, read

ASCEND = "ascend"


class Outcome(NamedTuple):
    """`seen`: what the fit to all rows says of them; `held`: left out; `plain`: bare roofline."""

    rows: list[Row]
    reasons: dict[str, str]
    parameters: Parameters
    values: Vector
    seen: list[Said]
    held: list[Said]
    plain: list[Said]


def measured() -> Path:
    """Return the table of published measurements.

    Raises:
        BenchError: it is not there.
    """
    beside = ROOT.parent / "shared" / "data"
    path = Path(os.environ.get("BEDPLATE_DATA", beside)).parent / "perf" / "measured.csv"
    if not path.exists():
        raise BenchError(f"no {path}; set BEDPLATE_DATA to the data folder beside its folder perf")
    return path


ALL_MODELS = 1_000


def validate(*, models: int = ALL_MODELS, processes: int = 0) -> Outcome:
    """Fit all rows, and each model's rows without it.

    Args:
        models: How many models to leave out in turn, those with the most rows first.
        processes: How many fits run at a time; 0 for one a core.

    Raises:
        BenchError: the measurements are not there.
    """
    rows, reasons = read(measured())
    parameters = Parameters.of(rows)
    values = fit(rows, parameters)
    cores = processes or len(os.sched_getaffinity(0))
    held = left_out(rows, parameters, models=models, processes=cores)
    seen = say(rows, parameters.constants(values, rows))
    return Outcome(rows, reasons, parameters, values, seen, held, say_plain(rows))


def chosen(said: Iterable[Said], quantities: Sequence[str], *, ascend: bool) -> list[Said]:
    """Return what was said of some quantities, on Ascend or on the other cards."""
    return [
        one
        for one in said
        if one.quantity in quantities and one.row.family.startswith(ASCEND) == ascend
    ]


def error(said: Sequence[Said]) -> Error:
    """Return the errors of what was answered.

    Raises:
        BenchError: nothing was.
    """
    found = [one.error for one in said if one.error is not None]
    if not found:
        raise BenchError("not one row was answered")
    return Error(len(found), statistics.mean(found), statistics.median(found))


def answered(rows: Sequence[Row], said: Sequence[Said]) -> float:
    """Return the share of rows of which every quantity was answered."""
    silent = {one.row.id for one in said if one.predicted is None}
    return 1 - len(silent) / len(rows)

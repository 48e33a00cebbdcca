"""The step-time model: errors on models that its fit has not seen, others beside it, and speed."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.validation.perf_model.parts import ERRORS, SPEED

BENCH = Bench(
    name="perf-model",
    summary="TTFT and TPOT of published measurements, each model left out of the fit in turn",
    parts=(ERRORS, SPEED),
)

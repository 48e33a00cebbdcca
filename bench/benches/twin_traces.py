"""The twin on every real trace, by the command that users run."""

from __future__ import annotations

from bench.harness.claims import Spec
from bench.harness.run import Bench, Part
from bench.validation import traces

BENCH = Bench(
    name="twin-traces",
    summary="bedplate sim on every real trace: each to its end, with sums that fit",
    parts=(
        Part(
            "traces",
            (
                Spec(
                    "traces_simulated",
                    "traces",
                    ">= 6",
                    "real traces of different forms that ran to their end, all turns accounted for",
                ),
            ),
            traces.measure,
        ),
    ),
)

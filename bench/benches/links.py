"""Collectives from link class and ranks: errors on rows that the fit has not seen."""

from __future__ import annotations

from collections.abc import Mapping

from bench.harness.claims import Measured, Spec
from bench.harness.run import Bench, Part, Run
from bench.validation.links.held_out import KINDS, LEFT_OUT, in_sample, left_out, measured


def measure(run: Run) -> Mapping[str, Measured]:
    """Fit with each rank count of each class left out, and predict it; other ways beside it."""
    data = measured()
    seen = in_sample(data)
    run.say(f"links: {len(data)} rows; in sample {seen.median:.1%}")
    run.rounds["in_sample"] = {"median": seen.median, "p90": seen.p90, "rows": seen.rows}
    beside = [f"in sample {seen.median:.1%}"]
    found = {}
    for how in ("ranks",) if run.quick else LEFT_OUT:
        found[how] = left_out(data, how)
        one = found[how]
        run.say(f"links: left out by {how}: {one.fits} fits, {one.median:.1%}")
        run.rounds[how] = {"median": one.median, "p90": one.p90, "rows": one.rows, "fits": one.fits}
        run.figure(
            f"links, left out by {how}",
            f"median {one.median:.1%}, one in ten above {one.p90:.1%},"
            f" {one.rows} of {len(data)} rows; "
            + ", ".join(f"{kind} {one.of(kind):.1%}" for kind in KINDS),
        )
        if how != "ranks":
            beside.append(f"left out by {how} {one.median:.1%}")
    claim = found["ranks"]
    value = Measured(claim.median * 100, len(claim.values), ", ".join(beside))
    return {"links_error": value}


BENCH = Bench(
    name="links",
    summary="times of collectives from link class and ranks, on rank counts left out of the fit",
    parts=(
        Part(
            "collectives",
            (
                Spec(
                    "links_error",
                    "%",
                    "<= 12",
                    "median error of a collective's time at a rank count that its class was not"
                    " fitted on, 4 KiB to 256 MiB",
                ),
            ),
            measure,
        ),
    ),
)

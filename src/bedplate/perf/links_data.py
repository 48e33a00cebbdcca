"""The rows of measured and stated links, as they lie in `data/links.csv`, one source each.

Rows are evidence. Nothing at run time computes from them but `links.link`; the constants that
collectives use are fitted on them by `python -m bench.validation.links`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

UNKNOWN = "unknown"
FITTED = "measured, fitted"
COLUMNS = (
    "class",
    "link",
    "topology",
    "op",
    "nodes",
    "ranks",
    "start_ns",
    "gb_per_s",
    "whole_ns",
    "fit_error",
    "size_min_bytes",
    "size_max_bytes",
    "peak_gb_per_s",
    "efficiency",
    "evidence",
    "notes",
    "source",
)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One published row: time = start-up + size ÷ rate. None is unknown.

    `start_ns` is (lowest, highest), the same number twice where the source gives one. `gb_per_s` is
    the rate of the payload, 10^9 bytes a second: what each rank holds before an all-reduce, an
    all-to-all or a reduce-scatter, and after an all-gather. `whole_ns` is the time of one whole
    operation where only that was published. `fit_error` is the median error of the fitted line
    against what was measured, over sizes from `size_min_bytes` to `size_max_bytes`.
    `peak_gb_per_s`: what one card's link carries in one direction. `nodes`: servers that the ranks
    lie on, evenly.
    """

    link_class: str
    link: str
    topology: str
    op: str
    nodes: int
    ranks: int | None
    start_ns: tuple[float, float] | None
    gb_per_s: float | None
    whole_ns: float | None
    fit_error: float | None
    size_min_bytes: int | None
    size_max_bytes: int | None
    peak_gb_per_s: float | None
    efficiency: float | None
    evidence: str
    notes: str
    source: str

    def time_ns(self, size_bytes: int) -> float:
        """Return what this row says of one size; only a row whose start-up and rate are known."""
        assert self.start_ns is not None
        assert self.gb_per_s is not None
        return sum(self.start_ns) / 2 + size_bytes / self.gb_per_s


@cache
def rows() -> tuple[LinkRow, ...]:
    """Return every row in the order of the file."""
    text = files("bedplate.perf").joinpath("data", "links.csv").read_text(encoding="utf-8")
    return tuple(_row(record) for record in csv.DictReader(text.splitlines()))


def _row(record: dict[str, str]) -> LinkRow:
    ranks, smallest, largest = (
        _number(record[name]) for name in ("ranks", "size_min_bytes", "size_max_bytes")
    )
    return LinkRow(
        link_class=record["class"],
        link=record["link"],
        topology=record["topology"],
        op=record["op"],
        nodes=int(record["nodes"]),
        ranks=None if ranks is None else int(ranks),
        start_ns=_range(record["start_ns"]),
        gb_per_s=_number(record["gb_per_s"]),
        whole_ns=_number(record["whole_ns"]),
        fit_error=_number(record["fit_error"]),
        size_min_bytes=None if smallest is None else int(smallest),
        size_max_bytes=None if largest is None else int(largest),
        peak_gb_per_s=_number(record["peak_gb_per_s"]),
        efficiency=_number(record["efficiency"]),
        evidence=record["evidence"],
        notes=record["notes"],
        source=record["source"],
    )


def _number(text: str) -> float | None:
    return None if text in {"", UNKNOWN} else float(text)


def _range(text: str) -> tuple[float, float] | None:
    if text in {"", UNKNOWN}:
        return None
    lowest, _, highest = text.partition("-")
    return float(lowest), float(highest or lowest)

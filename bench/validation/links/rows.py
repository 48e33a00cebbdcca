"""Write `src/bedplate/perf/data/links.csv` from the published table of link measurements.

    python -m bench.validation.links.rows ../shared/perf/links.csv

Every row is kept, with its source. What changes is the form: names of operations and classes, ns
and bytes as plain numbers, nodes and whole-operation times in columns of their own. A start-up that
the table gives as a bound ("<1") or not at all is unknown; one that it gives as a range stays one.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bedplate.perf.links_data import COLUMNS

TARGET = Path(__file__).parents[3] / "src" / "bedplate" / "perf" / "data" / "links.csv"

OPERATIONS = {
    "alltoall": "all_to_all",
    "alltoall dispatch": "dispatch",
    "sendrecv": "p2p",
    "send_recv": "p2p",
    "p2p model": "p2p",
    "RDMA p2p": "p2p",
    "RDMA p2p 64 B": "p2p",
    "RDMA write": "p2p",
    "TCP p2p": "p2p",
    "alltoall dispatch (normal)": "dispatch",
    "alltoall combine (normal)": "combine",
    "alltoall dispatch (low latency)": "dispatch",
    "alltoall combine (low latency)": "combine",
    "model": "any",
}

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RANGE = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?(?: one way.*)?")
_WHOLE = re.compile(r"(\d+(?:\.\d+)?) \(whole op\)")
_SIZES = re.compile(r"(\d+)-(\d+) ?(B|KiB|\(size column\))")
_NODES = re.compile(r"(\d+) node\(s\)")
_WORKERS = re.compile(r"(\d+) workers, (\d+) per node")

ADDED = (
    {
        "class": "cloudmatrix384_pool",
        "link": "UB",
        "topology": "an NPU reads pooled DRAM of its node",
        "op": "p2p",
        "nodes": "1",
        "ranks": "2",
        "start_ns": "1000",
        "gb_per_s": "151",
        "evidence": "paper, read as a digest",
        "notes": "512 B latency; 147 GB/s and 1,700 ns from another node, recalled",
        "source": "https://arxiv.org/abs/2506.12708",
    },
    {
        "class": "nvme_pcie3",
        "link": "NVMe, PCIe3 x4",
        "topology": "one SSD, queue depth 1",
        "op": "p2p",
        "nodes": "1",
        "ranks": "2",
        "start_ns": "92000-150000",
        "gb_per_s": "3.5",
        "evidence": "data sheet",
        "notes": "Micron 9200: latency to media of a 4 KB read, sequential read; writes 21 us",
        "source": "https://vdocument.in/9200-nvme-ssds-2-steady-state-as-defined-by-snia-solid-state-storage-performance.html",
    },
)
"""Rows that the published table does not have."""


def convert(row: Mapping[str, str]) -> dict[str, str]:
    """Return one row in the project's form.

    Raises:
        ValueError: a column holds something that this conversion does not know.
    """
    nodes, workers = _NODES.match(row["notes"]), _WORKERS.match(row["topology"])
    count = int(nodes[1]) if nodes else int(workers[1]) // int(workers[2]) if workers else 1
    name = re.sub(r"[^a-z0-9]+", "_", row["class"].lower()).strip("_")
    smallest, largest = _sizes(row["size_range"])
    start, whole = _start(row["alpha_us"])
    operation = OPERATIONS.get(row["op"], row["op"])
    return {
        "class": name + ("_network" if count > 1 else ""),
        "link": row["link"],
        "topology": row["topology"],
        "op": operation,
        "nodes": str(count),
        "ranks": row["ranks"] or "unknown",
        "start_ns": start,
        "gb_per_s": row["bandwidth_gbs_per_dir"] or "unknown",
        "whole_ns": whole,
        "fit_error": row["fit_rel_err"],
        "size_min_bytes": smallest,
        "size_max_bytes": largest,
        "peak_gb_per_s": row["raw_peak_gbs"] or "unknown",
        "efficiency": row["efficiency"] or "unknown",
        "evidence": "measured, fitted" if "fitted" in row["kind"] else row["kind"],
        "notes": _notes(row),
        "source": row["source"],
    }


def _notes(row: Mapping[str, str]) -> str:
    """Keep what the new form has no column for."""
    start = row["alpha_us"]
    said = "" if start in {"", "unknown"} or _NUMBER.fullmatch(start) else f"start-up: {start} us"
    variant = re.search(r"\((.*)\)", row["op"])
    return "; ".join(part for part in (variant[1] if variant else "", row["notes"], said) if part)


def _start(text: str) -> tuple[str, str]:
    """Return (start-up, time of the whole operation) in ns, each perhaps unknown or empty."""
    if whole := _WHOLE.fullmatch(text):
        return "unknown", _ns(whole[1])
    if text in {"", "unknown", "unknown here"} or text.startswith("<"):
        return "unknown", ""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read the start-up {text!r}")
    return _ns(found[1]) + (f"-{_ns(found[2])}" if found[2] else ""), ""


def _ns(microseconds: str) -> str:
    return (
        f"{float(microseconds) * 1000:g}"
        if float(microseconds) < 100
        else (f"{float(microseconds) * 1000:.0f}")
    )


def _sizes(text: str) -> tuple[str, str]:
    if not text:
        return "", ""
    found = _SIZES.match(text)
    if found is None:
        raise ValueError(f"cannot read the sizes {text!r}")
    unit = 1024 if found[3] == "KiB" else 1
    return str(int(found[1]) * unit), str(int(found[2]) * unit)


def main(arguments: list[str]) -> int:
    """Convert the file that is named and say how many rows it has."""
    if len(arguments) != 1:
        print("usage: python -m bench.validation.links.rows FILE", file=sys.stderr)
        return 2
    with Path(arguments[0]).open(encoding="utf-8", newline="") as file:
        rows = [convert(row) for row in csv.DictReader(file)]
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, *ADDED])
    print(f"{len(rows)} rows converted, {len(ADDED)} added: {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

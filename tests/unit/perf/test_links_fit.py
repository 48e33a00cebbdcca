"""Rows of links: their form, the fit on them, and that the stored constants are that fit."""

from __future__ import annotations

import csv
import math
import random
import statistics
from dataclasses import replace

import pytest

from bedplate.perf.links import find_class
from bedplate.perf.links_classes import FittedClass, StatedClass
from bedplate.perf.links_data import FITTED, LinkRow, rows
from bench.validation.links import held_out
from bench.validation.links.fit import SIZES, errors, fit, points
from bench.validation.links.rows import TARGET, convert
from bench.validation.links.stated import exchange, mesh_efficiency
from tests.fakes.datasets import dataset

PUBLISHED = {
    "link": "PCIe3 x16 + network",
    "class": "V100-PCIE-16GB",
    "topology": "PCIe host tree",
    "op": "alltoall",
    "ranks": "8",
    "alpha_us": "765.65",
    "bandwidth_gbs_per_dir": "0.4",
    "fit_rel_err": "0.118",
    "size_range": "1-262144 KiB",
    "raw_peak_gbs": "16",
    "efficiency": "0.022",
    "kind": "measured, fitted T=a+S/b",
    "notes": "2 node(s)",
    "source": "somewhere",
}


def test_a_published_row_in_the_form_of_the_project() -> None:
    found = convert(PUBLISHED)
    assert found["class"] == "v100_pcie_16gb_network"
    assert (found["op"], found["nodes"], found["ranks"]) == ("all_to_all", "2", "8")
    assert (found["start_ns"], found["gb_per_s"]) == ("765650", "0.4")
    assert (found["size_min_bytes"], found["size_max_bytes"]) == ("1024", str(256 << 20))
    assert (found["evidence"], found["source"]) == (FITTED, "somewhere")


@pytest.mark.parametrize(
    ("alpha", "start", "whole", "note"),
    [
        ("10-30 one way (RTT 20-60)", "10000-30000", "", "start-up: 10-30"),
        ("132 (whole op)", "unknown", "132000", "start-up: 132"),
        ("<1 (inter-node, added)", "unknown", "", "start-up: <1"),
        ("unknown here", "unknown", "", "start-up: unknown here"),
        ("", "unknown", "", ""),
        ("0.2", "200", "", ""),
    ],
)
def test_a_start_up_that_is_no_number_stays_what_it_is(
    alpha: str, start: str, whole: str, note: str
) -> None:
    found = convert({**PUBLISHED, "alpha_us": alpha})
    assert (found["start_ns"], found["whole_ns"]) == (start, whole)
    assert note in found["notes"]


def test_what_the_conversion_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read the start-up 'soon'"):
        convert({**PUBLISHED, "alpha_us": "soon"})
    with pytest.raises(ValueError, match="cannot read the sizes 'all'"):
        convert({**PUBLISHED, "size_range": "all"})


def test_the_file_holds_every_published_row() -> None:
    published = dataset("..", "perf", "links.csv")
    with published.open(encoding="utf-8", newline="") as file:
        expected = [convert(row) for row in csv.DictReader(file)]
    with TARGET.open(encoding="utf-8", newline="") as file:
        stored = list(csv.DictReader(file))
    assert len(expected) == 215
    assert stored[:215] == expected


def test_every_row_has_a_source() -> None:
    assert all(row.source for row in rows())
    assert sum(row.evidence == FITTED for row in rows()) == 159


def test_a_row_is_compared_inside_what_it_was_measured_on() -> None:
    row = next(row for row in rows() if row.size_max_bytes == 64 << 20)
    assert [point.size_bytes for point in points([row])] == [s for s in SIZES if s <= 64 << 20]


def made_up(seed: int) -> list[LinkRow]:
    """Return rows that follow the structure exactly: two classes, three operations, three ranks."""
    draw = random.Random(seed)
    crossings = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    model = next(row for row in rows() if row.evidence == FITTED)
    scale = {name: draw.uniform(0.5, 2) for name in ("fast", "slow")}
    factor = {op: draw.uniform(0.7, 1.5) for op in crossings}
    found = []
    for name, slow in scale.items():
        for op, turns in crossings.items():
            for ranks in (2, 4, 8):
                start = slow * factor[op] * (5000 + 900 * ranks)
                byte = slow * factor[op] * (1e-3 + 2e-3 * turns * (ranks - 1) / ranks)
                found.append(
                    replace(
                        model,
                        link_class=name,
                        op=op,
                        ranks=ranks,
                        start_ns=(start, start),
                        gb_per_s=1 / byte,
                    )
                )
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_fit_finds_a_structure_and_carries_it_to_ranks_it_has_not_seen(seed: int) -> None:
    made = made_up(seed)
    assert statistics.median(errors(fit(made), made)) < 0.01
    seen = [row for row in made if (row.link_class, row.ranks) != ("slow", 4)]
    unseen = [row for row in made if row not in seen]
    assert statistics.median(errors(fit(seen), unseen)) < 0.03


def test_an_error_is_that_of_the_time() -> None:
    made = made_up(1)[:1]
    fitted = fit(made_up(1))
    slower = replace(made[0], start_ns=(0.0, 0.0), gb_per_s=made[0].gb_per_s)
    size = SIZES[0]
    predicted = fitted[slower.link_class].time_ns(slower.op, 2, 1, size)
    assert errors(fitted, [slower])[0] == pytest.approx(abs(predicted / slower.time_ns(size) - 1))


def test_what_is_left_out_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up(1)
    alone = replace(made[0], link_class="alone")
    asked: list[tuple[list[LinkRow], list[LinkRow]]] = []

    def fake_fit(seen: list[LinkRow]) -> list[LinkRow]:
        return seen

    def fake_errors(seen: list[LinkRow], group: list[LinkRow]) -> list[float]:
        asked.append((seen, group))
        return [0.1] * len(points(group))

    monkeypatch.setattr(held_out, "fit", fake_fit)
    monkeypatch.setattr(held_out, "errors", fake_errors)
    found = held_out.left_out([*made, alone], "ranks")
    assert found.rows == len(made)  # nothing else is known of the class that has one row
    assert found.fits == 6
    assert len(found.kinds) == len(found.values)
    for seen, group in asked:
        taken = {(row.link_class, row.ranks) for row in group}
        assert len(taken) == 1
        assert not taken & {(row.link_class, row.ranks) for row in seen}


def test_the_stored_constants_are_the_fit_of_the_rows() -> None:
    for name, fitted in fit(held_out.measured()).items():
        stored = find_class(name)
        assert isinstance(stored, FittedClass)
        for op in fitted.factors:
            nodes = 2 if fitted.between_nodes else 1
            told = stored.time_ns(op, 2, nodes, 1 << 20)
            assert told == pytest.approx(fitted.time_ns(op, 2, nodes, 1 << 20), rel=1e-3)


def test_the_stored_efficiency_and_exchanges_are_fits_too() -> None:
    mesh, supernode = find_class("atlas_800_a2"), find_class("cloudmatrix384")
    assert isinstance(mesh, StatedClass)
    assert isinstance(supernode, StatedClass)
    assert mesh.efficiency == pytest.approx(mesh_efficiency().value, rel=1e-3)
    for op, stored in supernode.exchanges.items():
        found = exchange(op)
        assert stored.wire_ns == pytest.approx(found.wire_ns, rel=1e-3)
        assert stored.launch_ns == pytest.approx(found.launch_ns, rel=1e-3)
        assert math.isclose(stored.crowding, found.crowding)

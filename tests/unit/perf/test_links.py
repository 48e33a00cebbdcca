"""Collectives: what the constants must reproduce, and what is refused because nobody knows it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf.links import OPERATIONS, classes, collective_ns, find_class, link, links
from bedplate.perf.links_classes import FittedClass
from bedplate.perf.links_data import FITTED, LinkRow, rows

MIB = 1 << 20


def measured(link_class: str, op: str, ranks: int) -> LinkRow:
    (found,) = [
        row
        for row in rows()
        if (row.link_class, row.op, row.ranks, row.evidence) == (link_class, op, ranks, FITTED)
    ]
    return found


def algorithm_gb_per_s(link_class: str, op: str, ranks: int) -> float:
    """Rate of a payload so large that no start-up shows."""
    size = 1 << 34
    return size / (
        collective_ns(link_class, op, ranks, size) - collective_ns(link_class, op, ranks, 0)
    )


@pytest.mark.parametrize(
    ("link_class", "ns"), [("h100_sxm", 1750), ("a100_sxm", 2000), ("b200_sxm", 2700)]
)
def test_start_up_of_an_all_reduce_grows_by_the_published_time_with_each_rank(
    link_class: str, ns: float
) -> None:
    starts = [collective_ns(link_class, "all_reduce", ranks, 0) for ranks in (2, 4, 8)]
    assert (starts[1] - starts[0]) / 2 == pytest.approx((starts[2] - starts[1]) / 4)
    assert (starts[2] - starts[0]) / 6 == pytest.approx(ns, rel=0.1)


@pytest.mark.parametrize("link_class", ["h100_sxm", "a100_sxm", "b200_sxm"])
def test_start_up_of_an_all_to_all_hardly_grows(link_class: str) -> None:
    grows = {
        op: collective_ns(link_class, op, 8, 0) / collective_ns(link_class, op, 2, 0)
        for op in ("all_to_all", "all_reduce")
    }
    assert grows["all_to_all"] < 1.4
    assert grows["all_reduce"] > 1.8


@pytest.mark.parametrize(("ranks", "gb_per_s"), [(2, 18.7), (4, 3.4), (8, 0.9)])
def test_a_pcie_4_host_tree_collapses_as_measured(ranks: int, gb_per_s: float) -> None:
    assert algorithm_gb_per_s("l40s", "all_reduce", ranks) == pytest.approx(gb_per_s, rel=0.1)


def test_a_switch_does_not_collapse() -> None:
    rates = [algorithm_gb_per_s("h100_sxm", "all_reduce", ranks) for ranks in (2, 8)]
    assert rates[1] > 0.7 * rates[0]


@pytest.mark.parametrize(
    ("ranks", "gb_per_s"), [(8, 146), (16, 107), (32, 102), (64, 81), (128, 57)]
)
def test_dispatch_on_a_supernode_falls_with_the_ranks(ranks: int, gb_per_s: float) -> None:
    size = 4096 * 7168 * 8  # tokens, hidden size, experts of a token, one byte a value
    reached = size / collective_ns("cloudmatrix384", "dispatch", ranks, size)
    assert reached == pytest.approx(gb_per_s, rel=0.13)


@pytest.mark.parametrize(
    ("op", "ranks", "gb_per_s"),
    [("all_gather", 4, 64), ("all_gather", 8, 149), ("all_reduce", 2, 18), ("all_reduce", 8, 72)],
)
def test_a_mesh_has_a_link_for_each_peer(op: str, ranks: int, gb_per_s: float) -> None:
    assert algorithm_gb_per_s("atlas_800_a2", op, ranks) == pytest.approx(gb_per_s, rel=0.17)


def test_a_collective_by_hand() -> None:
    """launch + hop × n + size × (local + wire × w), with the constants of the class and the op."""
    found = find_class("a100_sxm")
    assert isinstance(found, FittedClass)
    factor = found.factors["all_gather"]
    by_hand = (
        found.launch_ns * factor.launch
        + found.hop_ns * factor.hop * 4
        + MIB * found.local_ns * factor.local
        + MIB * 0.75 * found.wire_ns * factor.wire
    )
    assert collective_ns("a100_sxm", "all_gather", 4, MIB) == pytest.approx(by_hand)


def test_ranks_of_a_server_share_its_port() -> None:
    """Of 4 ranks on 2 servers each sends half of its payload out, and two share a port."""
    size = 1 << 34
    found = find_class("v100_pcie_16gb_network")
    assert isinstance(found, FittedClass)
    factor = found.factors["all_to_all"]
    launch = collective_ns("v100_pcie_16gb_network", "all_to_all", 4, 0, nodes=2)
    flow = collective_ns("v100_pcie_16gb_network", "all_to_all", 4, size, nodes=2) - launch
    port = found.wire_ns * factor.wire * 2**found.crowding
    assert flow == pytest.approx(size * (found.local_ns * factor.local + 2 * 0.5 * port))


def test_every_measured_row_is_near_what_is_predicted() -> None:
    """A coarse net under the fit: in its own units, no row is off by more than half an order."""
    for row in rows():
        if row.evidence == FITTED:
            assert row.ranks is not None
            told = collective_ns(row.link_class, row.op, row.ranks, MIB, nodes=row.nodes)
            assert told == pytest.approx(row.time_ns(MIB), rel=0.7), row


def test_time_grows_with_size_and_is_zero_for_one_rank() -> None:
    for name, found in classes().items():
        between = isinstance(found, FittedClass) and found.between_nodes
        ops = found.factors if isinstance(found, FittedClass) else OPERATIONS
        if name in {"a800", "atlas_350"}:
            continue
        for op in ops:
            times = [
                collective_ns(name, op, 2, size, nodes=2 if between else 1)
                for size in (0, 4096, MIB)
            ]
            assert 0 < times[0] < times[1] < times[2], (name, op)
    assert collective_ns("NVLink4", "all_reduce", 1, MIB) == 0


def test_dispatch_is_an_all_to_all_where_it_was_not_measured_apart() -> None:
    for op in ("dispatch", "combine"):
        assert collective_ns("h100_sxm", op, 8, MIB) == collective_ns(
            "h100_sxm", "all_to_all", 8, MIB
        )
    assert collective_ns("cloudmatrix384", "combine", 8, MIB) != collective_ns(
        "cloudmatrix384", "dispatch", 8, MIB
    )


def test_the_page_names_every_link_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs/concepts/links.md").read_text(encoding="utf-8")
    table = text.partition("## Links to a pool")[2].partition("`with_heavy_tail")[0]
    named = re.findall(r"`([a-z0-9_]+)`", table)
    assert sorted(named) == sorted(links())


@pytest.mark.parametrize(
    ("link_class", "missing"),
    [
        ("a800", "efficiency of link class a800"),
        ("atlas_350", "efficiency of link class atlas_350"),
        ("UB 2.0", "link class 'UB 2.0' is unknown"),
        ("h100_sxn", "nearest is h100_sxm"),
    ],
)
def test_an_unknown_value_is_named(link_class: str, missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing) as caught:
        collective_ns(link_class, "all_reduce", 4, MIB)
    assert caught.value.code == "unknown_value"


@pytest.mark.parametrize(
    ("arguments", "nodes", "message"),
    [
        (("h100_sxm", "all_reduce", 16, MIB), 1, "at most 8 ranks, not 16"),
        (("h100_sxm", "broadcast", 8, MIB), 1, "'broadcast' is not one of all_reduce"),
        (("h100_sxm", "all_reduce", 0, MIB), 1, "at least 1"),
        (("h100_sxm", "all_reduce", 8, -1), 1, "not negative"),
        (("h100_sxm", "all_reduce", 8, math.nan), 1, "finite"),
        (("h100_sxm", "all_reduce", 1, math.inf), 1, "finite"),
        (("h100_sxm", "all_reduce", 8, MIB), 2, "inside one server"),
        (("v100_pcie_16gb_network", "all_reduce", 8, MIB), 1, "between servers"),
        (("v100_pcie_16gb_network", "all_reduce", 8, MIB), 3, "multiple of nodes"),
        (("atlas_800_a2", "all_reduce", 8, MIB), 2, "inside one server"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    arguments: tuple[str, str, int, float], nodes: int, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        collective_ns(*arguments, nodes=nodes)


def test_a_link_takes_its_start_up_and_its_bytes() -> None:
    ethernet = link("ethernet_10g")
    assert ethernet.alpha_ns == 20_000  # the middle of 10 to 30 µs
    assert ethernet.time_ns(1_250_000_000) == pytest.approx(1e9 + 20_000)
    assert ethernet.tail is None


def test_links_order_as_everybody_knows() -> None:
    host, pool, rdma, ethernet, disk = (
        link(name).time_ns(1 << 30)
        for name in ("host_memory", "ub_pool_read", "rdma_roce_100g", "ethernet_10g", "nvme")
    )
    assert pool < host < rdma < disk < ethernet


def test_each_named_link_is_known_or_says_what_is_missing() -> None:
    for name in links():
        if name != "ub_remote_dram":
            assert link(name).source
    with pytest.raises(
        InvalidRequest, match="the rate of link ub_remote_dram is unknown"
    ) as caught:
        link("ub_remote_dram")
    assert caught.value.code == "unknown_value"
    with pytest.raises(InvalidRequest, match=r"'ethernet_40g' is unknown.*nearest is ethernet"):
        link("ethernet_40g")


def test_a_heavy_tail_has_the_mean_of_the_waits_that_were_seen() -> None:
    """Lomax, shape 2: P(wait > t) = (1 + t / scale)^-2; its mean up to the cut is the integral."""
    tail = link("rdma_roce_200g").with_heavy_tail(0.05).tail
    assert tail is not None
    steps = 10_000
    width = tail.max_ns / steps
    mean = sum((1 + (i + 0.5) * width / tail.scale_ns) ** -2 for i in range(steps)) * width
    assert mean == pytest.approx(23.4e9, rel=0.01)
    assert tail.share == 0.05
    with pytest.raises(InvalidRequest, match="not between 0 and 1"):
        link("rdma_roce_200g").with_heavy_tail(1.5)

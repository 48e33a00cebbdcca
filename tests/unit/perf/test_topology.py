"""Two levels: formulas by hand, agents' messages, and figures of the field, assumptions named."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bedplate.errors import InvalidRequest
from bedplate.perf.links import collective_ns, link
from bedplate.perf.topology import find_topology, messages, topologies, utilisation
from bench.validation.links import anchors

MIB = 1 << 20


@pytest.mark.parametrize(("agents", "count"), [(1, 0), (2, 2), (8, 56), (64, 4032)])
def test_each_agent_writes_to_each_other_one(agents: int, count: int) -> None:
    pairs = list(itertools.permutations(range(agents), 2))
    assert messages(agents) == len(pairs) == count


def test_inside_one_server_the_link_class_decides() -> None:
    fabric = find_topology("switch_infiniband")
    assert fabric.collective_ns("all_reduce", 8, MIB) == collective_ns(
        "h100_sxm", "all_reduce", 8, MIB
    )


def test_an_all_reduce_over_two_levels_by_hand() -> None:
    """Reduce and split in each server, twice a quarter less than a part around, gather."""
    fabric = find_topology("mesh_roce")
    port_ns = 1 / (25 * 0.7)  # a byte at 25 GB/s of which collectives reach 0.7
    around = 3 * 1500 + MIB / 8 * 3 / 4 * port_ns
    by_hand = (
        collective_ns("atlas_800_a2", "reduce_scatter", 8, MIB)
        + 2 * around
        + collective_ns("atlas_800_a2", "all_gather", 8, MIB)
    )
    assert fabric.collective_ns("all_reduce", 32, MIB) == pytest.approx(by_hand)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_half_of_an_all_reduce_goes_around_once(op: str) -> None:
    fabric = find_topology("mesh_roce")
    inside = collective_ns("atlas_800_a2", op, 8, MIB)
    assert fabric.collective_ns(op, 32, MIB) == pytest.approx(inside + fabric.ring_ns(4, MIB / 8))


def test_an_all_to_all_takes_the_longer_of_its_two_ways() -> None:
    fabric = find_topology("mesh_roce")
    far = 1500 + 64 * MIB / 2 / (25 * 0.7)
    assert fabric.collective_ns("all_to_all", 16, 64 * MIB) == pytest.approx(far)
    near = collective_ns("atlas_800_a2", "all_to_all", 8, 0)
    assert fabric.collective_ns("all_to_all", 16, 0) == pytest.approx(max(near, 1500))


def test_a_message_to_another_server_takes_the_network() -> None:
    fabric = find_topology("switch_infiniband")
    assert fabric.collective_ns("p2p", 16, MIB) == pytest.approx(19_110 + MIB / 35.9)


def test_cards_of_a_server_share_its_ports_and_a_tree_its_root() -> None:
    fabric = find_topology("mesh_roce")
    assert fabric.between is not None
    fewer = replace(fabric, between=replace(fabric.between, ports=2))
    narrow = fabric.with_network(oversubscription=4)
    whole = fabric.ring_ns(2, MIB) - 1500
    for slower in (fewer, narrow):
        assert slower.ring_ns(2, MIB) - 1500 == pytest.approx(4 * whole)


def test_a_round_of_messages_by_hand() -> None:
    """16 agents on two servers: 7 near ones and 8 far ones to write to, bytes of all at once."""
    fabric = find_topology("mesh_roce")
    near = 7 * collective_ns("atlas_800_a2", "p2p", 2, 0)
    near += collective_ns("atlas_800_a2", "all_to_all", 8, 8 * MIB)
    near -= collective_ns("atlas_800_a2", "all_to_all", 8, 0)
    far = 8 * 1500 + 8 * MIB / (25 * 0.7)
    assert fabric.round_ns(16, MIB) == pytest.approx(near + far)
    assert fabric.round_ns(1, MIB) == 0


def test_messages_cost_most_where_all_share_one_way() -> None:
    """A mesh and a switch against a host tree, and a port a card against one for a server."""
    inside = {
        name: find_topology(name).round_ns(8, MIB)
        for name in ("full_mesh", "switch_infiniband", "pcie_host_tree")
    }
    assert inside["pcie_host_tree"] > 10 * max(inside["full_mesh"], inside["switch_infiniband"])
    supernode = find_topology("ub_supernode").round_ns(64, MIB)
    infiniband = find_topology("switch_infiniband").round_ns(64, MIB)
    ethernet = find_topology("switch_ethernet").with_network(efficiency=1.0).round_ns(64, MIB)
    assert supernode < infiniband < ethernet
    assert ethernet > 10 * supernode


@pytest.mark.parametrize(
    ("compute", "communication", "overlap", "part"),
    [(3, 1, 0.0, 0.75), (1, 1, 1.0, 1.0), (1, 4, 1.0, 0.25), (1, 4, 0.25, 0.25), (1, 2, 0.25, 0.4)],
)
def test_utilisation_counts_only_what_does_not_hide(
    compute: float, communication: float, overlap: float, part: float
) -> None:
    assert utilisation(compute, communication, overlap=overlap) == pytest.approx(part)


def test_every_fabric_answers_or_says_what_is_missing() -> None:
    refused = []
    for name, fabric in topologies().items():
        assert fabric.collective_ns("all_reduce", fabric.node_cards, MIB) > 0
        try:
            assert fabric.collective_ns("all_reduce", 2 * fabric.node_cards, MIB) > 0
        except InvalidRequest as error:
            refused.append((name, error.code))
    assert refused == [
        ("full_mesh", "invalid_request_error"),
        ("pcie_host_tree", "invalid_request_error"),
        ("switch_ethernet", "unknown_value"),
        ("pcie_ethernet", "unknown_value"),
    ]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="efficiency of collectives over ethernet_100g"):
        find_topology("switch_ethernet").collective_ns("all_reduce", 16, MIB)
    with pytest.raises(InvalidRequest, match="12 cards on mesh_roce are not whole servers of 8"):
        find_topology("mesh_roce").collective_ns("all_reduce", 12, MIB)
    with pytest.raises(InvalidRequest, match="nothing joins the servers of full_mesh"):
        find_topology("full_mesh").collective_ns("all_reduce", 16, MIB)
    with pytest.raises(InvalidRequest, match="topology 'ring' is unknown; there is: full_mesh"):
        find_topology("ring")
    for change in ({"efficiency": 0.0}, {"efficiency": 1.1}, {"oversubscription": 0.5}):
        with pytest.raises(InvalidRequest, match="must be above 0"):
            find_topology("mesh_roce").with_network(**change)


# Figures of the field. Each depends on assumptions that the field does not state. Those made here
# stand in bench/validation/links/anchors.py, and what is asserted is that the field's figure lies
# in the range that they span. The table: python -m bench.validation.links.anchors


def test_more_throughput_and_more_latency_are_one_statement() -> None:
    """By Little's law throughput × latency = sequences in flight: ×1.5 and ×1.2 mean ×1.8."""
    for found in anchors.two_servers("switch_infiniband"):
        grown = float(found.case.split(", ")[1].split(" times")[0])
        assert found.latency * found.throughput == pytest.approx(grown)


def test_16_cards_across_servers_against_8_in_one() -> None:
    """Field: throughput ×1.5, latency ×1.2.

    Decode of a 70B model at 16 bits, split over all cards of HGX H100 servers, 16 to 128 sequences
    of 4,096 tokens. At the network's own latency (1 µs) the second server pays, with the library's
    measured latency (19 µs) it costs: the field's figure lies between.
    """
    stated = [f for f in anchors.two_servers("switch_infiniband_stated") if ", 1.8" in f.case]
    measured = [f for f in anchors.two_servers("switch_infiniband") if ", 1.8" in f.case]
    assert len(stated) == len(measured) == 4
    for best, worst in zip(stated, measured, strict=True):
        assert best.latency < 1.2 < worst.latency
        assert worst.throughput < 1.5 < best.throughput
    # Never twice the work at the same latency once the library's latency is paid.
    assert all(found.throughput < 1.5 for found in measured)


def test_one_supernode_against_four_boxes() -> None:
    """Field: first token -40 %, a 70B model with the same split.

    32 cards at the same arithmetic and share of it, 1K to 32K tokens; what differs is the fabric.
    With a network that carries all that its leaves promise the gain is 27 to 30 %, at 2 to 1 it is
    44 to 47 %.
    """
    gains = {
        over: [
            1 - f.latency for f in anchors.supernode() if f"oversubscribed {over} to 1" in f.case
        ]
        for over in ("1", "1.5", "2")
    }
    assert all(len(found) == 3 for found in gains.values())
    assert max(gains["1"]) < 0.40 < min(gains["2"])
    assert all(gain == pytest.approx(0.40, abs=0.04) for gain in gains["1.5"])


@pytest.mark.parametrize("oversubscription", [1.0, 1.5, 2.0])
def test_utilisation_at_the_wall_of_a_tree(oversubscription: float) -> None:
    """Field: 30 to 50 %. Prefill of 4,096 tokens of a 70B model, split over more and more H100.

    From first principles: when communication no longer shrinks, twice the cards gain
    1 / (1 - utilisation / 2), so at 30 to 50 % not more than 18 to 33 %; less, as it grows instead.
    """
    at = anchors.wall(oversubscription)
    assert 0.30 <= at.utilisation <= 0.50
    assert at.gain < 1 / (1 - at.utilisation / 2)


def test_ten_thousand_cards_do_the_work_of_eight_thousand_or_of_three() -> None:
    """Training with replicas of 8: a step of 4 M tokens on a tree, of 16 M on a supernode's bus."""
    assert anchors.ten_thousand("switch_infiniband", 4e6, 0.8) == pytest.approx(0.3, abs=0.05)
    assert anchors.ten_thousand("ub_supernode", 16e6, 0.0) == pytest.approx(0.8, abs=0.05)
    for tokens, overlap in ((4e6, 0.0), (4e6, 0.8), (16e6, 0.0)):
        tree, bus = (
            anchors.ten_thousand(name, tokens, overlap)
            for name in ("switch_infiniband", "ub_supernode")
        )
        assert bus > 1.4 * tree


def test_a_supernode_against_a_network_in_rate_and_latency() -> None:
    """Field: hundreds of GB/s and microseconds against a few GB/s and tens of microseconds."""
    for name in ("ub_pool_read", "ub_board", "ub_level_2"):
        assert link(name).bytes_per_s >= 150e9
        assert link(name).alpha_ns < 10_000
    for name in ("ethernet_10g", "ethernet_25g"):
        assert 1e9 < link(name).bytes_per_s < 10e9
        assert 10_000 <= link(name).alpha_ns < 100_000

"""Figures from the field about fabrics, derived from first principles, with what they depend on.

    python -m bench.validation.links.anchors

A model is Llama-3.1-70B at 16 bits: 139.0 GB of weights read, 80 layers with two all-reduces each,
hidden size 8,192, 327,680 bytes of KV a token. A step takes max(compute, memory) + communication;
nothing overlaps. The shares of a card's peak that compute and memory reach are assumptions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from bedplate.perf.links import link
from bedplate.perf.topology import Topology, find_topology, messages, utilisation

LAYERS, HIDDEN = 80, 8192
PARAMETERS, WEIGHT_BYTES, KV_BYTES = 70.6e9, 139.0e9, 327_680
H100 = (989e12, 3.35e12)
A2_FLOPS = 353.9e12
COMPUTE_SHARE, MEMORY_SHARE = 0.5, 0.7
BATCHES, CONTEXT = (16, 32, 64, 128), 4096
PROMPTS = (1024, 4096, 32768)


class Step(NamedTuple):
    """One step of a model on one fabric."""

    compute_ns: float
    communication_ns: float

    @property
    def ns(self) -> float:
        """The whole step."""
        return self.compute_ns + self.communication_ns


class Ratio(NamedTuple):
    """One case: what was assumed, and how the second fabric compares with the first."""

    case: str
    latency: float
    throughput: float


def decode(fabric: Topology, cards: int, batch: float) -> Step:
    """Return a decode step of `batch` sequences of `CONTEXT` tokens, split over all cards."""
    flops, bytes_per_s = H100
    memory_ns = (WEIGHT_BYTES + batch * CONTEXT * KV_BYTES) / cards / bytes_per_s / MEMORY_SHARE
    compute_ns = 2 * PARAMETERS * batch / cards / flops / COMPUTE_SHARE
    return Step(max(memory_ns, compute_ns) * 1e9, _reduce_ns(fabric, cards, batch))


def prefill(fabric: Topology, cards: int, tokens: int, flops: float) -> Step:
    """Return the prefill of one prompt, split over all cards."""
    work = 2 * PARAMETERS * tokens + 2 * LAYERS * HIDDEN * tokens**2
    return Step(work / cards / flops / COMPUTE_SHARE * 1e9, _reduce_ns(fabric, cards, tokens))


def _reduce_ns(fabric: Topology, cards: int, tokens: float) -> float:
    return 2 * LAYERS * fabric.collective_ns("all_reduce", cards, tokens * HIDDEN * 2)


def two_servers(name: str) -> list[Ratio]:
    """Compare 16 H100 in two servers with 8 in one: decode, with 1.8 and 2 times the sequences."""
    fabric = find_topology(name)
    found = []
    for batch in BATCHES:
        one = decode(fabric, 8, batch).ns
        for growth in (1.8, 2.0):
            two = decode(fabric, 16, batch * growth).ns
            case = f"{batch} sequences in one server, {growth:g} times that in two"
            found.append(Ratio(case, two / one, growth * one / two))
    return found


def supernode() -> list[Ratio]:
    """Compare one supernode with four boxes: first token, the same 32 cards and the same split."""
    found = []
    for oversubscription in (1.0, 1.5, 2.0):
        boxes = find_topology("mesh_roce").with_network(oversubscription=oversubscription)
        for tokens in PROMPTS:
            one = prefill(find_topology("ub_supernode"), 32, tokens, A2_FLOPS).ns
            four = prefill(boxes, 32, tokens, A2_FLOPS).ns
            case = f"{tokens:,} tokens, network oversubscribed {oversubscription:g} to 1"
            found.append(Ratio(case, one / four, four / one))
    return found


class Wall(NamedTuple):
    """Where more cards stop to help: utilisation there, and what twice as many would gain."""

    oversubscription: float
    cards: int
    utilisation: float
    gain: float


def wall(oversubscription: float, *, least_gain: float = 1.1) -> Wall:
    """Split the prefill of 4,096 tokens over more and more servers on a tree of switches.

    The wall is the first size beyond one server at which twice the cards gain less than
    `least_gain`.
    """
    fabric = find_topology("switch_infiniband").with_network(oversubscription=oversubscription)
    cards = 16
    while True:
        now, twice = (prefill(fabric, n, 4096, H100[0]) for n in (cards, 2 * cards))
        gain = now.ns / twice.ns
        if gain < least_gain:
            part = utilisation(now.compute_ns, now.communication_ns)
            return Wall(oversubscription, cards, part, gain)
        cards *= 2


def ten_thousand(name: str, batch_tokens: float, overlap: float) -> float:
    """Return the utilisation of 10,000 cards that train a 70B model, 8 cards a replica.

    Each step the gradients of every eighth of the model (2 bytes a parameter) are all-reduced among
    1,250 replicas; 6 operations a parameter and token, on H100. What a supernode's fabric would do
    at this size is an extrapolation: none is that large.
    """
    compute_ns = 6 * PARAMETERS * batch_tokens / 10_000 / H100[0] / COMPUTE_SHARE * 1e9
    gradients_ns = 2 * find_topology(name).ring_ns(1250, 2 * PARAMETERS / 8)
    return utilisation(compute_ns, gradients_ns, overlap=overlap)


def _lines() -> Iterator[str]:
    yield f"messages a round: 8 agents {messages(8)}, 64 agents {messages(64):,}"
    yield "\nround of messages of 4 KiB and 1 MiB, ms (efficiency 1 where none is known)"
    for name in ("full_mesh", "pcie_host_tree", "switch_infiniband", "switch_ethernet"):
        yield _round(name, 8)
    for name in ("switch_infiniband", "mesh_roce", "switch_ethernet", "ub_supernode"):
        yield _round(name, 64)
    yield "\n16 cards in two servers against 8 in one (field: throughput x1.5, latency x1.2)"
    for name in ("switch_infiniband_stated", "switch_infiniband"):
        for found in two_servers(name):
            yield (
                f"  {name:26} {found.case:50} latency x{found.latency:.2f}"
                f" throughput x{found.throughput:.2f}"
            )
    yield "\none supernode against four boxes, first token (field: -40 %)"
    for found in supernode():
        yield f"  {found.case:50} {found.latency - 1:+.0%}"
    yield "\ntree of switches at the wall (field: utilisation 30 to 50 %)"
    for at in (wall(1.0), wall(1.5), wall(2.0)):
        yield (
            f"  oversubscribed {at.oversubscription:g} to 1: {at.cards} cards at"
            f" {at.utilisation:.0%}; twice as many gain {at.gain - 1:+.0%}"
        )
    yield "\n10,000 cards do the work of (field: 8,000 or 3,000)"
    for name in ("switch_infiniband", "ub_supernode"):
        for tokens, overlap in ((4e6, 0.0), (4e6, 0.8), (16e6, 0.0)):
            work = 10_000 * ten_thousand(name, tokens, overlap)
            case = f"{tokens / 1e6:.0f} M tokens a step, overlap {overlap:.0%}"
            yield f"  {name:18} {case:32} {work:6,.0f}"
    yield "\none way between servers"
    for name in ("ub_pool_read", "ub_board", "ub_level_2", "ethernet_10g", "ethernet_25g"):
        one = link(name)
        yield f"  {name:18} {one.bytes_per_s / 1e9:6.1f} GB/s {one.alpha_ns / 1e3:5.1f} us"


def _round(name: str, agents: int) -> str:
    fabric = find_topology(name)
    if fabric.between is not None and fabric.between.efficiency is None:
        fabric = fabric.with_network(efficiency=1.0)
    small, large = (fabric.round_ns(agents, size) / 1e6 for size in (4096, 1 << 20))
    return f"  {name:18} {agents:3} agents {small:8.3f} {large:10.3f}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(_lines()) + "\n")

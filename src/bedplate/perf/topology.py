"""Cards in servers in a cluster: collectives over two levels, and agents' messages on each fabric.

Inside a server, or a board of a supernode, a link class joins the cards (`bedplate.perf.links`).
Between them is a network: each server has ports, its cards share them, and a tree of switches may
have less capacity towards its root than towards its leaves (oversubscription). Cards fill one
server after the other.

An all-reduce goes over both levels: each server reduces and splits the payload among its cards,
each card all-reduces its part with the cards of the same place in other servers, and each server
gathers the parts. So the ports of a server together carry the payload about twice, however many
servers there are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from bedplate.perf import links
from bedplate.perf.links import Link, link
from bedplate.perf.links_classes import refuse


@dataclass(frozen=True, slots=True)
class Between:
    """What joins servers: a link per port, and how much of it is left.

    `ports`: links of one server. `efficiency`: part of a link's rate that collectives reach, None
    where nobody says. `oversubscription`: what leaves are promised ÷ what the root carries, >= 1.
    """

    link: Link
    ports: int
    efficiency: float | None
    oversubscription: float = 1.0

    def port_ns(self) -> float:
        """Return the time of one byte through one port while all others are as busy.

        Raises:
            InvalidRequest: the efficiency is unknown.
        """
        if self.efficiency is None:
            refuse(
                f"the efficiency of collectives over {self.link.name} is unknown; no source gives"
                " it: set it with Topology.with_network",
                unknown=True,
            )
        return 1e9 / (self.link.bytes_per_s * self.efficiency) * self.oversubscription


@dataclass(frozen=True, slots=True)
class Topology:
    """A fabric: what joins the cards of a server, and what joins servers (None: nothing does)."""

    name: str
    inside: str
    node_cards: int
    between: Between | None
    assumes: str

    def with_network(
        self, *, efficiency: float | None = None, oversubscription: float | None = None
    ) -> Topology:
        """Return the same fabric with another efficiency or oversubscription of its network.

        Raises:
            InvalidRequest: it has no network, or a value is out of range.
        """
        between = self._network()
        efficiency = between.efficiency if efficiency is None else efficiency
        if oversubscription is None:
            oversubscription = between.oversubscription
        if (efficiency is not None and not 0 < efficiency <= 1) or oversubscription < 1:
            refuse(
                f"efficiency {efficiency} must be above 0 and at most 1, oversubscription"
                f" {oversubscription} at least 1"
            )
        changed = replace(between, efficiency=efficiency, oversubscription=oversubscription)
        return replace(self, between=changed)

    def collective_ns(self, op: str, cards: int, size_bytes: float) -> float:
        """Return the time of a collective over cards that fill one server after the other.

        Args:
            op: One of `links.OPERATIONS`. `p2p` is a message to the most distant card.
            cards: Cards that take part: at most one server's, or whole servers.
            size_bytes: Payload of one card, as `links.collective_ns` counts it.

        Raises:
            InvalidRequest: a value is unknown, the cards are not whole servers, or nothing joins
                the servers.
        """
        if cards <= self.node_cards:
            return links.collective_ns(self.inside, op, cards, size_bytes)
        if cards % self.node_cards:
            refuse(f"{cards} cards on {self.name} are not whole servers of {self.node_cards}")
        between, nodes = self._network(), cards // self.node_cards
        if op == "p2p":
            return between.link.alpha_ns + size_bytes * between.port_ns()
        if op in {"all_to_all", "dispatch", "combine"}:
            # To other cards of the server and to other servers at once, over links of their own.
            return max(self._inside_ns(op, size_bytes / nodes), self.ring_ns(nodes, size_bytes))
        ring_ns = self.ring_ns(nodes, size_bytes / self.node_cards)
        if op == "all_reduce":
            scatter_ns = self._inside_ns("reduce_scatter", size_bytes)
            return scatter_ns + 2 * ring_ns + self._inside_ns("all_gather", size_bytes)
        return ring_ns + self._inside_ns(op, size_bytes)

    def ring_ns(self, nodes: int, part_bytes: float) -> float:
        """Return the time in which each card passes its part once to its fellows on other servers.

        All cards of all servers do so at the same time. A reduce-scatter or an all-gather of the
        part among the servers takes one such round, an all-reduce two.
        """
        between = self._network()
        crossed = part_bytes * (nodes - 1) / nodes
        return (nodes - 1) * between.link.alpha_ns + crossed * self._card_ns(between)

    def round_ns(self, agents: int, message_bytes: float) -> float:
        """Return the time in which each of n agents has sent a message to each other one.

        One agent a card. A sender starts its messages one after the other; bytes of all senders
        flow at the same time and share what is shared: a host tree, the ports of a server, the
        root of a tree.

        Raises:
            InvalidRequest: as `collective_ns`.
        """
        if agents <= self.node_cards:
            return self._near_ns(agents, message_bytes)
        between = self._network()
        far = agents - self.node_cards
        start_ns = far * between.link.alpha_ns
        bytes_ns = far * message_bytes * self._card_ns(between)
        return self._near_ns(self.node_cards, message_bytes) + start_ns + bytes_ns

    def _near_ns(self, agents: int, message_bytes: float) -> float:
        """Return the time of the messages of one server's agents to one another.

        Bytes flow as in an all-to-all of that size; each message pays a start-up of its own.
        """
        if agents < 2:
            return 0.0
        flow = [
            links.collective_ns(self.inside, "all_to_all", agents, size)
            for size in (agents * message_bytes, 0)
        ]
        start_ns = links.collective_ns(self.inside, "p2p", 2, 0)
        return (agents - 1) * start_ns + flow[0] - flow[1]

    def _inside_ns(self, op: str, size_bytes: float) -> float:
        return links.collective_ns(self.inside, op, self.node_cards, size_bytes)

    def _card_ns(self, between: Between) -> float:
        """Return the time of one byte of one card while all cards of its server send."""
        return between.port_ns() * max(1.0, self.node_cards / between.ports)

    def _network(self) -> Between:
        if self.between is None:
            refuse(f"nothing joins the servers of {self.name}, of {self.node_cards} cards each")
        return self.between


def messages(agents: int) -> int:
    """Return how many messages a round of n agents has in which each writes to each other one."""
    return agents * (agents - 1)


def utilisation(compute_ns: float, communication_ns: float, *, overlap: float = 0.0) -> float:
    """Return the part of time in which cards compute, 0 to 1.

    `overlap`: part of the communication that runs while cards compute, 0 to 1; what is longer than
    the computing itself cannot hide.
    """
    hidden_ns = min(overlap * communication_ns, compute_ns)
    return compute_ns / (compute_ns + communication_ns - hidden_ns)


def find_topology(name: str) -> Topology:
    """Return a fabric by name: `topologies` lists them.

    Raises:
        InvalidRequest: there is none of this name.
    """
    found = topologies().get(name)
    if found is None:
        refuse(f"topology {name!r} is unknown; there is: {', '.join(topologies())}")
    return found


@cache
def topologies() -> Mapping[str, Topology]:
    """Return the fabrics of `data/topologies.toml` by name."""
    text = files("bedplate.perf").joinpath("data", "topologies.toml").read_text(encoding="utf-8")
    found = {}
    for name, values in tomllib.loads(text)["topology"].items():
        network = values.pop("between", None)
        between = None
        if network is not None:
            efficiency = network["efficiency"]
            between = Between(
                link(network["link"]),
                network["ports"],
                None if efficiency == "unknown" else float(efficiency),
            )
        found[name] = Topology(name=name, between=between, **values)
    return found

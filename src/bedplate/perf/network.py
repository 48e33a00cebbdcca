"""What the cards of one deployment pay to talk: three calls over link classes and topologies.

This is the only place of the step-time model that knows `perf.links` and `perf.topology`. Which
class and network a card has stands in `data/fabrics.toml`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware
from bedplate.perf.links import link
from bedplate.perf.topology import Between, Topology


class Network:
    """Times of communication among cards of one kind, in ns; sizes in bytes of one card."""

    def __init__(self, card: Hardware) -> None:
        """Look up what joins such cards.

        Raises:
            InvalidRequest: no source says what joins them.
        """
        self._fabric = _fabric(card.name, card.link)

    def reduce_ns(self, ranks: int, size: float) -> float:
        """Return the time of an all-reduce.

        Raises:
            InvalidRequest: a value that is needed is unknown, or nothing joins so many cards.
        """
        return self._collective("all_reduce", ranks, size)

    def exchange_ns(self, ranks: int, size: float) -> float:
        """Return the time of an all-to-all.

        Raises:
            InvalidRequest: as `reduce_ns`.
        """
        return self._collective("all_to_all", ranks, size)

    def hop_ns(self, size: float) -> float:
        """Return the time of sending from one pipeline stage to the next, inside a server.

        Raises:
            InvalidRequest: as `reduce_ns`.
        """
        return self._fabric.collective_ns("p2p", 2, size)

    def crossing(self, ranks: int) -> str:
        """Return in words what so many cards reach over, empty inside one server."""
        between, node = self._fabric.between, self._fabric.node_cards
        if ranks <= node or between is None:
            return ""
        network = between.link
        return (
            f"{ranks} cards lie on {-(-ranks // node)} servers of {node}, joined by {network.name}:"
            f" {network.alpha_ns / 1e3:.3g} µs and {network.bytes_per_s / 1e9:.3g} GB/s a card"
        )

    def _collective(self, op: str, ranks: int, size: float) -> float:
        """Cards fill whole servers: where they do not, the next whole number of servers."""
        node = self._fabric.node_cards
        whole = ranks if ranks <= node else -(-ranks // node) * node
        return self._fabric.collective_ns(op, whole, size)


@cache
def _fabric(card: str, link_name: str) -> Topology:
    fabrics = _fabrics()
    found = fabrics.get(card) or fabrics.get(link_name)
    if found is None:
        raise InvalidRequest(
            f"what joins cards by {link_name} is unknown; no source gives its start-up and rate,"
            " so only one card can be estimated",
            code="unknown_value",
        )
    between = None
    if "between" in found:
        network = found["between"]
        between = Between(link(network["link"]), found["node_cards"], network["efficiency"])
    return Topology(link_name, found["inside"], found["node_cards"], between, "data/fabrics.toml")


@cache
def _fabrics() -> dict[str, Any]:
    text = files("bedplate.perf").joinpath("data", "fabrics.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

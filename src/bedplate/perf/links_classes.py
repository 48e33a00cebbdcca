"""The time of a collective on one class of links: measured in full, or stated by its maker.

How the terms are meant stands in `bedplate.perf.links`, which is what callers use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from bedplate.errors import InvalidRequest

_CROSSINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


class Units(NamedTuple):
    """How often one collective pays each constant; `crowd` is what crowding raises to a power."""

    launch: float
    hop: float
    local: float
    wire: float
    crowd: float


def units(op: str, ranks: int, nodes: int, size_bytes: float) -> Units:
    """Count what a collective pays for, on `nodes` servers with the same number of ranks each.

    In one server crowding counts pairs (2 ranks are one), between servers ranks of one server.
    """
    if op == "p2p":
        wire = 1.0
    elif op == "all_to_all" and nodes > 1:
        # A server's port carries what all of its ranks send to other servers.
        wire = ranks / nodes * (ranks - ranks / nodes) / ranks
    else:
        wire = _CROSSINGS[op] * (ranks - 1) / ranks
    return Units(
        launch=1 if nodes == 1 else nodes - 1,
        hop=ranks,
        local=size_bytes,
        wire=size_bytes * wire,
        crowd=ranks / 2 if nodes == 1 else ranks / nodes,
    )


@dataclass(frozen=True, slots=True)
class Factors:
    """What an operation makes of the constants of a link class."""

    launch: float
    hop: float
    local: float
    wire: float


@dataclass(frozen=True, slots=True)
class FittedClass:
    """A link class whose collectives were measured. Constants in ns and ns a byte.

    `between_nodes`: it joins servers, not cards of one. `ranks_max`: cards that one server has, or
    the most ranks that were measured. `error`: median error in time on the rows that it is fitted
    on (`rows` of them).
    """

    name: str
    link: str
    between_nodes: bool
    ranks_max: int
    launch_ns: float
    hop_ns: float
    local_ns: float
    wire_ns: float
    crowding: float
    factors: Mapping[str, Factors]
    rows: int
    error: float

    def time_ns(self, op: str, ranks: int, nodes: int, size_bytes: float) -> float:
        """Return the time of a collective; see `collective_ns`."""
        if self.between_nodes != (nodes > 1):
            where = "between servers: say on how many" if nodes == 1 else "inside one server"
            refuse(f"link class {self.name} is {where} (nodes = {nodes})")
        op = "all_to_all" if op in {"dispatch", "combine"} else op
        factor, count = self.factors[op], units(op, ranks, nodes, size_bytes)
        return (
            self.launch_ns * factor.launch * count.launch
            + self.hop_ns * factor.hop * count.hop
            + self.local_ns * factor.local * count.local
            + self.wire_ns * factor.wire * count.wire * math.pow(count.crowd, self.crowding)
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A measured exchange of experts: launch + size × wire × (ranks / 8) ^ crowding."""

    launch_ns: float
    wire_ns: float
    crowding: float
    error: float


@dataclass(frozen=True, slots=True)
class StatedClass:
    """A link class known from statements: rate, latency and efficiency, None where nobody says.

    `mesh`: a card has a link of its own to each other one, and `peak_gb_per_s` is that of one link;
    otherwise a switch, and it is the card's. `static_ns` is paid by each call, `step_ns` by each
    message that waits for the one before. `exchanges`: measured exchanges of experts, by operation.
    """

    name: str
    link: str
    mesh: bool
    ranks_max: int
    static_ns: float | None
    step_ns: float | None
    peak_gb_per_s: float | None
    efficiency: float | None
    exchanges: Mapping[str, Exchange]
    notes: str
    source: str

    def time_ns(self, op: str, ranks: int, nodes: int, size_bytes: float) -> float:
        """Return the time of a collective; see `collective_ns`."""
        if nodes > 1:
            refuse(f"link class {self.name} is inside one server (nodes = {nodes})")
        exchange = self.exchanges.get("dispatch" if op == "all_to_all" else op)
        if exchange is not None:
            crowd = math.pow(ranks / 8, exchange.crowding)
            return exchange.launch_ns + size_bytes * exchange.wire_ns * crowd
        op = "all_to_all" if op in {"dispatch", "combine"} else op
        rate = self._need("peak_gb_per_s") * self._need("efficiency")
        wire = units(op, ranks, 1, size_bytes).wire
        crossings = _CROSSINGS.get(op, 1)
        if self.mesh and op != "p2p":
            rate, steps = rate * (ranks - 1), crossings
        else:
            steps = 1 if op in {"p2p", "all_to_all"} else crossings * (ranks - 1)
        return self._need("static_ns") + self._need("step_ns") * steps + wire / rate

    def _need(self, name: str) -> float:
        value = getattr(self, name)
        if value is None:
            refuse(
                f"{name} of link class {self.name} is unknown; no source gives it, so no collective"
                " on it can be timed",
                unknown=True,
            )
        assert isinstance(value, float | int)
        return float(value)


LinkClass = FittedClass | StatedClass


def refuse(message: str, *, unknown: bool = False) -> NoReturn:
    """Refuse a question about links: it has no answer, or a value that it needs is unknown.

    Raises:
        InvalidRequest: always; its code is `unknown_value` where a value is.
    """
    raise InvalidRequest(message, code="unknown_value" if unknown else None)

"""What communication costs: collectives inside and between servers, and links to a pool.

A collective of n ranks takes, whatever the fabric,

    launch + hop × n + size × (local + wire × w)

- launch: what each call costs before a byte flows; hop: what each rank adds (an all-reduce starts
  up in about 1.75 µs a rank on NVLink 4, an all-to-all hardly grows);
- local: each byte of the payload passes the card's own memory;
- wire: of each byte of payload, w pass the link: 2 (n - 1) / n for an all-reduce, half of it for an
  all-gather, a reduce-scatter or an all-to-all, 1 between two.

Each of the four is a constant of the *link class* (one kind of server and link) times a factor of
the *operation*, the same for all classes: a class that was measured in part is known in whole.
Behind a PCIe host tree the wire is shared and grows slower with each rank (*crowding*). Between
servers launch counts the servers that are crossed, and ranks of one server share its ports.

Constants are fitted by `python -m bench.validation.links` and lie in `data/links_fit.toml` with the
error of the fit. Classes that nobody measured in full stand in `data/links_stated.toml` with what
their vendor says. What no source gives is unknown, and needing it is an error that names it.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from bedplate.perf.links_classes import (
    Exchange,
    Factors,
    FittedClass,
    LinkClass,
    StatedClass,
    refuse,
)
from bedplate.perf.links_data import LinkRow, rows

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "dispatch",
    "combine",
    "p2p",
)
"""`dispatch` and `combine` are the two all-to-alls of expert parallelism, where a class has them
measured apart; elsewhere both are `all_to_all`."""


def collective_ns(
    link_class: str, op: str, ranks: int, size_bytes: float, *, nodes: int = 1
) -> float:
    """Return the time of one collective; for `p2p` all ranks send one message at once.

    Args:
        link_class: A class of `classes`, or the name of a link as hardware has it ("NVLink4"),
            which stands for the class that was measured most.
        op: One of `OPERATIONS`.
        ranks: Cards that take part, >= 1; alone, nothing is sent and the time is 0.
        size_bytes: Payload of one rank: what it holds before the operation, after it for an
            all-gather.
        nodes: Servers that the ranks lie on, the same number on each; 1 inside a server.

    Raises:
        InvalidRequest: the class or operation is not known, a value of the class is unknown (code
            `unknown_value`; the message names it), or the class does not join so many ranks: two
            levels are composed by `perf.topology`.

    Cost: constant, under 2 µs.
    """
    if op not in OPERATIONS:
        refuse(f"operation {op!r} is not one of {', '.join(OPERATIONS)}")
    if ranks < 1 or nodes < 1 or ranks % nodes or not 0 <= size_bytes < math.inf:
        refuse(
            f"{ranks} ranks on {nodes} nodes with {size_bytes} bytes: ranks and nodes must be at"
            " least 1, ranks a multiple of nodes, and the size finite and not negative"
        )
    found = find_class(link_class)
    if ranks == 1:
        return 0.0
    if ranks > found.ranks_max:
        refuse(
            f"link class {found.name} joins at most {found.ranks_max} ranks, not {ranks}; name what"
            " joins the servers and compose the two levels with perf.topology"
        )
    return found.time_ns(op, ranks, nodes, size_bytes)


def find_class(name: str) -> LinkClass:
    """Return a link class by its name or by the name of its link.

    Raises:
        InvalidRequest: there is none (code `unknown_value`); the message names the nearest.
    """
    found = classes().get(_aliases().get(name, name))
    if found is None:
        near = difflib.get_close_matches(name, [*classes(), *_aliases()], n=1, cutoff=0.4)
        hint = f"; nearest is {near[0]}" if near else ""
        refuse(
            f"link class {name!r} is unknown: start-up and rate of its link are missing{hint}",
            unknown=True,
        )
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """Rare long waits: of all transfers the part `share` (0 to 1) waits longer.

    The wait is Lomax distributed with shape 2 and `scale_ns`, cut at `max_ns`.
    """

    share: float
    scale_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two places: a transfer alone on it takes alpha_ns + bytes ÷ bytes_per_s.

    `alpha_ns` is the middle where the source gives a range. `evidence` says what both rest on.
    """

    name: str
    alpha_ns: float
    bytes_per_s: float
    tail: Tail | None
    evidence: str
    notes: str
    source: str

    def time_ns(self, size_bytes: float) -> float:
        """Return the time of one transfer that has the link for itself, tail aside."""
        return self.alpha_ns + size_bytes / self.bytes_per_s * 1e9

    def with_heavy_tail(self, share: float) -> Link:
        """Return this link with long waits as one study of a KV pool over RDMA saw them.

        Its transfers took 0.6 s or 18 to 30 s. How many did is not known: the caller says which
        part (0 to 1). Cut at 29.4 s, this tail has the mean of those waits, 23.4 s, and three in
        four of them pass 17.4 s.
        """
        if not 0 <= share <= 1:
            refuse(f"a share of {share} is not between 0 and 1")
        return replace(self, tail=Tail(share, scale_ns=114.7e9, max_ns=29.4e9))


def link(name: str) -> Link:
    """Return a link by name: `links` lists them.

    Raises:
        InvalidRequest: there is none of this name, or its start-up or rate is unknown (code
            `unknown_value`; the message names what is missing).
    """
    found = links().get(name)
    if found is None:
        near = difflib.get_close_matches(name, links(), n=1, cutoff=0.4)
        hint = f"; nearest is {near[0]}" if near else ""
        refuse(f"link {name!r} is unknown: its start-up and rate are missing{hint}", unknown=True)
    if found.start_ns is None or found.gb_per_s is None:
        missing = "start-up" if found.start_ns is None else "rate"
        refuse(f"the {missing} of link {name} is unknown; no source gives it", unknown=True)
    return Link(
        name=name,
        alpha_ns=sum(found.start_ns) / 2,
        bytes_per_s=found.gb_per_s * 1e9,
        tail=None,
        evidence=found.evidence,
        notes=found.notes,
        source=found.source,
    )


@cache
def links() -> Mapping[str, LinkRow]:
    """Return the row that each named link is taken from."""
    named: dict[str, dict[str, str]] = _toml("links_stated.toml")["link"]
    found = {}
    for name, values in named.items():
        matches = [
            row
            for row in rows()
            if all(getattr(row, field) == value for field, value in values.items())
        ]
        if len(matches) != 1:
            raise ValueError(f"link {name} in links_stated.toml fits {len(matches)} rows, not one")
        found[name] = matches[0]
    return found


@cache
def classes() -> Mapping[str, LinkClass]:
    """Return every link class by name."""
    fit, stated = _toml("links_fit.toml"), _toml("links_stated.toml")
    factors = {
        family: {op: Factors(**values) for op, values in ops.items()}
        for family, ops in fit["factors"].items()
    }
    found: dict[str, LinkClass] = {}
    for name, values in fit["class"].items():
        family = "network" if values["between_nodes"] else "node"
        found[name] = FittedClass(name=name, factors=factors[family], **values)
    for name, values in stated["class"].items():
        fitted = fit["stated"].get(name, {})
        exchanges = {op: Exchange(**v) for op, v in fitted.pop("exchange", {}).items()}
        known = {key: None if value == "unknown" else value for key, value in values.items()}
        found[name] = StatedClass(name=name, exchanges=exchanges, **known | fitted)
    return found


@cache
def _aliases() -> Mapping[str, str]:
    names: dict[str, str] = _toml("links_stated.toml")["alias"]
    return names


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files("bedplate.perf").joinpath("data", name).read_text(encoding="utf-8"))

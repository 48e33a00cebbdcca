"""What breaks, and when it is well again. Times count from the beginning of the run.

A fault changes the outside only (cards, links, tools, the gateway); what the base makes of it is
the core's doing. `back_ns` and `until_ns` −1 mean never. Where faults of one kind overlap on one
thing, it is well again when the last of them has ended; until then the one that began last of those
that have not ended holds. A lost card and a lost partition are of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bedplate.twin.transfer import TailSpec

NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLost:
    """A card stops with all it holds, and comes back empty.

    `silent_ns` passes before anybody notices; until then what runs there hangs.
    """

    kind: ClassVar[str] = "card_lost"
    at_ns: int
    card: str
    back_ns: int = NEVER
    silent_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLost:
    """All cards of a partition stop at once, as with its power."""

    kind: ClassVar[str] = "partition_lost"
    at_ns: int
    partition: str
    back_ns: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSlow:
    """Every step of a card lasts `factor` times as long (a hot chip, a sick neighbour)."""

    kind: ClassVar[str] = "card_slow"
    at_ns: int
    card: str
    factor: float
    until_ns: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLost:
    """Cards of a partition do not reach the pool: stores and loads fail."""

    kind: ClassVar[str] = "link_lost"
    at_ns: int
    partition: str
    until_ns: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSlow:
    """Moves of a partition's cards flow `factor` times slower, some of them wait a long tail."""

    kind: ClassVar[str] = "link_slow"
    at_ns: int
    partition: str
    factor: float
    until_ns: int = NEVER
    tail: TailSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSlow:
    """Gaps that begin in this time last `factor` times as long. `tool` "" means every gap."""

    kind: ClassVar[str] = "tool_slow"
    at_ns: int
    factor: float
    tool: str = ""
    until_ns: int = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRestarted:
    """The service is gone from `at_ns` to `back_ns`, then recovers from its journal.

    What ran is lost and asked again by its clients; cards come back empty, the pool keeps its
    entries.
    """

    kind: ClassVar[str] = "gateway_restarted"
    at_ns: int
    back_ns: int


Fault = CardLost | PartitionLost | CardSlow | LinkLost | LinkSlow | ToolSlow | GatewayRestarted

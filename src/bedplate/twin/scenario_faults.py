"""Faults in a scenario file: one `[[fault]]` each, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bedplate.config.fields import SECONDS_MAX, Name, Section, to_ns
from bedplate.core.units import SECOND_NS
from bedplate.twin.faults import (
    NEVER,
    CardLost,
    CardSlow,
    Fault,
    GatewayRestarted,
    LinkLost,
    LinkSlow,
    PartitionLost,
    ToolSlow,
)
from bedplate.twin.transfer import TailSpec

Instant = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
Factor = Annotated[float, Field(gt=0, le=1_000_000)]
Partition = Annotated[str, Field(max_length=64)]

_AT = "When it happens, from the beginning of the run."
_UNTIL = "When it is well again; left out, never."
_FACTOR = "How many times as long everything takes; below 1 it is faster."


class TailConfig(Section):
    """Rare long waits of KV moves."""

    share: float = Field(gt=0, le=1, description="Part of all moves that wait longer.")
    mean_seconds: float = Field(
        gt=0,
        le=SECONDS_MAX,
        description="Mean of their extra wait, which has a heavy tail; less than `max_seconds`.",
    )
    max_seconds: float = Field(
        default=60.0,
        gt=0,
        le=SECONDS_MAX,
        description="Longest extra wait; a move that takes a minute in all fails.",
    )

    def spec(self) -> TailSpec:
        """Return it as the twin wants it.

        Cut at the longest, waits of a scale s have the mean s × max ÷ (s + max), so that theirs
        is longer than the mean that is asked for.
        """
        mean_s, max_s = self.mean_seconds, self.max_seconds
        scale_s = mean_s * max_s / (max_s - mean_s)
        return TailSpec(self.share, scale_s * SECOND_NS, float(to_ns(max_s)))

    @model_validator(mode="after")
    def _mean_is_reached(self) -> Self:
        if self.mean_seconds >= self.max_seconds:
            raise ValueError(
                f"mean_seconds {self.mean_seconds:g} is not below max_seconds {self.max_seconds:g}"
            )
        return self


class _Fault(Section):
    at_seconds: Instant = Field(description=_AT)

    @property
    def at_ns(self) -> int:
        return to_ns(self.at_seconds)


class _Lasting(_Fault):
    until_seconds: Instant | None = Field(default=None, description=_UNTIL)

    @property
    def until_ns(self) -> int:
        return NEVER if self.until_seconds is None else to_ns(self.until_seconds)

    @model_validator(mode="after")
    def _ends_after_it_began(self) -> Self:
        if self.until_seconds is not None and self.until_seconds <= self.at_seconds:
            raise ValueError(
                f"until_seconds {self.until_seconds:g} is not after at_seconds {self.at_seconds:g}"
            )
        return self


class CardLostConfig(_Lasting):
    """A card stops with all it holds, and comes back empty."""

    kind: Literal["card_lost"] = Field(description="A card is lost.")
    card: Name = Field(
        description="Card id: the group's name and a number, such as `box-0`. Of a card of several "
        "chips, the loss of one is the loss of all."
    )
    silent_seconds: Instant = Field(
        default=0.0, description="So long nobody notices, and what runs there hangs."
    )

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return CardLost(
            at_ns=self.at_ns,
            card=self.card,
            back_ns=self.until_ns,
            silent_ns=to_ns(self.silent_seconds),
        )


class PartitionLostConfig(_Lasting):
    """All cards of a partition stop at once, as with its power."""

    kind: Literal["partition_lost"] = Field(description="A partition is lost.")
    partition: Partition = Field(description="Partition of the cards.")

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return PartitionLost(at_ns=self.at_ns, partition=self.partition, back_ns=self.until_ns)


class CardSlowConfig(_Lasting):
    """Every step of a card lasts longer: a hot chip, a sick neighbour."""

    kind: Literal["card_slow"] = Field(description="A card is slow.")
    card: Name = Field(description="Card id, such as `box-0`.")
    factor: Factor = Field(description=_FACTOR)

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return CardSlow(
            at_ns=self.at_ns, card=self.card, factor=self.factor, until_ns=self.until_ns
        )


class LinkLostConfig(_Lasting):
    """The cards of a partition do not reach the pool: stores and loads fail."""

    kind: Literal["link_lost"] = Field(description="A link is lost.")
    partition: Partition = Field(
        default="", description="Partition of the cards; left out, of those that have none."
    )

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return LinkLost(at_ns=self.at_ns, partition=self.partition, until_ns=self.until_ns)


class LinkSlowConfig(_Lasting):
    """KV moves of a partition's cards are slower, and some wait long."""

    kind: Literal["link_slow"] = Field(description="A link is slow.")
    partition: Partition = Field(
        default="", description="Partition of the cards; left out, of those that have none."
    )
    factor: Factor = Field(default=1.0, description=_FACTOR)
    tail: TailConfig | None = Field(default=None, description="Rare long waits of moves.")

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return LinkSlow(
            at_ns=self.at_ns,
            partition=self.partition,
            factor=self.factor,
            until_ns=self.until_ns,
            tail=None if self.tail is None else self.tail.spec(),
        )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.factor == 1.0 and self.tail is None:
            raise ValueError("it changes nothing without factor or tail; give one of them")
        return self


class ToolSlowConfig(_Lasting):
    """Tool gaps that begin in this time last longer."""

    kind: Literal["tool_slow"] = Field(description="A tool is slow.")
    tool: str = Field(default="", max_length=128, description="Its name; left out, every tool.")
    factor: Factor = Field(description=_FACTOR)

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return ToolSlow(
            at_ns=self.at_ns, factor=self.factor, tool=self.tool, until_ns=self.until_ns
        )


class GatewayRestartedConfig(_Fault):
    """The service is gone for a while, then recovers from its journal."""

    kind: Literal["gateway_restarted"] = Field(description="The service restarts.")
    down_seconds: float = Field(gt=0, le=SECONDS_MAX, description="How long it is gone.")

    def fault(self) -> Fault:
        """Return it as the twin wants it."""
        return GatewayRestarted(at_ns=self.at_ns, back_ns=self.at_ns + to_ns(self.down_seconds))


FaultConfig = Annotated[
    CardLostConfig
    | PartitionLostConfig
    | CardSlowConfig
    | LinkLostConfig
    | LinkSlowConfig
    | ToolSlowConfig
    | GatewayRestartedConfig,
    Field(discriminator="kind"),
]

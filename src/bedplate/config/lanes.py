"""Service classes in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from bedplate.config.fields import ContextTokens, Count, Percent, Seconds, Section, Wait, to_ns
from bedplate.core.limits import BATCH, INTERACTIVE, SHARED, LanePolicy, default_policy
from bedplate.core.units import SECOND_NS


class LaneConfig(Section):
    """Limits of one service class."""

    admit_percent: Percent = Field(
        description="Share of all KV room up to which its sessions are admitted."
    )
    queue_max: Count = Field(description="Turns that wait, per tenant.")
    wait_seconds: Seconds = Field(description="Longest wait before a refusal.")
    output_tokens: ContextTokens = Field(description="Output limit of a turn that names none.")
    lease_seconds: Seconds = Field(
        description="How long a card copy is protected in a tool gap, at most."
    )
    idle_seconds: Seconds = Field(description="How long a silent session lives.")
    share_percent: Percent = Field(
        description="Share of the work that it gets whatever waits in the lanes above it."
    )

    refuse_seconds: Wait = Field(
        description="A session that would wait longer for its first card is refused at once; "
        "0 is never."
    )

    def policy(self) -> LanePolicy:
        """Return the lane as core wants it."""
        return LanePolicy(
            admit_permille=round(self.admit_percent * 10),
            queue_max=self.queue_max,
            wait_max_ns=to_ns(self.wait_seconds),
            output_tokens=self.output_tokens,
            lease_ns=to_ns(self.lease_seconds),
            idle_max_ns=to_ns(self.idle_seconds),
            share_permille=round(self.share_percent * 10),
            refuse_ns=to_ns(self.refuse_seconds),
        )


def lane_defaults(lane: int) -> dict[str, float]:
    """Return the keys of a lane that nobody configured."""
    policy = default_policy().lanes[lane]
    return {
        "admit_percent": policy.admit_permille / 10,
        "queue_max": policy.queue_max,
        "wait_seconds": policy.wait_max_ns / SECOND_NS,
        "output_tokens": policy.output_tokens,
        "lease_seconds": policy.lease_ns / SECOND_NS,
        "idle_seconds": policy.idle_max_ns / SECOND_NS,
        "share_percent": policy.share_permille / 10,
        "refuse_seconds": policy.refuse_ns / SECOND_NS,
    }


def _complete(lane: int) -> BeforeValidator:
    def complete(raw: object) -> object:
        return {**lane_defaults(lane), **raw} if isinstance(raw, Mapping) else raw

    return BeforeValidator(complete)


class LanesConfig(Section):
    """The three service classes; a lane's missing keys keep their defaults."""

    interactive: Annotated[LaneConfig, _complete(INTERACTIVE)] = Field(
        default_factory=lambda: LaneConfig.model_validate(lane_defaults(INTERACTIVE)),
        description="A person waits for each turn.",
    )
    shared: Annotated[LaneConfig, _complete(SHARED)] = Field(
        default_factory=lambda: LaneConfig.model_validate(lane_defaults(SHARED)),
        description="Agents that other work waits for.",
    )
    batch: Annotated[LaneConfig, _complete(BATCH)] = Field(
        default_factory=lambda: LaneConfig.model_validate(lane_defaults(BATCH)),
        description="Work that only has to end in time.",
    )

"""The `[clients]` of a scenario file."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from bedplate.config.fields import Seconds, Section, to_ns
from bedplate.core.units import SECOND_NS
from bedplate.twin.retry import RETRIES, RetryRule


class ClientsConfig(Section):
    """How agents ask again after a refusal, a failure, or while the service is away."""

    tries: int = Field(
        default=RETRIES.tries,
        ge=1,
        le=1_000,
        description="Times that one turn is asked, the first included; then its session is given "
        "up, and what would have followed never arrives.",
    )
    pause_seconds: Seconds = Field(
        default=RETRIES.pause_ns / SECOND_NS,
        description="Pause before the second try; it doubles with each. Where the service names a "
        "longer one, that holds.",
    )
    pause_max_seconds: Seconds = Field(
        default=RETRIES.pause_max_ns / SECOND_NS, description="Longest pause."
    )

    def rule(self) -> RetryRule:
        """Return it as the twin wants it."""
        return RetryRule(self.tries, to_ns(self.pause_seconds), to_ns(self.pause_max_seconds))

    @model_validator(mode="after")
    def _pauses_rise(self) -> Self:
        if self.pause_max_seconds < self.pause_seconds:
            raise ValueError(
                f"pause_max_seconds {self.pause_max_seconds:g} is below pause_seconds "
                f"{self.pause_seconds:g}"
            )
        return self

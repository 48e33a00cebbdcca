"""Limits and reserves of tenants, as the configuration spells them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from bedplate.config.fields import (
    Bytes,
    Limit,
    Micro,
    Name,
    PerMinute,
    Section,
    TokenLimit,
    TokenSum,
    Weight,
    Zone,
)
from bedplate.core.ids import TenantId
from bedplate.core.limits import TenantPolicy


class TenantLimits(Section):
    """Limits of each tenant that sets none of its own; 0 means no limit."""

    running_max: Limit = Field(default=0, description="Turns on cards at once.")
    inflight_max: Limit = Field(default=0, description="Turns accepted and not ended.")
    requests_per_minute: PerMinute = Field(default=0, description="Requests, evenly refilled.")
    tokens_per_minute: PerMinute = Field(
        default=0, description="Tokens in and out, evenly refilled."
    )
    session_tokens_max: TokenLimit = Field(default=0, description="Longest context of one session.")
    pool_bytes_max: Bytes = Field(default=0, description="KV in the pool.")
    weight: Weight = Field(default=1, description="Share of a lane against other tenants.")
    day_micro_max: Micro = Field(default=0, description="Money of a day, in millionths.")
    month_micro_max: Micro = Field(default=0, description="Money of a month, in millionths.")
    session_micro_max: Micro = Field(default=0, description="Money of one session, in millionths.")
    session_total_tokens_max: TokenSum = Field(
        default=0, description="Tokens in and out of one session, all its turns together."
    )
    zone: Zone = Field(default="UTC", description="Time zone of days and months.")
    card_tokens_max: TokenLimit = Field(default=0, description="KV on cards, in tokens.")

    def policy(self, tenant: str) -> TenantPolicy:
        """Return the limits as core wants them, for one tenant ("" is the default entry)."""
        return TenantPolicy(
            tenant=TenantId(tenant),
            running_max=self.running_max,
            inflight_max=self.inflight_max,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            session_tokens_max=self.session_tokens_max,
            pool_bytes_max=self.pool_bytes_max,
            weight=self.weight,
            day_micro_max=self.day_micro_max,
            month_micro_max=self.month_micro_max,
            session_micro_max=self.session_micro_max,
            session_total_tokens_max=self.session_total_tokens_max,
            zone=self.zone,
            card_tokens_max=self.card_tokens_max,
        )


class TenantConfig(Section):
    """One tenant. A limit that is left out is that of `[defaults]`."""

    id: Name = Field(description="The tenant in keys, records and bills; unique.")
    name: str = Field(default="", max_length=200, description="The tenant for people.")
    running_max: Limit | None = Field(default=None, description="Turns on cards at once.")
    inflight_max: Limit | None = Field(default=None, description="Turns accepted and not ended.")
    requests_per_minute: PerMinute | None = Field(
        default=None, description="Requests, evenly refilled."
    )
    tokens_per_minute: PerMinute | None = Field(
        default=None, description="Tokens in and out, evenly refilled."
    )
    session_tokens_max: TokenLimit | None = Field(
        default=None, description="Longest context of one session."
    )
    pool_bytes_max: Bytes | None = Field(default=None, description="KV in the pool.")
    weight: Weight | None = Field(
        default=None, description="Share of a lane against other tenants."
    )
    day_micro_max: Micro | None = Field(default=None, description="Money of a day, in millionths.")
    month_micro_max: Micro | None = Field(
        default=None, description="Money of a month, in millionths."
    )
    session_micro_max: Micro | None = Field(
        default=None, description="Money of one session, in millionths."
    )
    session_total_tokens_max: TokenSum | None = Field(
        default=None, description="Tokens in and out of one session, all its turns together."
    )
    zone: Zone | None = Field(default=None, description="Time zone of days and months.")
    card_tokens_max: TokenLimit | None = Field(default=None, description="KV on cards, in tokens.")

    reserve_tokens: TokenLimit = Field(
        default=0, description="KV on the cards of each model that nobody else may keep from it."
    )
    lend_tokens: TokenLimit = Field(
        default=0, description="As much of that others may use while none of its turns waits."
    )
    pool_reserve_bytes: Bytes = Field(
        default=0, description="KV in the pool that does not go for others."
    )

    def policy(self, defaults: TenantLimits) -> TenantPolicy:
        """Return the tenant's limits as core wants them."""
        own = self.model_dump(include=set(TenantLimits.model_fields), exclude_none=True)
        return (
            defaults.model_copy(update=own)
            .policy(self.id)
            ._replace(
                reserve_tokens=self.reserve_tokens,
                lend_tokens=self.lend_tokens,
                pool_reserve_bytes=self.pool_reserve_bytes,
            )
        )


def check_limits(limits: Iterable[TenantPolicy]) -> None:
    """Compare each tenant's limits with one another; the tenant "" is `[defaults]`.

    Raises:
        ValueError: one is above the other; the message names both.
    """
    for one in limits:
        whose = f'tenant "{one.tenant}"' if one.tenant else "defaults"
        for key, value, most_key, most in (
            ("day_micro_max", one.day_micro_max, "month_micro_max", one.month_micro_max),
            ("reserve_tokens", one.reserve_tokens, "card_tokens_max", one.card_tokens_max),
            ("pool_reserve_bytes", one.pool_reserve_bytes, "pool_bytes_max", one.pool_bytes_max),
        ):
            if most and value > most:
                raise ValueError(f"{whose}: {key} {value} is above {most_key} {most}")
        if one.lend_tokens > one.reserve_tokens:
            raise ValueError(
                f"{whose}: lend_tokens {one.lend_tokens} is above reserve_tokens "
                f"{one.reserve_tokens}"
            )

"""Price lists, and what one row costs.

All amounts are integers, in millionths of the currency unit. A row has six parts, each computed
exactly as a fraction and then rounded once, half to even; every sum on a bill is a sum of these
rounded parts, so any two ways of grouping rows add up to the same total.

    uncached   (prompt − cached) tokens  × uncached_micro ÷ 10^6
    cached     cached tokens             × cached_micro   ÷ 10^6
    output     output tokens             × output_micro   ÷ 10^6
    card_kv    token-ns on the card      × bytes a token  × card_kv_micro ÷ (2^30 × 3,600 × 10^9)
    pool_kv    token-ns in the pool      × bytes a token  × pool_kv_micro ÷ (2^30 × 3,600 × 10^9)
    card_time  slot-ns ÷ slots           × card_hour_micro                ÷ (3,600 × 10^9)

Tokens and card time of a turn that failed on our side (`FREE_STATUSES`) cost nothing; they stay in
its row. A cancelled turn pays for what was computed until the engine stopped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bedplate.config.tree import PricesConfig
from bedplate.errors import JournalError
from bedplate.metering.rows import UsageRow

FREE_STATUSES = frozenset(("error", "lost", "refused"))
_MILLION = 1_000_000
_HOUR_NS = 3_600 * 1_000_000_000
_GIB_HOUR = 2**30 * _HOUR_NS


class Prices(NamedTuple):
    """One version of the price list; see the module's table."""

    version: str
    currency: str
    uncached_micro: int
    cached_micro: int
    output_micro: int
    card_kv_micro: int
    pool_kv_micro: int
    card_hour_micro: int

    @classmethod
    def of_config(cls, config: PricesConfig) -> Prices:
        """Return the configured list."""
        return cls(**{name: getattr(config, name) for name in cls._fields})

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Prices:
        """Return the list that `body` wrote.

        Raises:
            JournalError: not a price list.
        """
        types = {"version": str, "currency": str}
        if body.keys() != set(cls._fields) or any(
            type(value) is not types.get(name, int) for name, value in body.items()
        ):
            raise JournalError(f"a price list has exactly the fields {', '.join(cls._fields)}")
        return cls(**body)

    def body(self) -> dict[str, Any]:
        """Return the list as JSON values, as `core_started` notes carry it under `prices`."""
        return self._asdict()


class Cost(NamedTuple):
    """Parts of an amount, in micro-currency."""

    uncached: int
    cached: int
    output: int
    card_kv: int
    pool_kv: int
    card_time: int

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(self)

    def plus(self, other: Cost) -> Cost:
        """Return the sum, part by part."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Cost(0, 0, 0, 0, 0, 0)


def cost_of(row: UsageRow, prices: Prices, *, kv_bytes_per_token: int, slots: int) -> Cost:
    """Return what a row costs.

    Args:
        row: Any row.
        prices: The list that the row names.
        kv_bytes_per_token: Of the row's model, as its cards reported it.
        slots: Of the row's card, which share its hours; 1 or more.
    """
    assert slots >= 1
    assert row.price_version == prices.version
    charged = 0 if row.status in FREE_STATUSES else 1
    return Cost(
        uncached=_rounded(charged * row.uncached_tokens * prices.uncached_micro, _MILLION),
        cached=_rounded(charged * row.cached_tokens * prices.cached_micro, _MILLION),
        output=_rounded(charged * row.out_tokens * prices.output_micro, _MILLION),
        card_kv=_rounded(
            row.kv_card_token_ns * kv_bytes_per_token * prices.card_kv_micro, _GIB_HOUR
        ),
        pool_kv=_rounded(
            row.kv_pool_token_ns * kv_bytes_per_token * prices.pool_kv_micro, _GIB_HOUR
        ),
        card_time=_rounded(charged * row.slot_ns * prices.card_hour_micro, slots * _HOUR_NS),
    )


def _rounded(numerator: int, denominator: int) -> int:
    """Return the fraction rounded half to even."""
    whole, rest = divmod(numerator, denominator)
    twice = 2 * rest
    return whole + (twice > denominator or (twice == denominator and whole & 1))

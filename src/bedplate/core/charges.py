"""What one row costs by a price list: the one source for bills, and for budgets in the core.

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

from typing import Final, NamedTuple, Protocol

from bedplate.core.prices import Prices

FREE_STATUSES: Final = ("error", "lost", "refused")
_MILLION: Final = 1_000_000
_HOUR_NS: Final = 3_600 * 1_000_000_000
_GIB_HOUR: Final = 2**30 * _HOUR_NS


class Used(Protocol):
    """What a row tells of use; `core.actions.Settled` and `metering.rows.UsageRow` do."""

    @property
    def status(self) -> str:
        """How the turn ended."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Whole prompt."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Of these, not computed again."""
        ...

    @property
    def out_tokens(self) -> int:
        """Produced."""
        ...

    @property
    def slot_ns(self) -> int:
        """Time on a slot."""
        ...

    @property
    def kv_card_token_ns(self) -> int:
        """KV kept on a card."""
        ...

    @property
    def kv_pool_token_ns(self) -> int:
        """KV kept in the pool."""
        ...


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
        return (
            self.uncached + self.cached + self.output + self.card_kv + self.pool_kv + self.card_time
        )

    def plus(self, other: Cost) -> Cost:
        """Return the sum, part by part."""
        return Cost(*[a + b for a, b in zip(self, other, strict=True)])


NOTHING = Cost(0, 0, 0, 0, 0, 0)


def cost_of(row: Used, prices: Prices, *, kv_bytes_per_token: int, slots: int) -> Cost:
    """Return what a row costs.

    Args:
        row: Any row.
        prices: The list that the row names.
        kv_bytes_per_token: Of the row's model, as its cards reported it.
        slots: Of the row's card, which share its hours; 1 or more.
    """
    assert slots >= 1
    charged = 0 if row.status in FREE_STATUSES else 1
    uncached_tokens = row.prompt_tokens - row.cached_tokens
    return Cost(
        uncached=_rounded(charged * uncached_tokens * prices.uncached_micro, _MILLION),
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


def highest(prices: Prices, *, prompt_tokens: int, limit_tokens: int) -> int:
    """Return the most that the tokens of a call may cost: nothing cached, its limit produced.

    A prompt token counts at the dearer of its two prices, so that the bound holds for a list that
    asks more for reused ones. The two parts of a prompt are rounded each on its own, which may add
    a millionth unless both prices are whole a token.
    """
    prompt_micro = max(prices.uncached_micro, prices.cached_micro)
    whole = prices.uncached_micro % _MILLION == prices.cached_micro % _MILLION == 0
    return (
        _rounded(prompt_tokens * prompt_micro, _MILLION)
        + (0 if whole else 1)
        + _rounded(limit_tokens * prices.output_micro, _MILLION)
    )


def amount(micro: int, prices: Prices) -> str:
    """Return an amount in words, exactly: 1.25 CNY."""
    whole, rest = divmod(micro, _MILLION)
    fraction = f"{rest:06d}".rstrip("0")
    return f"{whole}.{fraction} {prices.currency}" if fraction else f"{whole} {prices.currency}"


def _rounded(numerator: int, denominator: int) -> int:
    """Return the fraction rounded half to even."""
    whole = numerator // denominator
    twice = 2 * (numerator - whole * denominator)
    return whole + (twice > denominator or (twice == denominator and whole & 1))

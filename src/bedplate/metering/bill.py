"""Bills: sums of priced usage rows, grouped as the reader asks.

Everything comes from the journal: the rows, the price lists (the `core_started` note of each start
carries the one in force), and what a token's KV weighs and how many slots share a card (`CardUp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from bedplate.core.charges import NOTHING, Cost, cost_of
from bedplate.core.limits import LANE_NAMES
from bedplate.core.prices import Prices
from bedplate.errors import InvalidRequest, JournalError
from bedplate.journal import Record
from bedplate.metering.rows import USAGE, UsageRow, row_of

BILL_KINDS = ("core_started", "CardUp", USAGE)
"""Kinds of records that a bill is made of."""
_SECOND_NS = 1_000_000_000


class Line(NamedTuple):
    """One line of a bill: the rows of one group in one currency.

    `turns` counts rows of turns, `calls` those of embedding calls. `cost` is in micro-currency.
    """

    key: tuple[str, ...]
    currency: str
    turns: int
    calls: int
    uncached_tokens: int
    cached_tokens: int
    out_tokens: int
    queue_ns: int
    slot_ns: int
    tool_ns: int
    kv_card_token_ns: int
    kv_pool_token_ns: int
    cost: Cost

    def plus(self, other: Line) -> Line:
        """Return the sum of two lines of one currency, under this line's key."""
        assert self.currency == other.currency
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMMED}
        return self._replace(cost=self.cost.plus(other.cost), **sums)


_SUMMED = Line._fields[2:-1]


@dataclass(frozen=True, slots=True)
class Bill:
    """Lines sorted by key, and their sum for each currency."""

    by: tuple[str, ...]
    lines: tuple[Line, ...]
    totals: tuple[Line, ...]


def _when(format_: str) -> Callable[[UsageRow, tzinfo], str]:
    return lambda row, zone: datetime.fromtimestamp(row.time_ns // _SECOND_NS, zone).strftime(
        format_
    )


GROUPS: dict[str, Callable[[UsageRow, tzinfo], str]] = {
    "tenant": lambda row, zone: row.tenant,
    "lane": lambda row, zone: LANE_NAMES[row.lane],
    "model": lambda row, zone: row.model,
    "session": lambda row, zone: row.session,
    "day": _when("%Y-%m-%d"),
    "month": _when("%Y-%m"),
}
"""What rows can be grouped by. A row belongs to the day on which its turn ended."""


@dataclass(frozen=True, slots=True)
class Period:
    """Rows from `start_ns` up to, not including, `end_ns`; days are those of `zone`."""

    start_ns: int = 0
    end_ns: int = 2**63 - 1
    zone: tzinfo = UTC


class Pricer:
    """Folds what prices depend on, and prices each row as of its place in the journal."""

    def __init__(self, configured: Prices | None = None) -> None:
        self._prices: dict[str, Prices] = {}
        self._card_bytes: dict[str, int] = {}
        self._card_slots: dict[str, int] = {}
        self._model_bytes: dict[str, int] = {}
        if configured is not None:
            self._prices[configured.version] = configured

    def see(self, record: Record) -> None:
        """Take note of a price list or of a card.

        Raises:
            JournalError: a price list changed without a new version.
        """
        if record.kind == "CardUp":
            card, weight = record.body["card"], record.body["kv_bytes_per_token"]
            self._card_bytes[card] = self._model_bytes[record.body["model"]] = weight
            self._card_slots[card] = max(1, record.body["slots"])
        elif record.kind == "core_started" and "prices" in record.body:
            prices = Prices.of_body(record.body["prices"])
            if self._prices.setdefault(prices.version, prices) != prices:
                raise JournalError(
                    f"record {record.seq}: price list {prices.version!r} changed without a new "
                    "version; set prices.version in the configuration whenever a price changes"
                )

    def price(self, row: UsageRow) -> tuple[Cost, str]:
        """Return cost and currency of a row.

        Raises:
            JournalError: its price list is not known.
        """
        prices = self._prices.get(row.price_version)
        if prices is None:
            raise JournalError(
                f"usage record {row.seq} names price list {row.price_version!r}, which neither the "
                "journal nor the configuration holds"
            )
        assert row.price_version == prices.version
        cost = cost_of(
            row,
            prices,
            kv_bytes_per_token=self._card_bytes.get(row.card, self._model_bytes.get(row.model, 0)),
            slots=self._card_slots.get(row.card, 1),
        )
        return cost, prices.currency


def make_bill(
    records: Iterable[Record],
    *,
    by: Sequence[str] = ("tenant",),
    tenant: str | None = None,
    period: Period | None = None,
    configured: Prices | None = None,
) -> Bill:
    """Sum the rows of a period.

    Args:
        records: The journal from its beginning, at least of `BILL_KINDS`.
        by: Names of `GROUPS`, outermost first.
        tenant: Only this tenant's rows.
        period: Only rows of this time; all by default, with days in UTC.
        configured: A price list that the journal need not hold.

    Raises:
        InvalidRequest: an unknown grouping.
        JournalError: a record cannot be read, or a price list is unknown.

    Cost: memory grows with the number of lines, not of rows.
    """
    for name in by:
        if name not in GROUPS:
            raise InvalidRequest(f"cannot group by {name!r}; choose from {', '.join(GROUPS)}")
    period = period or Period()
    groups = [GROUPS[name] for name in by]
    pricer = Pricer(configured)
    lines: dict[tuple[tuple[str, ...], str], Line] = {}
    for record in records:
        if record.kind != USAGE:
            pricer.see(record)
            continue
        row = row_of(record)
        if not period.start_ns <= row.time_ns < period.end_ns:
            continue
        if tenant is not None and row.tenant != tenant:
            continue
        cost, currency = pricer.price(row)
        line = _line(tuple(group(row, period.zone) for group in groups), currency, row, cost)
        before = lines.get((line.key, currency))
        lines[line.key, currency] = line if before is None else before.plus(line)
    ordered = tuple(lines[key] for key in sorted(lines))
    return Bill(tuple(by), ordered, _totals(ordered))


def _line(key: tuple[str, ...], currency: str, row: UsageRow, cost: Cost) -> Line:
    return Line(
        key=key,
        currency=currency,
        turns=int(row.turn != ""),
        calls=int(row.is_call),
        uncached_tokens=row.uncached_tokens,
        cached_tokens=row.cached_tokens,
        out_tokens=row.out_tokens,
        queue_ns=row.queue_ns,
        slot_ns=row.slot_ns,
        tool_ns=row.tool_ns,
        kv_card_token_ns=row.kv_card_token_ns,
        kv_pool_token_ns=row.kv_pool_token_ns,
        cost=cost,
    )


def _totals(lines: Sequence[Line]) -> tuple[Line, ...]:
    totals: dict[str, Line] = {}
    for line in lines:
        zero = Line((), line.currency, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NOTHING)
        totals[line.currency] = totals.get(line.currency, zero).plus(line)
    return tuple(totals[currency] for currency in sorted(totals))

"""Price lists; `charges` computes what a row costs by one. Plain data."""

from __future__ import annotations

from typing import Any, NamedTuple

from bedplate.errors import JournalError


class Prices(NamedTuple):
    """One version of the price list; its prices as in the table of `charges`."""

    version: str
    currency: str
    uncached_micro: int
    cached_micro: int
    output_micro: int
    card_kv_micro: int
    pool_kv_micro: int
    card_hour_micro: int

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


DEFAULT_PRICES = Prices(
    version="default-1",
    currency="CNY",
    uncached_micro=2_000_000,
    cached_micro=200_000,
    output_micro=8_000_000,
    card_kv_micro=1_000_000,
    pool_kv_micro=50_000,
    card_hour_micro=0,
)
"""The list of a service that nobody configured: an example."""

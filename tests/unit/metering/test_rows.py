from __future__ import annotations

from typing import Any

import pytest

from bedplate.errors import JournalError
from bedplate.journal import Record
from bedplate.journal.record import record_of, rows_of
from bedplate.metering.rows import UsageRow, fold, row_of, usage_body
from tests.unit.metering.builders import Log, settled


def test_a_row_survives_the_journal() -> None:
    body = usage_body(settled(), event_seq=7, price_version="p-1")
    record = Record(8, 99, "usage", "fraud", "s-1", body)
    (stored,) = rows_of([record])
    row = row_of(record_of(stored))
    assert row == UsageRow(
        8, 99, 7, "p-1", "t-1", "s-1", 0, "fraud", 0, "m", "card-0", "stop",
        700, 500, 32, 10, 20, 30, 40, 50, 1, True,
    )  # fmt: skip
    assert (row.uncached_tokens, row.tokens) == (200, 732)
    assert row.exact is True


def test_the_fold_takes_rows_only_and_in_order() -> None:
    log = Log()
    log.arrived()
    log.usage(settled("t-1"))
    log.add("digest", {})
    log.usage(settled("t-2"))
    assert [row.turn for row in fold(log.records)] == ["t-1", "t-2"]


@pytest.mark.parametrize(
    "change",
    [
        {"out_tokens": -1},
        {"out_tokens": "32"},
        {"turn": 1},
        {"exact": True},
        {"cached_tokens": 701},
        {"extra": 1},
        {"session": "s-2"},
        {"tenant": "wealth"},
    ],
)
def test_a_row_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    body = {**usage_body(settled(), event_seq=7, price_version="p-1"), **change}
    with pytest.raises(JournalError, match="usage record 8"):
        row_of(Record(8, 99, "usage", "fraud", "s-1", body))


def test_a_row_without_its_price_list_is_refused() -> None:
    body = usage_body(settled(), event_seq=7, price_version="p-1")
    del body["price_version"]
    with pytest.raises(JournalError, match="price_version"):
        row_of(Record(8, 99, "usage", "fraud", "s-1", body))

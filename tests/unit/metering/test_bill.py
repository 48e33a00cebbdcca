from __future__ import annotations

from datetime import timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.config.tree import PricesConfig
from bedplate.core.charges import Cost, cost_of
from bedplate.core.prices import Prices
from bedplate.errors import InvalidRequest, JournalError
from bedplate.metering.bill import GROUPS, Bill, Period, make_bill
from bedplate.metering.rows import UsageRow, row_of
from tests.unit.metering.builders import START_NS, Log, settled

PRICES = Prices("p-1", "CNY", 2_000_000, 200_000, 8_000_000, 1_000_000, 50_000, 3_600_000)
HOUR_NS = 3_600 * 10**9
amounts = st.integers(0, 10**15)


def row(**fields: Any) -> UsageRow:
    log = Log()
    log.usage(settled(**fields))
    return row_of(log.records[0])


def test_a_row_costs_what_the_table_says() -> None:
    fields = {
        "prompt_tokens": 1_000_000,
        "cached_tokens": 250_000,
        "out_tokens": 500_000,
        "kv_card_token_ns": 2**20 * HOUR_NS,
        "kv_pool_token_ns": 2**21 * HOUR_NS,
        "slot_ns": 2 * HOUR_NS,
    }
    cost = cost_of(row(**fields), PRICES, kv_bytes_per_token=1024, slots=4)
    assert cost == Cost(1_500_000, 50_000, 4_000_000, 1_000_000, 100_000, 1_800_000)
    assert cost.total == 8_450_000


@pytest.mark.parametrize(
    ("tokens", "micro"), [(1, 0), (2, 0), (3, 1), (5, 1), (7, 1), (8, 2), (12, 2), (13, 3)]
)
def test_parts_are_rounded_half_to_even(tokens: int, micro: int) -> None:
    """At 200,000 a million a token costs 0.2; at 250,000, 2 tokens are 0.5 and 6 are 1.5."""
    used = row(prompt_tokens=tokens, cached_tokens=tokens, out_tokens=0)
    cost = cost_of(used, PRICES, kv_bytes_per_token=0, slots=1)
    assert cost.cached == micro
    dearer = PRICES._replace(cached_micro=250_000)
    for count, rounded in ((2, 0), (6, 2), (10, 2), (14, 4)):
        used = row(prompt_tokens=count, cached_tokens=count, out_tokens=0)
        assert cost_of(used, dearer, kv_bytes_per_token=0, slots=1).cached == rounded


@given(amounts, amounts, st.integers(0, 10**9), st.integers(1, 64))
def test_rounding_is_exact_at_any_size(kv: int, slot: int, weight: int, slots: int) -> None:
    used = row(kv_card_token_ns=kv, kv_pool_token_ns=0, slot_ns=slot)
    cost = cost_of(used, PRICES, kv_bytes_per_token=weight, slots=slots)
    card_kv = Fraction(kv * weight * PRICES.card_kv_micro, 2**30 * HOUR_NS)
    card_time = Fraction(slot * PRICES.card_hour_micro, slots * HOUR_NS)
    for got, exact in ((cost.card_kv, card_kv), (cost.card_time, card_time)):
        assert abs(got - exact) <= Fraction(1, 2)
        if abs(got - exact) == Fraction(1, 2):
            assert got % 2 == 0


@pytest.mark.parametrize("status", ["error", "lost", "refused"])
def test_what_failed_on_our_side_costs_only_the_kv_it_kept(status: str) -> None:
    used = row(status=status, kv_card_token_ns=2**20 * HOUR_NS, slot_ns=HOUR_NS)
    cost = cost_of(used, PRICES, kv_bytes_per_token=1024, slots=1)
    assert cost == Cost(0, 0, 0, 1_000_000, 0, 0)


def test_a_cancelled_turn_pays_for_what_was_computed() -> None:
    used = row(status="cancelled", prompt_tokens=100, cached_tokens=0, out_tokens=3)
    cost = cost_of(used, PRICES, kv_bytes_per_token=0, slots=1)
    assert (cost.uncached, cost.output) == (200, 24)


def test_prices_come_from_configuration_and_journal_alike() -> None:
    prices = PricesConfig().prices()
    assert Prices.of_body(prices.body()) == prices
    for body in ({}, {**prices.body(), "uncached_micro": "2"}, {**prices.body(), "more": 1}):
        with pytest.raises(JournalError, match="price list"):
            Prices.of_body(body)


def journal() -> Log:
    log = Log(step_ns=6 * HOUR_NS)
    log.prices()
    log.card_up()
    log.usage(settled("t-1", tenant="fraud", session="s-1", lane=0))
    log.usage(settled("t-2", tenant="wealth", session="s-2", lane=2, model="n"))
    log.usage(settled("t-3", tenant="fraud", session="s-1", lane=1))
    log.usage(
        settled("", tenant="fraud", session="s-1", prompt_tokens=0, cached_tokens=0, out_tokens=0)
    )
    log.usage(settled("", tenant="wealth", session="", card="", cached_tokens=0, out_tokens=0))
    return log


def keys(bill: Bill) -> list[tuple[str, ...]]:
    return [line.key for line in bill.lines]


def test_lines_by_each_group() -> None:
    log = journal()
    found = {by: keys(make_bill(log.records, by=[by])) for by in GROUPS}
    assert found["tenant"] == [("fraud",), ("wealth",)]
    assert found["lane"] == [("batch",), ("interactive",), ("shared",)]
    assert found["model"] == [("m",), ("n",)]
    assert found["session"] == [("",), ("s-1",), ("s-2",)]
    assert found["day"] == [("2023-11-15",), ("2023-11-16",)]
    assert found["month"] == [("2023-11",)]
    both = make_bill(log.records, by=["tenant", "lane"])
    assert keys(both) == [
        ("fraud", "interactive"),
        ("fraud", "shared"),
        ("wealth", "batch"),
        ("wealth", "interactive"),
    ]


def test_turns_and_calls_are_counted_apart() -> None:
    fraud, wealth = make_bill(journal().records).lines
    assert (fraud.turns, fraud.calls, wealth.turns, wealth.calls) == (2, 0, 1, 1)
    assert (wealth.uncached_tokens, wealth.cached_tokens, wealth.out_tokens) == (900, 500, 32)


def test_kv_of_a_shared_opening_is_no_call() -> None:
    log = Log()
    log.prices()
    log.usage(settled("", session="", card="", status="closed", kv_pool_token_ns=HOUR_NS))
    (line,) = make_bill(log.records).lines
    assert (line.turns, line.calls, line.kv_pool_token_ns) == (0, 0, HOUR_NS)


def test_days_are_those_of_the_zone() -> None:
    """Record 2 is at 2023-11-15T10:13:20Z, record 6 at 2023-11-16T10:13:20Z."""
    shanghai = Period(zone=timezone(timedelta(hours=14)))
    assert keys(make_bill(journal().records, by=["day"], period=shanghai)) == [
        ("2023-11-16",),
        ("2023-11-17",),
    ]


def test_a_period_takes_its_first_instant_and_not_its_last() -> None:
    log = journal()
    start, end = START_NS + 2 * 6 * HOUR_NS, START_NS + 4 * 6 * HOUR_NS
    (total,) = make_bill(log.records, period=Period(start, end)).totals
    assert total.turns == 2
    assert make_bill(log.records, period=Period(0, start)).totals == ()


def test_one_tenant_alone() -> None:
    assert keys(make_bill(journal().records, tenant="wealth")) == [("wealth",)]
    assert make_bill(journal().records, tenant="nobody").lines == ()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 2),
            st.integers(0, 3),
            st.integers(0, 999),
            st.integers(0, 999),
            st.integers(0, 10**14),
        ),
        max_size=40,
    )
)
def test_every_grouping_adds_up_to_the_same_total(
    rows: list[tuple[str, int, int, int, int, int]],
) -> None:
    log = Log(step_ns=HOUR_NS)
    log.prices(card_kv_micro=1_000_003, pool_kv_micro=7, card_hour_micro=33, cached_micro=199_999)
    log.card_up()
    for number, (tenant, lane, session, prompt, out, kv) in enumerate(rows):
        log.usage(
            settled(
                f"t-{number}",
                tenant=tenant,
                lane=lane,
                session=f"s-{session}",
                prompt_tokens=prompt,
                cached_tokens=prompt // 3,
                out_tokens=out,
                kv_card_token_ns=kv,
                kv_pool_token_ns=kv // 7,
                slot_ns=kv // 11,
            )
        )
    whole = make_bill(log.records, by=[])
    for by in (["tenant"], ["lane"], ["session"], ["day"], ["month", "tenant", "lane"]):
        bill = make_bill(log.records, by=by)
        assert bill.totals == whole.totals
        for total in bill.totals:
            assert total.cost.total == sum(line.cost.total for line in bill.lines)
            assert total.out_tokens == sum(line.out_tokens for line in bill.lines)


def test_rows_are_priced_by_the_list_they_name() -> None:
    log = Log()
    log.prices()
    log.usage(settled("t-1"))
    log.prices(version="p-2", currency="EUR", output_micro=1_000_000)
    log.usage(settled("t-2"), price_version="p-2")
    log.usage(settled("t-3"), price_version="p-1")
    bill = make_bill(log.records)
    assert [(line.currency, line.turns, line.cost.output) for line in bill.lines] == [
        ("CNY", 2, 512),
        ("EUR", 1, 32),
    ]
    assert [total.currency for total in bill.totals] == ["CNY", "EUR"]


def test_a_price_list_may_not_change_under_its_name() -> None:
    log = Log()
    log.prices()
    log.prices()
    assert make_bill(log.records).lines == ()
    log.prices(output_micro=1)
    with pytest.raises(JournalError, match="changed without a new version"):
        make_bill(log.records)


def test_an_unknown_price_list_is_named() -> None:
    log = Log()
    log.usage(settled())
    with pytest.raises(JournalError, match="'p-1', which neither"):
        make_bill(log.records)
    assert make_bill(log.records, configured=PRICES).totals[0].turns == 1


def test_kv_weighs_what_the_card_of_the_row_said() -> None:
    log = Log()
    log.prices(card_kv_micro=1_000_000)
    log.card_up("card-0", kv_bytes_per_token=1024)
    log.card_up("card-1", kv_bytes_per_token=512)
    kv = {
        "kv_card_token_ns": 2**20 * HOUR_NS,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "out_tokens": 0,
    }
    for card, micro in (("card-0", 1_000_000), ("card-1", 500_000), ("", 500_000)):
        log.usage(settled(f"t-{card}", session=f"s-{card}", card=card, **kv))
        bill = make_bill(log.records, by=["session"])
        assert {line.key[0]: line.cost.card_kv for line in bill.lines}[f"s-{card}"] == micro


def test_an_unknown_grouping_names_the_choices() -> None:
    with pytest.raises(InvalidRequest, match="tenant, lane, model, session, day, month"):
        make_bill([], by=["team"])

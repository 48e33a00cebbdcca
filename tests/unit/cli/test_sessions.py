from __future__ import annotations

from typing import Any

import pytest

from bedplate.cli.sessions import (
    _card_state,
    _chosen,
    _money,
    _place,
    _print_cards,
    _print_session,
    _print_sessions,
    _turn,
    _why,
    never_up,
)


def session(id_: str, name: str) -> dict[str, Any]:
    branch = {
        "branch": 0, "state": "idle", "card": "c-0", "card_tokens": 9, "pool_tokens": 0, "why": "",
        "since_ns": 0, "out_tokens": 0,
    }  # fmt: skip
    return {
        "id": id_, "name": name, "tenant": "t", "lane": "shared", "model": "served-model",
        "open_turns": 0, "created_ns": 0, "expires_ns": 60 * 10**9, "admitted": True,
        "branches": [branch], "spent_micro": 585, "reserved_micro": 40, "session_micro_max": 0,
        "spent_tokens": 1_420, "reserved_tokens": 30, "session_total_tokens_max": 2_000,
    }  # fmt: skip


def test_the_list_shows_id_name_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    _print_sessions([session("s-1", "claim-7"), session("s-2", "s-2")], 10**9, "EUR")
    first, second = [line for line in capsys.readouterr().out.splitlines() if "s-" in line]
    assert first.split()[:5] == ["s-1", "claim-7", "t", "shared", "served-model"]
    assert second.split()[:4] == ["s-2", "t", "shared", "served-model"]


@pytest.mark.parametrize("wanted", ["s-1", "claim-7"])
def test_a_session_is_found_by_id_and_by_name(wanted: str) -> None:
    found = [session("s-1", "claim-7"), session("s-2", "s-2")]
    assert _chosen(found, wanted, None, waiting=False) == found[:1]


def test_a_card_that_never_came_up_is_told() -> None:
    cards = {"e-0": "m", "e-1": "m", "f": "n"}
    state = {"cards": [{"card": "e-1"}], "problems": {"e-0": "refuses", "e-1": "broke off"}}
    assert never_up(state, cards) == [
        {"card": "e-0", "model": "m", "problem": "refuses"},
        {"card": "f", "model": "n", "problem": ""},
    ]
    assert never_up({"cards": [{"card": card} for card in cards], "problems": {}}, cards) == []


def test_what_keeps_cards_from_being_up_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    state = {
        "cards": [], "lanes": [], "tenants": [], "currency": "EUR", "pool": {"total_bytes": 0},
        "never_up": [{"card": "e-0", "model": "m", "problem": "takes no connection: refused"}],
        "problems": {"e-0": "takes no connection: refused", "e-1": "does not answer"},
    }  # fmt: skip
    _print_cards(state)
    out, err = capsys.readouterr()
    assert ["e-0", "m", "never", "up"] in [line.split() for line in out.splitlines()]
    assert err.splitlines() == [
        "card e-0 takes no connection: refused",
        "card e-1 does not answer",
    ]


@pytest.mark.parametrize(
    ("up", "draining", "running", "held", "state"),
    [
        (False, True, 0, 0, "down"),
        (True, False, 0, 0, "up"),
        (True, True, 1, 1, "draining"),
        (True, True, 0, 1, "draining"),
        (True, True, 0, 0, "out"),
    ],
)
def test_a_drained_card_is_out_once_nothing_is_on_it(
    up: bool, draining: bool, running: int, held: int, state: str
) -> None:
    use = {"running": running, "slots_held": held, "breaker": "closed", "slice": ""}
    card = {"up": up, "draining": draining, **use}
    assert _card_state(card) == state


def test_a_card_of_a_slice_says_so() -> None:
    card = {"up": True, "draining": False, "breaker": "closed", "slice": "night"}
    assert _card_state(card) == "up, slice night"


def test_a_running_turn_shows_no_count_of_kv() -> None:
    branch = {"card": "c-0", "card_tokens": 0, "pool_tokens": 0}
    assert _place(branch) == "c-0"
    assert _place({**branch, "card_tokens": 1_200, "pool_tokens": 9}) == "c-0 1,200, pool 9"


def test_a_running_turn_shows_its_seconds_and_tokens() -> None:
    branch = {"state": "running", "since_ns": 4 * 10**9, "out_tokens": 1_041, "why": "it produces"}
    assert _turn(branch, 9 * 10**9 + 1) == "running 5 s"
    assert _why(branch) == "it produces (1,041 so far)"
    idle = {"state": "idle", "since_ns": 0, "out_tokens": 0, "why": ""}
    assert (_turn(idle, 10**9), _why(idle)) == ("idle", "")


@pytest.mark.parametrize(
    ("micro", "limit_micro", "words"),
    [
        (2_573, 0, "0.002573"),
        (2_573, 3_000, "0.002573 of 0.003000 (85 %)"),
        (2_999, 3_000, "0.002999 of 0.003000 (99 %)"),
        (3_001, 3_000, "0.003001 of 0.003000 (all spent)"),
    ],
)
def test_money_has_the_digits_of_a_bill(micro: int, limit_micro: int, words: str) -> None:
    assert _money(micro, limit_micro) == words


def test_the_money_of_a_tenant_is_shown_with_its_currency(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tenant = {
        "tenant": "poor", "sessions": 4, "inflight": 0, "card_tokens": 480, "card_tokens_max": 0,
        "level": 0, "day_micro": 2_573, "day_micro_max": 3_000, "month_micro": 2_573,
        "month_micro_max": 0, "reserved_micro": 7,
    }  # fmt: skip
    state = {
        "cards": [], "lanes": [], "tenants": [tenant], "currency": "EUR", "never_up": [],
        "problems": {}, "pool": {"total_bytes": 0},
    }  # fmt: skip
    _print_cards(state)
    title, _, row = capsys.readouterr().out.splitlines()[-4:-1]
    assert "spent today, EUR" in title
    assert row.split() == [
        "poor",
        "4",
        "0",
        "480",
        "0.002573",
        "of",
        "0.003000",
        "(85",
        "%)",
        "0.002573",
        "0.000007",
    ]


def test_the_budgets_of_a_session_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    one = session("s-1", "claim-7")
    second = {**one["branches"][0], "branch": 1}
    _print_sessions([{**one, "branches": [*one["branches"], second]}], 10**9, "EUR")
    first_line, second_line = capsys.readouterr().out.splitlines()[-3:-1]
    assert "1,420 of 2,000 (71 %)" in first_line
    assert "0.000585" in first_line
    assert "0.000585" not in second_line, "what the session used is not told twice"
    _print_session(one, "EUR")
    lines = capsys.readouterr().out.splitlines()
    assert "tokens    1,420 of 2,000 (71 %), reserved 30" in lines
    assert "spent     0.000585 EUR, reserved 0.000040" in lines
    assert "expires   1970-01-01T00:01:00Z" in lines
    _print_session({**one, "open_turns": 1}, "EUR")
    assert "expires   not while a turn is open" in capsys.readouterr().out.splitlines()

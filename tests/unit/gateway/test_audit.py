"""Calls that were turned away are counted, and never journaled at the pace of who sends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bedplate.errors import JournalError, NotAllowed, NotAuthenticated
from bedplate.gateway.audit import CLIENT_ERROR, KINDS_MAX, REFUSED, TurnedAway


class Notes:
    def __init__(self) -> None:
        self.all: list[tuple[str, str, dict[str, Any]]] = []
        self.broken = False

    def __call__(self, kind: str, tenant: str, session: str, body: dict[str, Any]) -> int:
        if self.broken:
            raise JournalError("no disk")
        assert session == ""
        self.all.append((kind, tenant, body))
        return 1


@pytest.fixture
def notes() -> Notes:
    return Notes()


async def test_the_first_is_noted_at_once_and_a_flood_as_one_number(notes: Notes) -> None:
    turned = TurnedAway(notes)
    for _ in range(5000):
        turned.add(REFUSED, "", NotAuthenticated("bp_secret"), "10.0.0.1")
    assert [body["count"] for _, _, body in notes.all] == [1]
    turned.flush()
    assert [body["count"] for _, _, body in notes.all] == [1, 4999]
    assert notes.all[0] == (
        "refused",
        "",
        {"code": "invalid_api_key", "count": 1, "peer": "10.0.0.1"},
    )
    assert "secret" not in str(notes.all)
    turned.close()


async def test_a_flood_that_goes_on_is_noted_once_a_window_and_a_quiet_kind_is_let_go(
    notes: Notes,
) -> None:
    turned = TurnedAway(notes)
    for _ in range(3):
        turned.add(REFUSED, "", NotAuthenticated("x"), "p")
        turned.add(REFUSED, "", NotAuthenticated("x"), "p")
        turned.flush()
    assert [body["count"] for _, _, body in notes.all] == [1, 1, 2, 2]
    turned.flush()
    turned.flush()
    turned.add(REFUSED, "", NotAuthenticated("x"), "p")
    assert notes.all[-1][2]["count"] == 1
    turned.close()


async def test_kinds_tenants_and_codes_are_counted_apart(notes: Notes) -> None:
    turned = TurnedAway(notes)
    turned.add(REFUSED, "a", NotAllowed("x"), "p")
    turned.add(REFUSED, "b", NotAllowed("x"), "p")
    turned.add(CLIENT_ERROR, "a", NotAllowed("x"), "p")
    assert len(notes.all) == 3
    turned.close()


async def test_what_is_counted_is_bounded(notes: Notes) -> None:
    turned = TurnedAway(notes)
    for number in range(KINDS_MAX + 50):
        turned.add(REFUSED, f"t{number}", NotAllowed("x"), "p")
    turned.flush()
    assert len(notes.all) == KINDS_MAX + 2
    assert notes.all[-1] == ("refused", "", {"code": "others", "count": 49, "peer": "p"})
    turned.close()


async def test_closing_writes_what_is_left_and_stops_the_timer(notes: Notes) -> None:
    turned = TurnedAway(notes)
    turned.add(REFUSED, "", NotAuthenticated("x"), "p")
    turned.add(REFUSED, "", NotAuthenticated("x"), "p")
    turned.close()
    assert [body["count"] for _, _, body in notes.all] == [1, 1]
    assert not [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]


async def test_a_broken_journal_does_not_hide_the_answer(notes: Notes, caplog: Any) -> None:
    turned = TurnedAway(notes)
    notes.broken = True
    turned.add(REFUSED, "", NotAuthenticated("x"), "p")
    assert "could not note" in caplog.text
    turned.close()

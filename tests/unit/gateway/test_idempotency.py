"""Idempotency keys (F19)."""

from __future__ import annotations

import pytest

from bedplate.core.ids import SessionId, TenantId, TurnId
from bedplate.errors import IdempotencyConflict, InvalidRequest
from bedplate.gateway.idempotency import (
    Fresh,
    IdempotencyTable,
    Running,
    Stored,
    hash_body,
    in_progress,
)
from bedplate.journal.record import Record

BANK, FUND = TenantId("bank"), TenantId("fund")
BODY, OTHER = hash_body("/v1/chat/completions", b"{}"), hash_body("/v1/chat/completions", b"{ }")
T1, T2 = TurnId("t1"), TurnId("t2")
DAY = 24 * 3600 * 10**9


def fresh(table: IdempotencyTable, key: str = "k", tenant: TenantId = BANK, now: int = 0) -> Fresh:
    claim = table.begin(tenant, key, BODY, T1, now)
    assert isinstance(claim, Fresh)
    return claim


def answered(table: IdempotencyTable, key: str = "k", now: int = 0) -> dict[str, object]:
    return table.finish(BANK, fresh(table, key, now=now), SessionId("s"), "hash", now)


def test_an_answered_call_is_replayed() -> None:
    table = IdempotencyTable()
    answered(table)
    assert table.begin(BANK, "k", BODY, T2, 1) == Stored(T1, SessionId("s"), "hash")
    assert table.begin(BANK, "k", BODY, T2, 2) == Stored(T1, SessionId("s"), "hash")


def test_the_same_call_while_it_runs_is_told_which_turn() -> None:
    table = IdempotencyTable()
    fresh(table)
    running = table.begin(BANK, "k", BODY, T2, 1)
    assert running == Running(T1)
    error = in_progress(Running(T1))
    assert (error.http_status, error.code) == (409, "idempotency_in_progress")
    assert "t1" in error.message


@pytest.mark.parametrize("ended", [False, True])
def test_another_body_is_a_conflict(ended: bool) -> None:
    table = IdempotencyTable()
    claim = fresh(table)
    if ended:
        table.finish(BANK, claim, SessionId("s"), "hash", 0)
    with pytest.raises(IdempotencyConflict) as caught:
        table.begin(BANK, "k", OTHER, T2, 1)
    assert (caught.value.http_status, caught.value.code) == (409, "idempotency_key_conflict")


def test_a_call_without_an_answer_frees_its_key() -> None:
    table = IdempotencyTable()
    table.release(BANK, fresh(table))
    assert isinstance(table.begin(BANK, "k", OTHER, T2, 1), Fresh)


def test_keys_belong_to_their_tenant() -> None:
    table = IdempotencyTable()
    answered(table)
    assert isinstance(table.begin(FUND, "k", OTHER, T2, 1), Fresh)


def test_path_and_body_make_a_call() -> None:
    assert hash_body("/a", b"bc") != hash_body("/ab", b"c")
    assert hash_body("/a", b"b") == hash_body("/a", b"b")
    assert hash_body("/a", b"b", session="s") == hash_body("/a", b"b", session="s")
    hashes = {hash_body("/a", b"b", session=name) for name in ("", "s", "t")}
    assert len(hashes | {hash_body("/a", b"sb")}) == 4


def test_an_answer_is_kept_for_a_day() -> None:
    table = IdempotencyTable()
    answered(table, now=5)
    assert isinstance(table.begin(BANK, "k", BODY, T2, DAY + 4), Stored)
    assert isinstance(table.begin(BANK, "k", BODY, T2, DAY + 5), Fresh)


def test_expired_answers_leave_by_themselves() -> None:
    table = IdempotencyTable()
    for number in range(10):
        answered(table, str(number))
    for number in range(5):
        fresh(table, f"later {number}", now=DAY)
    assert len(table) == 5


def test_each_tenant_has_its_own_bound_and_running_calls_stay() -> None:
    table = IdempotencyTable(tenant_keys_max=3)
    fresh(table, "mine", FUND)
    fresh(table, "running")
    for number in range(5):
        answered(table, str(number))
    assert len(table) == 4
    assert isinstance(table.begin(FUND, "mine", BODY, T2, 1), Running)
    assert isinstance(table.begin(BANK, "running", BODY, T2, 1), Running)
    assert isinstance(table.begin(BANK, "4", BODY, T2, 1), Stored)
    assert isinstance(table.begin(BANK, "0", BODY, T2, 1), Fresh)


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "ü", "\x7f"])
def test_a_malformed_key_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key") as caught:
        IdempotencyTable().begin(BANK, key, BODY, T1, 0)
    assert caught.value.param == "Idempotency-Key"


def test_answers_survive_a_restart_and_running_calls_do_not() -> None:
    table = IdempotencyTable()
    body = answered(table, "done", now=7)
    fresh(table, "lost")
    after = IdempotencyTable()
    after.restore(Record(0, 7, "answered", "bank", "s", body), now_ns=8)
    after.restore(Record(1, 7, "usage", "bank", "s", {}), now_ns=8)
    assert after.begin(BANK, "done", BODY, T2, 9) == Stored(T1, SessionId("s"), "hash")
    with pytest.raises(IdempotencyConflict):
        after.begin(BANK, "done", OTHER, T2, 9)
    assert isinstance(after.begin(BANK, "lost", BODY, T2, 9), Fresh)


def test_a_restart_leaves_expired_answers_out() -> None:
    body = answered(IdempotencyTable())
    after = IdempotencyTable()
    after.restore(Record(0, 0, "answered", "bank", "s", body), now_ns=DAY)
    assert len(after) == 0


def test_a_key_can_be_finished_only_once() -> None:
    table = IdempotencyTable()
    claim = fresh(table)
    table.finish(BANK, claim, SessionId("s"), "hash", 0)
    with pytest.raises(AssertionError):
        table.finish(BANK, claim, SessionId("s"), "hash", 0)
    with pytest.raises(AssertionError):
        table.release(BANK, claim)

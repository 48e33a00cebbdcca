"""Recognition: each rule by example, and names."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.engines.base import ChatRequest
from bedplate.errors import InvalidRequest, UnknownSession
from tests.unit.gateway.recognition_client import (
    ANSWER,
    BANK,
    FUND,
    HELLO,
    MODEL,
    RESULT,
    SECOND,
    TOOL,
    Client,
    place,
    say,
)


def test_a_call_that_goes_on_from_the_last_answer_extends_its_branch() -> None:
    client = Client()
    first = client.told("let me look", HELLO)
    second = client.call(HELLO, ANSWER, RESULT)
    assert place(first) == ("new", "s-0000", 0, -1)
    assert place(second) == ("extend", "s-0000", 0, -1)


def test_several_messages_between_answers_still_extend() -> None:
    client = Client()
    client.told("let me look", HELLO)
    assert client.call(HELLO, ANSWER, RESULT, RESULT, say("user", "hm")).kind == "extend"


def test_an_answer_comes_back_in_the_forms_that_sdks_send() -> None:
    client = Client()
    placement = client.call(HELLO)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    client.recogniser.turn_ended(placement, answer, 0)
    again = {
        "role": "assistant",
        "tool_calls": [dict(call, function={"name": "f", "arguments": '{"a":1}'})],
        "refusal": None,
    }
    assert client.call(HELLO, again, RESULT).kind == "extend"


def test_a_call_that_diverges_forks_from_the_branch_with_the_answer() -> None:
    client = Client()
    client.told("let me look", HELLO)
    client.told("you have 12 EUR", HELLO, ANSWER, RESULT)
    other = client.call(HELLO, ANSWER, say("tool", "another result"))
    assert place(other) == ("fork", "s-0000", 1, 0)


def test_a_call_that_finds_its_head_busy_forks() -> None:
    client = Client()
    client.told("let me look", HELLO)
    kinds = [place(client.call(HELLO, ANSWER, RESULT)) for _ in range(3)]
    assert kinds == [
        ("extend", "s-0000", 0, -1),
        ("fork", "s-0000", 1, 0),
        ("fork", "s-0000", 2, 0),
    ]


def test_the_parent_of_a_fork_is_the_branch_that_shares_the_most() -> None:
    client = Client()
    client.told("let me look", HELLO)
    client.told("twelve", HELLO, ANSWER, RESULT)
    client.told("more?", HELLO, ANSWER, say("user", "wait"))
    # Neither "twelve" nor "more?" is in it, but branch 1 computed the question "wait".
    third = client.call(HELLO, ANSWER, say("user", "wait"), say("user", "and now?"))
    assert place(third) == ("fork", "s-0000", 2, 1)


def test_two_equal_first_calls_are_two_sessions() -> None:
    client = Client()
    assert client.call(HELLO).session != client.call(HELLO).session


def test_sub_agents_with_one_system_prompt_are_sessions_of_their_own() -> None:
    client = Client()
    system = say("system", "You are a careful analyst.")
    first = client.told("a", system, say("user", "task one"))
    second = client.call(system, say("user", "task two"))
    assert (second.kind, second.session != first.session) == ("new", True)


def test_equal_sessions_each_get_one_follow_up() -> None:
    client = Client()
    sessions = {client.told("let me look", HELLO).session for _ in range(3)}
    follow_ups = [client.call(HELLO, ANSWER, RESULT) for _ in range(4)]
    assert {p.session for p in follow_ups[:3]} == sessions
    assert [p.kind for p in follow_ups] == ["extend", "extend", "extend", "fork"]


def test_answers_that_we_did_not_produce_match_nothing() -> None:
    client = Client()
    client.told("let me look", HELLO)
    assert client.call(HELLO, say("assistant", "made up"), RESULT).kind == "new"
    assert client.call(HELLO, say("user", "let me look"), RESULT).kind == "new"


@pytest.mark.parametrize(
    "change",
    [{"tenant": FUND}, {"tools": (TOOL,)}, {"model": ModelId("other")}],
    ids=["tenant", "tools", "model"],
)
def test_tenant_tools_and_model_are_part_of_the_root(change: dict[str, Any]) -> None:
    client = Client()
    client.told("let me look", HELLO)
    assert client.call(HELLO, ANSWER, RESULT, **change).kind == "new"


def test_the_prompt_cache_key_is_no_identity() -> None:
    client = Client()
    key = {"prompt_cache_key": "all my agents"}
    placements = [
        client.recogniser.match(
            BANK,
            MODEL,
            ChatRequest(model=MODEL, messages=(say("user", text),), extra=key),
            None,
            0,
            turn=TurnId(text),
        )
        for text in ("one", "two")
    ]
    assert placements[0].session != placements[1].session


# --- retry ---


def test_an_identical_call_after_a_disconnect_takes_the_cut_turns_place() -> None:
    client = Client()
    cut = client.call(HELLO, body=b"1")
    client.end(cut, None, cut=True, now=0)
    again = client.call(HELLO, body=b"1", now=60 * SECOND)
    assert place(again) == ("retry", cut.session, 0, -1)
    assert again.retry_of == cut.turn


def test_a_cut_fork_is_retried_on_its_branch() -> None:
    client = Client()
    client.told("let me look", HELLO)
    client.call(HELLO, ANSWER, RESULT)
    fork = client.call(HELLO, ANSWER, RESULT, body=b"1")
    client.end(fork, None, cut=True)
    assert place(client.call(HELLO, ANSWER, RESULT, body=b"1")) == ("retry", "s-0000", 1, 0)


@pytest.mark.parametrize(
    ("body", "seconds", "tenant"),
    [(b"2", 1, BANK), (b"1", 61, BANK), (b"1", 1, FUND)],
    ids=["other body", "too late", "other tenant"],
)
def test_what_is_no_retry(body: bytes, seconds: int, tenant: TenantId) -> None:
    client = Client()
    cut = client.call(HELLO, body=b"1")
    client.end(cut, None, cut=True, now=0)
    other = client.call(HELLO, body=body, now=seconds * SECOND, tenant=tenant)
    assert (other.kind, other.session != cut.session) == ("new", True)


def test_an_identical_call_without_a_disconnect_is_a_new_turn() -> None:
    client = Client()
    failed = client.call(HELLO, body=b"1")
    client.end(failed, None)
    assert client.call(HELLO, body=b"1").session != failed.session


def test_one_disconnect_excuses_one_retry() -> None:
    client = Client()
    client.end(client.call(HELLO, body=b"1"), None, cut=True)
    kinds = [client.call(HELLO, body=b"1").kind for _ in range(2)]
    assert kinds == ["retry", "new"]


def test_a_retry_after_the_last_token_stays_in_the_session() -> None:
    client = Client()
    cut = client.call(HELLO, body=b"1")
    client.end(cut, "let me look", cut=True)
    assert place(client.call(HELLO, body=b"1")) == ("retry", cut.session, 1, 0)


# --- names ---


def test_a_client_names_its_session() -> None:
    client = Client()
    first = client.told("let me look", HELLO, name="run-7")
    second = client.call(HELLO, ANSWER, RESULT, name="run-7")
    assert (first.kind, second.kind) == ("new", "extend")
    assert second.session == first.session != "run-7"
    assert first.public_id == second.public_id == "run-7"
    assert client.recogniser.find(BANK, "run-7") == first.session
    assert client.recogniser.public_id(first.session) == "run-7"


def test_an_id_of_ours_is_a_name_too() -> None:
    client = Client()
    first = client.told("let me look", HELLO)
    assert first.public_id == first.session == client.recogniser.public_id(first.session)
    second = client.call(HELLO, ANSWER, RESULT, name=first.public_id)
    assert place(second) == ("extend", first.session, 0, -1)


def test_a_named_call_with_nothing_in_common_is_a_branch_without_parent() -> None:
    client = Client()
    client.told("let me look", HELLO, name="run-7")
    other = client.call(say("user", "something else"), name="run-7")
    assert place(other) == ("fork", "s-0000", 1, -1)


def test_a_compacted_history_forks_from_the_branch_with_its_system_prompt() -> None:
    client = Client()
    system = say("system", "You are a careful analyst.")
    client.told("let me look", system, HELLO, name="run-7")
    other = client.call(system, say("user", "summary of all so far"), name="run-7")
    assert place(other) == ("fork", "s-0000", 1, 0)


def test_two_tenants_may_use_one_name() -> None:
    client = Client()
    bank = client.told("let me look", HELLO, name="run-7")
    fund = client.call(HELLO, ANSWER, RESULT, name="run-7", tenant=FUND)
    assert (fund.kind, fund.session != bank.session) == ("new", True)
    assert client.recogniser.find(BANK, "run-7") != client.recogniser.find(FUND, "run-7")


def test_f14_the_id_of_another_tenants_session_is_not_found() -> None:
    client = Client()
    bank = client.told("let me look", HELLO)
    with pytest.raises(UnknownSession):
        client.call(HELLO, ANSWER, RESULT, name=bank.session, tenant=FUND)
    with pytest.raises(UnknownSession):
        client.recogniser.find(FUND, bank.session)
    assert client.call(HELLO, ANSWER, RESULT).kind == "extend"  # and nothing was touched


def test_a_call_without_a_name_stays_out_of_named_sessions() -> None:
    client = Client()
    client.told("let me look", HELLO, name="run-7")
    assert client.call(HELLO, ANSWER, RESULT).kind == "new"


@pytest.mark.parametrize(
    "name", ["", "a b", "-a", "../x", "a/b", "ü", "a\n", "x" * 129, "a\x00", "a,b"]
)
def test_a_malformed_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match="X-Session-Id") as caught:
        Client().call(HELLO, name=name)
    assert (caught.value.param, caught.value.http_status) == ("X-Session-Id", 400)


@pytest.mark.parametrize(
    "name", ["a", "0b6d3d3e-1c5c-4a3e-9d0a-5d7e2f1c9a11", "a@b.c:1", "x" * 128]
)
def test_usual_names_are_taken(name: str) -> None:
    assert Client().call(HELLO, name=name).public_id == name


# --- ends ---


def test_a_refused_first_call_leaves_nothing() -> None:
    client = Client()
    assert client.end(client.call(HELLO, name="run-7"), None) is None
    assert len(client.recogniser) == 0
    with pytest.raises(UnknownSession):
        client.recogniser.find(BANK, "run-7")


def test_a_failed_turn_leaves_its_branch_where_it_was() -> None:
    client = Client()
    client.told("let me look", HELLO)
    client.end(client.call(HELLO, ANSWER, RESULT), None)
    assert place(client.call(HELLO, ANSWER, RESULT)) == ("extend", "s-0000", 0, -1)


def test_branch_numbers_are_not_used_twice() -> None:
    client = Client()
    client.told("let me look", HELLO)
    client.call(HELLO, ANSWER, RESULT)
    client.end(client.call(HELLO, ANSWER, RESULT), None)
    assert client.call(HELLO, ANSWER, RESULT).branch == 2


def test_a_turn_cannot_end_twice() -> None:
    client = Client()
    placement = client.told("let me look", HELLO)
    with pytest.raises(AssertionError):
        client.end(placement, "again")


def test_a_session_closed_while_its_turn_runs_learns_nothing() -> None:
    client = Client()
    placement = client.call(HELLO)
    client.recogniser.forget(placement.session)
    assert client.end(placement, "let me look", cut=True) is None
    assert client.call(HELLO, ANSWER, RESULT).kind == "new"
    client.recogniser.forget(placement.session)

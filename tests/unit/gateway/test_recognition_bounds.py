"""Recognition: what it forgets, and what a restart brings back."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core.ids import SessionId
from bedplate.errors import QuotaExceeded
from bedplate.gateway.forest import Bounds
from bedplate.journal.record import Record
from tests.unit.gateway.recognition_client import (
    ANSWER,
    BANK,
    FUND,
    HELLO,
    RESULT,
    Client,
    place,
    say,
)


def test_the_least_recently_used_idle_session_goes_first() -> None:
    client = Client(Bounds(sessions_max=3))
    first = client.call(say("user", "0"))  # stays busy
    for text in "123":
        client.told("ok", say("user", text))
    assert len(client.recogniser) == 3
    ok = say("assistant", "ok")
    assert client.call(say("user", "1"), ok, RESULT).kind == "new"
    assert client.call(say("user", "3"), ok, RESULT).kind == "extend"
    client.end(first, "ok")
    assert client.call(say("user", "0"), ok, RESULT).kind == "extend"


def test_the_least_recently_used_idle_branch_goes_first() -> None:
    client = Client(Bounds(branches_max=3))
    client.told("let me look", HELLO)
    for text in "abcd":  # branch 0 goes on with a; b, c and d are branches of its first answer
        client.told(text, HELLO, ANSWER, say("tool", text))

    def goes_on(text: str) -> str:
        told = (HELLO, ANSWER, say("tool", text), say("assistant", text), RESULT)
        placement = client.call(*told)
        client.end(placement, None)
        return placement.kind

    # Branch 0 was used last, as the parent of d, so b was the one to go.
    assert [goes_on(text) for text in "acd"] == ["extend", "extend", "extend"]
    assert goes_on("b") == "fork"


def test_more_busy_branches_than_a_session_may_have_are_refused() -> None:
    client = Client(Bounds(branches_max=2))
    client.told("let me look", HELLO)
    running = [client.call(HELLO, ANSWER, RESULT) for _ in range(2)]
    with pytest.raises(QuotaExceeded) as caught:
        client.call(HELLO, ANSWER, RESULT)
    assert caught.value.code == "session_branches_exceeded"
    client.end(running[1], "done")
    assert client.call(HELLO, ANSWER, RESULT).branch == 2


def test_turns_of_one_session_are_bounded() -> None:
    client = Client(Bounds(session_turns_max=8))
    messages: tuple[dict[str, Any], ...] = (HELLO,)
    for turn in range(20):
        assert client.told(str(turn), *messages).kind == ("extend" if turn else "new")
        messages = (*messages, say("assistant", str(turn)), RESULT)
    assert client.call(*messages[:5]).kind == "new"  # too long ago
    assert client.call(*messages[:-4]).kind == "fork"


def test_turns_of_all_sessions_are_bounded() -> None:
    client = Client(Bounds(turns_max=10))
    for text in range(50):
        client.told("ok", say("user", str(text)))
    assert len(client.recogniser) == 10


def test_cut_turns_are_bounded() -> None:
    client = Client(Bounds(cut_turns_max=2))
    for body in (b"1", b"2", b"3"):
        client.end(client.call(HELLO, body=body), None, cut=True)
    assert [client.call(HELLO, body=body).kind for body in (b"1", b"2", b"3")] == [
        "new",
        "retry",
        "retry",
    ]


# --- restart ---


def test_a_restart_brings_named_and_unnamed_sessions_back() -> None:
    before = Client()
    records = []
    for name in (None, "run-7"):
        placement = before.call(HELLO, name=name)
        body = before.end(placement, "let me look")
        assert body is not None
        records.append(Record(0, 0, "recognised", BANK, placement.session, body))
    after = Client()
    for record in records:
        after.recogniser.restore(record)
    after.recogniser.retain({SessionId(record.session) for record in records})
    assert place(after.call(HELLO, ANSWER, RESULT)) == ("extend", "s-0000", 0, -1)
    assert place(after.call(HELLO, ANSWER, RESULT, name="run-7")) == ("extend", "s-0001", 0, -1)
    assert after.call(HELLO, ANSWER, RESULT, tenant=FUND).kind == "new"


def test_a_restart_forgets_what_ended() -> None:
    before = Client()
    placement = before.call(HELLO)
    body = before.end(placement, "let me look")
    assert body is not None
    note = Record(0, 0, "recognised", BANK, placement.session, body)
    closed = Record(1, 0, "SessionClosed", "", "", {"session": placement.session, "reason": ""})
    for records, live in (([note], set()), ([note, closed], {placement.session})):
        after = Client()
        for record in records:
            after.recogniser.restore(record)
        after.recogniser.retain(live)
        assert len(after.recogniser) == 0

"""F14 and F19 on the running service: who is who, and what is run once."""

from __future__ import annotations

import concurrent.futures
import socket
import uuid
from typing import Any

import pytest

from tests.fakes.openai_engine import Behaviour, FakeEngine
from tests.integration.served import CHAT, Served, until

USER = {"role": "user", "content": "hi"}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [USER], **more}


def own_session() -> dict[str, str]:
    return {"X-Session-Id": str(uuid.uuid4())}


# F14.


def test_f14_lane_and_tenant_are_the_credentials(served_fake: Served, upstream: FakeEngine) -> None:
    """F14: no header and no field lifts a batch key, or makes it another tenant."""
    for sent, status in (
        ({"headers": {"X-Bedplate-Lane": "interactive"}, "json": body()}, 403),
        ({"json": body(priority=0)}, 400),
        ({"json": body(cache_salt="acme")}, 400),
        (
            {
                "json": body(user="acme"),
                "headers": {
                    "X-Priority": "0",
                    "X-Tenant": "acme",
                    "X-Tenant-Id": "acme",
                    "OpenAI-Organization": "acme",
                    "X-Forwarded-User": "acme",
                },
            },
            200,
        ),
    ):
        answer = served_fake.http("POST", CHAT, served_fake.rival, **sent)
        assert answer.status_code == status, answer.text
    row = until(lambda: served_fake.rows().get(answer.headers["x-bedplate-turn"]))
    record = [r for r in served_fake.records("usage") if r.body["turn"] == row["turn"]]
    assert [(r.tenant, r.body["lane"]) for r in record] == [("rival", 2)]
    assert len(upstream.chats()) == 1


def test_f14_another_tenants_session_is_not_found_and_the_attempt_is_kept(
    served_fake: Served, upstream: FakeEngine
) -> None:
    """F14: read, closed, continued: 404 each time, as for a session that never was; audited."""
    mine = served_fake.http("POST", CHAT, json=body(), headers=own_session())
    session = mine.headers["x-session-id"]
    before = len(served_fake.records("client_error"))
    answers = []
    for name in (session, "never-was"):
        for method in ("GET", "DELETE"):
            path = f"/v1/sessions/{name}"
            answer = served_fake.http(method, path, served_fake.rival)
            answers.append((answer.status_code, answer.text.replace(name, "NAME")))
    told = set(answers)
    assert len(told) == 1
    assert answers[0][0] == 404
    forged = served_fake.http(
        "POST", CHAT, served_fake.rival, json=body(), headers={"X-Session-Id": session}
    )
    if forged.status_code == 200:  # its own session of the same name, or none at all
        shown = served_fake.http("GET", f"/v1/sessions/{session}", served_fake.rival).json()
        assert shown["tenant"] == "rival"
        assert len(served_fake.session(session)["branches"]) == 1
    else:
        assert forged.status_code == 404
    assert served_fake.session(session)["tenant"] == "acme"
    notes = until(lambda: served_fake.records("client_error")[before:])
    assert {(note.tenant, note.body["code"]) for note in notes} == {("rival", "session_not_found")}


@pytest.mark.parametrize("header", ["Authorization", "X-Session-Id", "Idempotency-Key"])
def test_f14_a_doubled_header_is_refused(
    served_fake: Served, upstream: FakeEngine, header: str
) -> None:
    """F14: nobody can say which of two counts, so neither does."""
    host, _, port = served_fake.url.removeprefix("http://").partition(":")
    values = {"Authorization": f"Bearer {served_fake.acme}", header: "x"}
    lines = [f"{name}: {value}" for name, value in values.items()]
    if header == "Authorization":
        lines = [f"Authorization: Bearer {key}" for key in (served_fake.acme, served_fake.rival)]
    else:
        lines.append(f"{header}: y")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = "\r\n".join([f"POST {CHAT} HTTP/1.1", "host: x", *lines, "content-length: 2"])
        connection.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{{}}".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert not upstream.chats()


def test_f14_refused_credentials_are_in_the_journal(served_fake: Served) -> None:
    """F14: an attempt with a wrong key is audited, without the key."""
    before = len(served_fake.records("refused"))
    assert served_fake.http("GET", "/v1/models", "bp_aaaa_bbbb").status_code == 401
    notes = until(lambda: served_fake.records("refused")[before:])
    assert notes[0].tenant == ""
    assert "bbbb" not in str(notes)


# F19.


@pytest.mark.parametrize("stream", [False, True])
def test_failures_f19_the_same_key_runs_once_and_is_billed_once(
    served_fake: Served, upstream: FakeEngine, stream: bool
) -> None:
    """F19: the stored response comes again, a stream as a stream; another body is a conflict."""
    upstream.default = Behaviour(chunks=5)
    headers = {"Idempotency-Key": str(uuid.uuid4()), **own_session()}
    first, again = (
        served_fake.http("POST", CHAT, json=body(stream=stream), headers=headers) for _ in range(2)
    )
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert first.headers["content-type"] == again.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"
    assert len(upstream.chats()) == 1
    other = served_fake.http("POST", CHAT, json=body(stream=stream, seed=7), headers=headers)
    assert other.status_code == 409
    assert first.headers["x-bedplate-turn"] == again.headers["x-bedplate-turn"]
    assert served_fake.rows()[first.headers["x-bedplate-turn"]]["out_tokens"] == 5
    assert len(upstream.chats()) == 1


def test_failures_f19_at_once_it_runs_once(served_fake: Served, upstream: FakeEngine) -> None:
    """F19: eight at once, one execution; the others hear that it is in progress, or its answer."""
    upstream.default = Behaviour(chunks=5, first_delay_s=0.5)
    headers = {"Idempotency-Key": str(uuid.uuid4()), **own_session()}

    def send(_: int) -> Any:
        return served_fake.http("POST", CHAT, json=body(), headers=headers)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(8)))
    assert len(upstream.chats()) == 1
    kinds = {answer.status_code for answer in answers}
    assert 200 in kinds
    assert kinds <= {200, 409}
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["error"]["code"] == "idempotency_in_progress"
    assert send(0).content == next(a.content for a in answers if a.status_code == 200)


def test_failures_f19_a_failure_frees_the_key(served_fake: Served, upstream: FakeEngine) -> None:
    """F19: after a time-out of the client's, or an engine that died, the same key runs again."""
    headers = {"Idempotency-Key": str(uuid.uuid4()), **own_session()}
    upstream.default = Behaviour(die_after=0)
    assert served_fake.http("POST", CHAT, json=body(), headers=headers).status_code == 502
    upstream.default = Behaviour(chunks=3)
    assert served_fake.http("POST", CHAT, json=body(), headers=headers).status_code == 200

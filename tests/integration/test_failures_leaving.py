"""F08 and F09 on the running service: a client that leaves stops its engine and leaves nothing."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

import pytest

from tests.fakes.openai_engine import Behaviour, FakeEngine
from tests.integration.served import CHAT, Served, until

SLOW = Behaviour(chunks=400, chunk_delay_s=0.05)
"""20 s of answer."""
STOP_MAX_S = 1.0


class Caller:
    """A call on a raw socket, so that leaving is exactly one FIN or RST."""

    def __init__(self, served: Served, **body: Any) -> None:
        said = {"messages": [{"role": "user", "content": f"case {uuid.uuid4()}"}], **body}
        data = json.dumps(said).encode()
        host, _, port = served.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.acme}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            + data
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def read_until(self, mark: bytes) -> bytes:
        seen = b""
        while mark not in seen:
            data = self.socket.recv(4096)
            assert data, seen
            seen += data
        return seen

    def leave(self) -> float:
        """Hang up; return when."""
        self.socket.close()
        return time.monotonic()


def waiting(served: Served) -> Callable[[], bool]:
    return lambda: any(lane["waiting"] for lane in served.state()["lanes"])


def check_next_call(served: Served, model: str) -> None:
    """F08: the next call runs, and nothing of the one before is left."""
    until(served.at_rest)
    answer = served.client().chat.completions.create(
        model=model, messages=[{"role": "user", "content": "next"}], max_tokens=4
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    until(served.at_rest)


def new_turn(served: Served, known: set[str]) -> str:
    """Return the id of the one turn that arrived since."""
    (turn,) = arrived(served) - known
    return turn


def arrived(served: Served) -> set[str]:
    return {record.body["turn"] for record in served.records("TurnArrived")}


def cancels(served: Served, turn: str) -> list[str]:
    records = served.records("TurnCancelled")
    return [record.body["reason"] for record in records if record.body["turn"] == turn]


@pytest.mark.parametrize("where", ["unstreamed", "before the first byte", "in mid-stream"])
def test_f09_an_endpoint_sees_the_abort_within_a_second(
    served_fake: Served, upstream: FakeEngine, where: str
) -> None:
    """F09 (a) (b) (c): the abort arrives, one row, the record says client_cancelled; F08."""
    known = arrived(served_fake)
    upstream.default = Behaviour(hang=True) if where == "before the first byte" else SLOW
    caller = Caller(served_fake, model="fake", stream=where != "unstreamed")
    if where == "in mid-stream":
        caller.read_until(b"review")
    else:
        until(lambda: upstream.chats())
        time.sleep(0.1)
    left = caller.leave()
    aborted = until(lambda: upstream.chats()[0].aborted_s)
    assert aborted - left < STOP_MAX_S
    until(served_fake.at_rest)
    turn = new_turn(served_fake, known)
    row = until(lambda: served_fake.rows().get(turn))
    assert row["status"] == "cancelled"
    if where == "in mid-stream":
        assert 2 <= row["out_tokens"] < 400
    assert cancels(served_fake, turn) == ["client_cancelled"]
    upstream.default = Behaviour(chunks=3)
    check_next_call(served_fake, "fake")
    assert len(upstream.chats()) == 2, "nothing was sent twice"


def test_f09_a_queued_call_never_reaches_the_endpoint(
    served_fake: Served, upstream: FakeEngine
) -> None:
    """F09 (d): it leaves the queue, and costs nothing."""
    upstream.default = SLOW
    with Caller(served_fake, model="fake", stream=True) as first:
        first.read_until(b"ledger")
        known = arrived(served_fake)
        queued = Caller(served_fake, model="fake", stream=True)
        until(waiting(served_fake))
        turn = until(lambda: arrived(served_fake) - known).pop()
        left = queued.leave()
        until(lambda: not waiting(served_fake)(), within_s=5)
        assert time.monotonic() - left < STOP_MAX_S + 1  # one look at the state is in it
        row = until(lambda: served_fake.rows().get(turn))
        assert cancels(served_fake, turn) == ["client_cancelled"]
        assert (row["status"], row["out_tokens"], row["attempts"]) == ("cancelled", 0, 0)
    until(served_fake.at_rest)
    assert len(upstream.chats()) == 1
    upstream.default = Behaviour(chunks=3)
    check_next_call(served_fake, "fake")


def test_f08_an_endpoint_that_is_cut_again_and_again_keeps_its_slot(
    served_fake: Served, upstream: FakeEngine
) -> None:
    """F08: cut at every moment of a call's life, the one parallel slot comes back each time."""
    upstream.default = Behaviour(chunks=40, chunk_delay_s=0.01, first_delay_s=0.05)
    for number in range(12):
        with Caller(served_fake, model="fake", stream=True):
            time.sleep(0.02 * number)
    until(served_fake.at_rest)
    upstream.default = Behaviour(chunks=3)
    check_next_call(served_fake, "fake")
    assert upstream.running == 0


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_f08_f09_a_card_stops_within_a_second(served_tiny: Served, where: str) -> None:
    """F08, F09 on embedded cards: both of them, one running turn each, are free again."""
    text = "The adviser writes a note. " * (1_500 if where == "prefill" else 1)
    content = f"case {uuid.uuid4()}. {text}"
    known = arrived(served_tiny)
    caller = Caller(
        served_tiny,
        model="tiny",
        stream=True,
        messages=[{"role": "user", "content": content}],
        max_tokens=6_000,
        ignore_eos=True,
    )
    if where == "decode":
        caller.read_until(b'"delta":{"content"')
    else:
        until(lambda: any(lane["running"] for lane in served_tiny.state()["lanes"]))
    left = caller.leave()
    until(served_tiny.at_rest)
    assert time.monotonic() - left < STOP_MAX_S + 1  # one look at the state is in it
    turn = new_turn(served_tiny, known)
    row = until(lambda: served_tiny.rows().get(turn))
    assert (row["status"], row["out_tokens"] > 0) == ("cancelled", where == "decode")
    assert cancels(served_tiny, turn) == ["client_cancelled"]
    check_next_call(served_tiny, "tiny")

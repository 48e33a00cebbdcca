"""The load: what it asks, how it checks answers, when requests are due."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.harness.stats import quantile, spread
from bench.load.client import fault
from bench.load.drive import Job, arrivals
from bench.load.workload import ANSWER, CHUNKS, Workload
from tests.fakes.openai_answers import Answer, Behaviour
from tests.fakes.openai_engine import FakeEngine


def perfect() -> bytes:
    return FakeEngine(Behaviour(chunks=CHUNKS)).rendered(
        Behaviour(chunks=CHUNKS), Answer(Behaviour(chunks=CHUNKS), "fake", 9, 64, True), 1
    )


def test_the_fake_engines_answer_is_perfect() -> None:
    assert fault(perfect()) is None


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        (b"200 OK", b"503 No", "status"),
        (b"data: [DONE]", b"", "no [DONE]"),
        (b'"content":"audit "', b'"content":""', "3 times audit"),
        (b'"completion_tokens":32', b'"completion_tokens":31', "no usage"),
    ],
)
def test_an_answer_with_one_fault_is_seen(old: bytes, new: bytes, wrong: str) -> None:
    raw = perfect()
    assert old in raw
    found = fault(raw.replace(old, new, 1))
    assert found is not None
    assert wrong in found


def test_pieces_put_together_in_one_event_are_seen() -> None:
    whole = b'HTTP/1.1 200 OK\r\n\r\ndata: {"content":"' + ANSWER.encode() + b'"}\n\ndata: [DONE]'
    assert fault(whole) == "1 events"


def test_a_session_grows_by_the_answer_and_the_next_message() -> None:
    workload = Workload("a")
    turns: list[list[dict[str, Any]]] = [
        json.loads(workload.body(3, turn))["messages"] for turn in range(3)
    ]
    assert [len(messages) for messages in turns] == [2, 4, 6]
    assert turns[2][:4] == turns[1]
    assert turns[1][2] == {"role": "assistant", "content": ANSWER}
    assert [m["role"] for m in turns[2]] == ["system", "user"] + ["assistant", "user"] * 2


def test_sessions_and_runs_differ() -> None:
    bodies = {Workload(label).body(session, 0) for label in "ab" for session in range(20)}
    assert len(bodies) == 40
    assert Workload("a").body(1, 2) == Workload("a").body(1, 2)


def job(**fields: Any) -> Job:
    return Job(host="h", port=1, keys=["k"], label="l", warm_s=1.0, measure_s=9.0, **fields)


def test_even_arrivals_are_even_and_random_ones_follow_their_seed() -> None:
    even = arrivals(job(arrivals="even", rate=100.0))
    assert len(even) == 1000
    assert even[1] - even[0] == pytest.approx(0.01)
    drawn = arrivals(job(rate=200.0, seed=4))
    assert drawn == arrivals(job(rate=200.0, seed=4))
    assert drawn != arrivals(job(rate=200.0, seed=5))
    assert list(drawn) == sorted(drawn)
    assert 1_800 < len(drawn) < 2_200
    assert drawn[-1] < 10.0


def test_statistics() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.25) == 2.5
    assert quantile([5.0], 0.99) == 5.0
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.least, found.most, found.n) == (2.0, 1.0, 3.0, 3)
    assert found.text() == "2.0 (1.0 to 3.0)"

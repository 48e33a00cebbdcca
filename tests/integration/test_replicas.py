"""Two endpoints of one model behind the running service: spread, failover, time-outs (F10, F16)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from bedplate.core.limits import DISPATCH_ATTEMPTS_MAX
from tests.fakes.openai_answers import words_in
from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.integration.served import CHAT, Served, events_of, text_of, until

THREE = Behaviour(chunks=3)
CARDS = ("rep-0", "rep-1")
DEAD = [Behaviour(die_after=after) for after in (-1, 0, 1)]
"""Connection reset: before the headers, after them, after the event with the role."""


class Pair:
    """The service, and the endpoints by the name of their card."""

    def __init__(self, served: Served, threads: tuple[ThreadedEngine, ...]) -> None:
        self.served = served
        self.threads = dict(zip(CARDS, threads, strict=True))
        self.rows_before = 0
        self.said: dict[str, list[dict[str, str]]] = {}
        self.engines = {card: thread.engine for card, thread in self.threads.items()}

    def ask(self, session: str, text: str) -> dict[str, Any]:
        """Return the body of a session's next call; its first message is the session's name."""
        said = self.said.setdefault(session, [])
        said.append({"role": "user", "content": text if said else session})
        return {"model": "fake", "messages": said}

    def turn(self, session: str, text: str = "", **more: Any) -> Any:
        """Run a session's next turn, without a stream, and keep its answer."""
        body = {**self.ask(session, text), **more}
        headers = {"x-session-id": session}
        answer = self.served.client().chat.completions.create(**body, extra_headers=headers)
        message = answer.choices[0].message
        self.said[session].append({"role": "assistant", "content": message.content})
        return answer

    def home(self, session: str) -> tuple[FakeEngine, FakeEngine]:
        """Run a first turn; return the endpoint that took it, and the other one."""
        self.turn(session)
        until(self.served.at_rest)
        (card,) = (card for card in CARDS if self.asked(session, card))
        return self.engines[card], self.engines[CARDS[1 - CARDS.index(card)]]

    def asked(self, text: str, card: str) -> int:
        """Count how often an endpoint was asked something that begins with this."""
        return self.of(self.engines[card], text)

    def of(self, engine: FakeEngine, text: str) -> int:
        first = [seen.body["messages"][0]["content"] for seen in engine.chats()]
        return sum(content == text for content in first)

    def attempts(self) -> list[int]:
        """Return the attempts of every turn that ended in this test, in order."""
        until(self.served.at_rest)
        rows = list(self.served.rows().values())
        return [row["attempts"] for row in rows[self.rows_before :]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    threads = (ThreadedEngine(FakeEngine(THREE)), ThreadedEngine(FakeEngine(THREE)))
    with threads[0] as one, threads[1] as two:
        engines = (
            '[[engine]]\nkind = "openai"\nname = "rep"\nmodel = "fake"\nserver = "vllm"\n'
            f"urls = {json.dumps([one, two])}\n"
            "slots = 4\nrunning_max = 2\nconnect_seconds = 1.0\ntimeout_seconds = 1.0\n"
        )
        with Served(tmp_path_factory.mktemp("pair"), engines) as served:
            yield Pair(served, threads)


@pytest.fixture
def pair(running: Pair) -> Pair:
    """Return the pair with both endpoints up, tried again, healthy, and nothing counted."""
    until(
        lambda: all(
            card["up"] and card["breaker"] != "open" for card in running.served.state()["cards"]
        )
    )
    until(running.served.at_rest)
    for engine in running.engines.values():
        engine.default = THREE
        engine.log.clear()
    running.rows_before = len(running.served.rows())
    return running


def test_sessions_spread_over_the_endpoints_and_stay_at_home(pair: Pair) -> None:
    sessions = [f"session-{at}-{uuid.uuid4()}" for at in range(6)]
    for number in range(3):
        for session in sessions:
            pair.turn(session, f"more {number}")
    until(pair.served.at_rest)
    homes = {session: [pair.asked(session, card) for card in CARDS] for session in sessions}
    assert all(sorted(counts) == [0, 3] for counts in homes.values()), homes
    assert sum(counts[0] > 0 for counts in homes.values()) == 3, homes
    assert {record.body["card"] for record in pair.served.records("CardUp")} == set(CARDS)
    assert pair.served.stop() == 0
    pair.served.check_books()
    pair.served.start()


@pytest.mark.parametrize("fault", DEAD, ids=["before headers", "after headers", "before content"])
def test_a_turn_whose_endpoint_breaks_before_content_runs_once_on_the_other(
    pair: Pair, fault: Behaviour
) -> None:
    """F16 (a): one clean answer, streamed, and nothing of it twice."""
    session = f"breaks-{uuid.uuid4()}"
    home, other = pair.home(session)
    home.default = fault
    with pair.served.http(
        "POST",
        CHAT,
        headers={"x-session-id": session},
        json={**pair.ask(session, "on"), "stream": True},
    ) as answer:
        payloads = events_of(answer.content)
    assert answer.status_code == 200
    assert payloads[-1] == "[DONE]"
    assert text_of(payloads) == "ledger review risk "
    assert (pair.of(home, session), pair.of(other, session)) == (2, 1)
    assert pair.attempts() == [1, 2]


def test_a_turn_whose_endpoint_is_gone_runs_on_the_other_and_cards_go_down_and_up(
    pair: Pair,
) -> None:
    session = f"gone-{uuid.uuid4()}"
    home, other = pair.home(session)
    (card,) = (card for card in CARDS if pair.engines[card] is home)
    thread = pair.threads[card]
    port = int(home.url.split(":")[2].split("/")[0])
    before = {kind: len(pair.served.records(kind)) for kind in ("CardDown", "CardUp")}
    thread.call(home.stop())
    try:
        for at in range(3):
            answer = pair.turn(session, f"go on {at}")
            assert answer.choices[0].message.content == "ledger review risk "
    finally:
        thread.call(home.start(port=port))
    assert pair.of(other, session) == 3
    assert all(count <= 2 for count in pair.attempts()), "a card that is down is not tried"
    until(lambda: len(pair.served.records("CardUp")) > before["CardUp"])
    for kind, count in before.items():
        assert [record.body["card"] for record in pair.served.records(kind)[count:]] == [card]
    for at in range(4):
        pair.turn(f"new-{at}")
    assert any(pair.of(home, f"new-{at}") for at in range(4)), "it takes sessions again"


def test_an_answer_that_breaks_in_the_middle_goes_on_at_the_other_without_a_seam(
    pair: Pair,
) -> None:
    """F16 (b): exact continuation; what client and bill are told counts each token once."""
    session = f"middle-{uuid.uuid4()}"
    home, other = pair.home(session)
    home.script(Behaviour(texts=("one ", "two ", "three "), die_after=3))
    other.script(Behaviour(texts=("three ", "four ")))
    answer = pair.turn(session, "count", max_tokens=50)
    assert answer.choices[0].message.content == "one two three four "
    assert other.chats()[-1].body["messages"][-1]["content"] == "one two "
    assert answer.usage.completion_tokens == 4
    until(pair.served.at_rest)
    row = list(pair.served.rows().values())[-1]
    assert (row["attempts"], row["out_tokens"]) == (2, 4)
    assert row["prompt_tokens"] == answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens == words_in(other.chats()[-1].body) - 2


def test_tries_are_bounded_when_every_endpoint_breaks(pair: Pair) -> None:
    """F10: at most DISPATCH_ATTEMPTS_MAX requests for a turn over the whole pool; F16 (c).

    Then both breakers are open: calls are turned away and told when to come back.
    """
    for engine in pair.engines.values():
        engine.default = DEAD[0]
    told: list[int] = []
    while 503 not in told:
        assert len(told) < 8
        with pytest.raises(openai.InternalServerError) as caught:
            pair.turn(f"bound-{len(told)}")
        told.append(caught.value.status_code)
    assert told[:2] == [502, 502]
    assert pair.attempts()[:2] == [DISPATCH_ATTEMPTS_MAX] * 2
    sent = [sum(pair.asked(f"bound-{at}", card) for card in CARDS) for at in range(len(told))]
    assert max(sent) == DISPATCH_ATTEMPTS_MAX
    assert caught.value.code == "no_engine"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 5
    assert {card["breaker"] for card in pair.served.state()["cards"]} == {"open"}


def test_an_endpoint_that_takes_a_turn_and_never_answers_is_not_asked_again_elsewhere(
    pair: Pair,
) -> None:
    """F10: the body was accepted, so another card would compute the same prompt once more."""
    session = f"hangs-{uuid.uuid4()}"
    home, other = pair.home(session)
    home.default = Behaviour(hang=True)
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        pair.turn(session, "hello?")
    assert caught.value.status_code == 504
    assert time.monotonic() - began < 5
    assert (pair.of(home, session), pair.of(other, session)) == (2, 0)
    assert pair.attempts() == [1, 1]
    until(lambda: home.chats()[-1].aborted_s)


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_endpoint_is_passed_over_and_only_a_full_pool_is_told(
    pair: Pair, status: int
) -> None:
    session = f"full-{uuid.uuid4()}"
    home, other = pair.home(session)
    home.default = Behaviour(status=status, retry_after="7")
    assert pair.turn(session, "now?").choices[0].finish_reason == "stop"
    assert (pair.of(home, session), pair.of(other, session)) == (2, 1)
    other.default = home.default
    with pytest.raises(openai.APIStatusError) as caught:
        pair.turn("late")
    assert caught.value.status_code == status
    assert caught.value.response.headers["retry-after"] == "7"
    assert [pair.asked("late", card) for card in CARDS] == [1, 1], "each once, none again"
    assert pair.attempts() == [1, 2, 2]
    home.default = other.default = THREE
    assert pair.turn("later").choices[0].finish_reason == "stop"

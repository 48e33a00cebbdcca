"""F10 on the running service: a failing endpoint costs its own turns, failover stays bounded."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.integration.served import CHAT, Served, until

SESSIONS = 20
WORDS = "word " * 26_215
"""About 32K tokens by the estimate of four characters a token."""
ENGINES = 4


class Four:
    """The service in front of four endpoints of one model."""

    def __init__(self, served: Served, engines: list[FakeEngine]) -> None:
        self.served = served
        self.engines = engines

    def ask(self, number: int) -> Any:
        """Send one session's long first call."""
        messages = [{"role": "user", "content": f"{number} {WORDS}"}]
        call = {"model": "fake", "messages": messages, "max_tokens": 8}
        return self.served.http("POST", CHAT, json=call, headers={"X-Session-Id": f"s-{number}"})

    def ask_all(self, first: int) -> list[Any]:
        """Send twenty sessions' first calls at once."""
        with concurrent.futures.ThreadPoolExecutor(SESSIONS) as threads:
            return list(threads.map(self.ask, range(first, first + SESSIONS)))

    def asked(self) -> int:
        """Count the requests that reached any endpoint."""
        return sum(len(engine.chats()) for engine in self.engines)

    def breaker(self, card: str) -> str:
        """Return the state of a card's breaker."""
        cards = self.served.state()["cards"]
        return next(str(one["breaker"]) for one in cards if one["card"] == card)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Four]:
    with ExitStack() as stack:
        threads = [ThreadedEngine(FakeEngine(Behaviour(chunks=3))) for _ in range(ENGINES)]
        urls = [stack.enter_context(thread) for thread in threads]
        section = (
            '[[engine]]\nkind = "openai"\nname = "rep"\nmodel = "fake"\nserver = "vllm"\n'
            f"urls = {json.dumps(urls)}\nslots = 8\nrunning_max = 8\ncontext_tokens = 65536\n"
            "kv_tokens = 1048576\nconnect_seconds = 1.0\ntimeout_seconds = 2.0\n"
            "prompt_token_seconds = 0.0001\n"
        )
        retries = "retry_percent = 10.0\nretry_tokens = 66000"
        served = stack.enter_context(Served(tmp_path / "served", section, service=retries))
        yield Four(served, [thread.engine for thread in threads])


def test_failures_f10_an_endpoint_that_never_answers_costs_its_own_turns(four: Four) -> None:
    """F10: it takes bodies and is silent: nothing of it is sent again, then it is left alone."""
    four.engines[0].default = Behaviour(hang=True)
    answers = four.ask_all(0)
    hung = len(four.engines[0].chats())
    statuses = sorted(answer.status_code for answer in answers)
    assert 1 <= hung <= 8
    assert statuses == [200] * (SESSIONS - hung) + [504] * hung
    assert four.asked() == SESSIONS, "each prompt was sent once"
    assert four.breaker("rep-0") == "open"
    more = four.ask_all(SESSIONS)
    assert {answer.status_code for answer in more} <= {200, 504}
    assert len(four.engines[0].chats()) - hung <= 1, "at most the one that tries it"
    assert until(four.served.at_rest)
    assert four.served.stop() == 0
    four.served.check_books()


def test_failures_f10_failover_is_bounded_in_tokens_and_then_told(four: Four) -> None:
    """F10: all endpoints break: sent ≤ (1 + budget) × asked for, then 503 with Retry-After."""
    for engine in four.engines:
        engine.default = Behaviour(die_after=-1)
    answers = four.ask_all(0)
    until(four.served.at_rest)
    rows = four.served.rows()
    accepted = sum(row["prompt_tokens"] for row in rows.values())
    prompt = accepted // len(rows)
    assert prompt > 30_000
    budget = 66_000 + accepted // 10
    assert SESSIONS <= four.asked() <= (len(rows) * prompt + budget) // prompt
    told = {(answer.status_code, answer.json()["error"]["code"]) for answer in answers}
    assert (503, "retry_budget_spent") in told
    assert told <= {(503, "retry_budget_spent"), (503, "no_engine"), (502, "engine_lost")}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
    four.served.check_books()

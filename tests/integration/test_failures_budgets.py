"""Budgets and limits on the running service, over HTTP, from many connections (F01, F02, F06)."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.integration.served import CHAT, CLI, Served, endpoint, events_of, until

PRICES = (
    "[prices]\nuncached_micro = 1000000\ncached_micro = 1000000\noutput_micro = 1000000\n"
    "card_kv_micro = 0\npool_kv_micro = 0\n"
)
"""A token costs a millionth; time costs nothing."""


def body(**more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **more}


def at_once(count: int, send: Callable[[int], Any]) -> list[Any]:
    """Send from as many threads, each on a connection of its own."""
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(send, range(count)))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("limit", ["session_total_tokens_max", "session_micro_max"])
def test_failures_f01_three_of_eight_reach_the_engine(
    tmp_path: Path, limit: str, *, streamed: bool
) -> None:
    """F01: one session, eight calls of cost 1 at once under a cap of 3."""
    engine = FakeEngine(Behaviour(chunks=3, first_delay_s=1.0))
    more = f"{PRICES}[defaults]\n{limit} = 3100\n"
    with (
        ThreadedEngine(engine) as url,
        Served(tmp_path, endpoint(url, slots=8, running_max=8), more=more) as served,
    ):
        headers = {"X-Session-Id": str(uuid.uuid4())}

        def send(_: int) -> Any:
            call = body(max_tokens=1_000, stream=streamed)
            return served.http("POST", CHAT, json=call, headers=headers)

        answers = at_once(8, send)
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
        assert len(engine.chats()) == 3
        for answer in answers:
            if answer.status_code == 429:
                error = answer.json()["error"]
                assert error["code"] == "session_budget_exceeded"
                assert "spent 0" in error["message"]
                assert "reserved 0.003" in error["message"] or "reserved 30" in error["message"]
                assert "limit 3100" in error["message"] or "limit 0.0031 CNY" in error["message"]
                assert answer.headers["retry-after"] == "1"
        shown = served.session(headers["X-Session-Id"])
        rows = list(until(lambda: rows if len(rows := served.rows()) == 3 else None).values())
        used = sum(row["prompt_tokens"] + row["out_tokens"] for row in rows)
        assert shown["spent_tokens"] == shown["spent_micro"] == used
        assert shown["reserved_tokens"] == shown["reserved_micro"] == 0
        tenant = next(one for one in served.state()["tenants"] if one["tenant"] == "acme")
        assert (tenant["day_micro"], tenant["reserved_micro"]) == (used, 0)
        assert send(0).status_code == 200, "what was reserved and not used is there again"


def test_failures_f01_a_crash_frees_what_was_reserved(tmp_path: Path) -> None:
    """F01: the reservations of calls that a kill cut end with them."""
    engine = FakeEngine(Behaviour(chunks=3, first_delay_s=20.0))
    more = f"{PRICES}[defaults]\nsession_total_tokens_max = 3100\n"
    with (
        ThreadedEngine(engine) as url,
        Served(tmp_path, endpoint(url, slots=8, running_max=8), more=more) as served,
    ):
        headers = {"X-Session-Id": str(uuid.uuid4())}

        def send(_: int) -> Any:
            try:
                return served.http(
                    "POST", CHAT, json=body(max_tokens=1_000), headers=headers
                ).status_code
            except OSError:
                return 0

        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            sent = [threads.submit(send, number) for number in range(3)]
            until(lambda: len(engine.chats()) == 3)
            assert send(0) == 429
            served.kill()
            assert {one.result() for one in sent} == {0}
        engine.default = Behaviour(chunks=3)
        served.start()
        assert at_once(3, send) == [200] * 3
        served.check_books()


def test_failures_f02_the_default_budget_binds_a_new_tenants_first_calls(tmp_path: Path) -> None:
    """F02: eight calls of one instant, a tenant nobody has seen, next to no money: none runs."""
    engine = FakeEngine(Behaviour(chunks=3))
    more = f"{PRICES}[defaults]\nday_micro_max = 1\n"
    with ThreadedEngine(engine) as url, Served(tmp_path, endpoint(url), more=more) as served:
        answers = at_once(8, lambda _: served.http("POST", CHAT, json=body(max_tokens=5)))
        assert [answer.status_code for answer in answers] == [429] * 8
        assert {answer.json()["error"]["code"] for answer in answers} == {"budget_exceeded"}
        assert not engine.chats()
        assert [one["tenant"] for one in served.state()["tenants"]] == ["acme"]


@pytest.mark.parametrize("streamed", [False, True])
def test_failures_f06_a_call_takes_its_tokens(tmp_path: Path, *, streamed: bool) -> None:
    """F06: far more tokens than a minute's quota are charged as tokens, and the next is refused."""
    engine = FakeEngine(Behaviour(chunks=300))
    more = "[defaults]\ntokens_per_minute = 111\n"
    with ThreadedEngine(engine) as url, Served(tmp_path, endpoint(url), more=more) as served:
        long = [{"role": "user", "content": "word " * 700}]
        call = body(messages=long, max_tokens=300, stream=streamed)
        first = served.http("POST", CHAT, json=call)
        assert first.status_code == 200
        (row,) = until(served.rows).values()
        used = row["prompt_tokens"] + row["out_tokens"]
        assert used > 900
        refused = served.http("POST", CHAT, json=body(max_tokens=1))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "quota_exceeded"
        owed_s = (used - 111) / 111 * 60
        assert owed_s - 30 <= int(refused.headers["retry-after"]) <= owed_s + 1


# Deadlines.


@pytest.mark.parametrize("streamed", [False, True])
def test_a_clients_deadline_stops_the_engine_and_is_told(tmp_path: Path, *, streamed: bool) -> None:
    engine = FakeEngine(Behaviour(chunks=400, chunk_delay_s=0.05))
    with ThreadedEngine(engine) as url, Served(tmp_path, endpoint(url)) as served:
        began = time.monotonic()
        headers = {"X-Bedplate-Deadline-Seconds": "1.5"}
        answer = served.http("POST", CHAT, json=body(stream=streamed), headers=headers)
        assert 1.4 < time.monotonic() - began < 6
        if streamed:
            *_, last = events_of(answer.content)
            assert json.loads(last)["error"]["code"] == "deadline_exceeded"
        else:
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert until(lambda: engine.chats()[0].aborted_s)
        (row,) = until(served.rows).values()
        assert row["status"] == "cancelled"
        assert row["out_tokens"] > 5
        assert served.stop() == 0
        served.check_books()


def test_a_client_that_closes_its_session_pays_for_what_it_was_given(tmp_path: Path) -> None:
    """Each token that was delivered is in the row, and the row counts against the budget."""
    engine = FakeEngine(Behaviour(chunks=400, chunk_delay_s=0.01))
    more = f"{PRICES}[defaults]\nday_micro_max = 1000\n"
    with ThreadedEngine(engine) as url, Served(tmp_path, endpoint(url), more=more) as served:
        name = str(uuid.uuid4())
        call, headers = body(max_tokens=400, stream=True), {"X-Session-Id": name}
        answer = served.http("POST", CHAT, json=call, headers=headers, stream=True)
        assert answer.status_code == 200
        given = 0
        for line in answer.iter_lines():
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            if "error" in event:
                break
            if not event or not event["choices"][0]["delta"].get("content"):
                continue
            given += 1
            if given == 50:
                assert served.http("DELETE", f"/v1/sessions/{name}").status_code == 200
        assert event["error"]["code"] == "session_not_found"
        (row,) = until(served.rows).values()
        assert (row["status"], row["out_tokens"]) == ("cancelled", given)
        until(served.at_rest)
        tenant = next(one for one in served.state()["tenants"] if one["tenant"] == "acme")
        assert tenant["day_micro"] == row["prompt_tokens"] + given
        assert served.stop() == 0
        served.check_books()


def test_failures_f07_a_limit_that_matches_nobody_does_not_start(tmp_path: Path) -> None:
    """F07: `serve` ends with status 2 before it listens."""
    served = Served(tmp_path, endpoint("http://127.0.0.1:9"), more='[[tenant]]\nid = "acne"\n')
    done = subprocess.run(
        [*CLI, "serve", "--config", str(served.config)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert 'no key names "acne"' in told
    assert 'nearest tenant with a key is "acme"' in told


def test_failures_f19_a_stored_answer_needs_no_budget_and_a_refusal_keeps_no_key(
    tmp_path: Path,
) -> None:
    """F19: what was paid for once comes again for nothing; what was refused may be asked anew."""
    engine = FakeEngine(Behaviour(chunks=3))
    more = f"{PRICES}[defaults]\nsession_total_tokens_max = 150\n"
    with ThreadedEngine(engine) as url, Served(tmp_path, endpoint(url), more=more) as served:
        session = {"X-Session-Id": str(uuid.uuid4())}

        def send(key: str, limit: int) -> Any:
            headers = {**session, "Idempotency-Key": key}
            return served.http("POST", CHAT, json=body(max_tokens=limit), headers=headers)

        first = send("step-1", 120)
        assert first.status_code == 200
        until(served.at_rest)
        spent = served.session(session["X-Session-Id"])["spent_tokens"]
        refused = send("step-2", 148)
        assert refused.status_code == 429
        again = send("step-1", 120)
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert send("step-2", 148).status_code == 429, "not in progress, not answered: asked anew"
        shown = served.session(session["X-Session-Id"])
        assert (shown["spent_tokens"], shown["reserved_tokens"]) == (spent, 0)
        assert len(engine.chats()) == 1

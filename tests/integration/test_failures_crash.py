"""F18 and its kin on processes: SIGTERM, kill -9 of the service, a full disk.

After each: the journal verifies, every decision comes out again, the bill explains every token.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fakes.openai_engine import Behaviour, FakeEngine, ThreadedEngine
from tests.integration.served import CHAT, Served, endpoint, text_of, tiny_cards, until

USER = {"role": "user", "content": "Please review the statement of account 12."}
FULL_DISK_BYTES = 4096
"""A bound on the size of files under which the journal cannot grow: its file is longer already."""


@contextlib.contextmanager
def in_front_of(folder: Path, engine: FakeEngine, **more: Any) -> Iterator[Served]:
    with ThreadedEngine(engine) as url, Served(folder / "served", endpoint(url, **more)) as served:
        yield served


def ask(served: Served, model: str, session: str, **more: Any) -> Any:
    body = {"model": model, "messages": [USER], "temperature": 0, **more}
    headers = {"X-Session-Id": session}
    stream = bool(more.get("stream"))
    return served.http("POST", CHAT, json=body, headers=headers, stream=stream)


def first_text(answer: Any) -> Iterator[str]:
    """Read a stream up to its first text; return the rest of its payloads."""
    lines = (line.decode() for line in answer.iter_lines(chunk_size=1))
    payloads = (line[6:] for line in lines if line.startswith("data: "))
    for payload in payloads:
        if text_of([payload]):
            break
    return payloads


def test_sigterm_lets_a_stream_end_and_refuses_new_calls(tmp_path: Path) -> None:
    """A drain: the running stream ends whole, new calls get 503, the exit status is 0."""
    engine = FakeEngine(Behaviour(chunks=60, chunk_delay_s=0.05))
    with in_front_of(tmp_path, engine) as served:
        rest = first_text(ask(served, "fake", "long", stream=True))
        # A connection from before: the listener may close at once.
        with requests.Session() as kept:
            kept.headers["authorization"] = f"Bearer {served.acme}"
            assert kept.get(served.url + "/readyz", timeout=30).status_code == 200
            served.send_signal(signal.SIGTERM)
            until(lambda: kept.get(served.url + "/readyz", timeout=30).status_code == 503)
            body: dict[str, Any] = {"model": "fake", "messages": [USER]}
            refused = kept.post(served.url + CHAT, json=body, timeout=30)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        payloads = list(rest)
        assert payloads[-1] == "[DONE]"
        assert len(text_of(payloads).split()) == 59
        assert served.ended() == 0
        served.check_books()
        assert served.records("shutdown")
        assert len(engine.chats()) == 1


def test_sigterm_cuts_what_does_not_end_in_time(tmp_path: Path) -> None:
    """Past its bound a drain cuts: the stream ends with an error event, never with `[DONE]`."""
    engine = FakeEngine(Behaviour(chunks=2_000, chunk_delay_s=0.05))
    bound = "drain_seconds = 0.5"
    with (
        ThreadedEngine(engine) as url,
        Served(tmp_path / "served", endpoint(url), service=bound) as served,
    ):
        rest = first_text(ask(served, "fake", "long", stream=True))
        served.send_signal(signal.SIGTERM)
        payloads = list(rest)
        assert "[DONE]" not in payloads
        assert json.loads(payloads[-1])["error"]["code"] == "draining"
        assert served.ended() == 0
        assert until(lambda: engine.chats()[0].aborted_s)
        (row,) = served.rows().values()
        assert row["status"] == "error", "we cut it, so the tenant does not pay"
        served.check_books()


def test_sigterm_leaves_no_card(tmp_path: Path, tiny_model: Path) -> None:
    """Cards end with a service that is stopped."""
    with Served(tmp_path / "served", tiny_cards(tiny_model)) as served:
        assert ask(served, "tiny", "s", max_tokens=8).status_code == 200
        pids = list(served.cards().values())
        assert len(pids) == 2
        assert served.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert served.cards() == {}


def test_failures_f18_killed_with_calls_under_way_each_turn_has_one_row(tmp_path: Path) -> None:
    """F18: 100 calls under way, kill -9: 100 rows after the restart, more restarts change none."""
    engine = FakeEngine(Behaviour(chunks=400, chunk_delay_s=0.1))
    with in_front_of(tmp_path, engine, slots=128, running_max=128) as served:
        done = ask(served, "fake", "done", max_tokens=2)
        answers = [ask(served, "fake", f"s{n}", stream=True) for n in range(100)]
        turns = {answer.headers["x-bedplate-turn"] for answer in answers}
        served.kill()
        for answer in answers:
            answer.close()
        for _ in range(2):
            served.start()
            rows = served.rows()
            assert rows.keys() == turns | {done.headers["x-bedplate-turn"]}
            assert {rows[turn]["status"] for turn in turns} == {"lost"}
            served.check_books()
            served.kill()
        served.start()
        assert served.at_rest()
        assert until(lambda: engine.running == 0) is True
        assert served.stop() == 0
        served.check_books()


def test_a_killed_service_goes_on_where_it_was(tmp_path: Path, tiny_model: Path) -> None:
    """kill -9 in the middle of a turn: cards are adopted, sessions go on from the pool."""
    with Served(tmp_path / "served", tiny_cards(tiny_model)) as served:
        first = ask(served, "tiny", "kept", max_tokens=24)
        tokens = first.json()["usage"]["total_tokens"] - 1
        until(lambda: served.session("kept")["branches"][0]["pool_tokens"] == tokens)
        key = {"Idempotency-Key": "once", "X-Session-Id": "keyed"}
        body = {"model": "tiny", "messages": [USER], "max_tokens": 8}
        keyed = served.http("POST", CHAT, json=body, headers=key)
        long = ask(served, "tiny", "lost", stream=True, max_tokens=8_000, ignore_eos=True)
        rest = first_text(long)  # held: without it the client leaves, and the turn is cancelled
        cards = served.cards()
        served.kill()
        del rest, long
        served.start()
        assert served.cards() == cards, "the cards of the killed service are adopted"
        again = served.http("POST", CHAT, json=body, headers=key)
        assert again.content == keyed.content
        assert again.headers["idempotent-replayed"] == "true"
        messages = [USER, first.json()["choices"][0]["message"], {"role": "user", "content": "So?"}]
        more = ask(served, "tiny", "kept", messages=messages, max_tokens=24)
        assert more.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens
        assert len(served.records("KvLoaded")) == 1
        statuses = sorted(row["status"] for row in served.rows().values())
        assert statuses.count("lost") == 1
        assert served.stop() == 0
        served.check_books()
        assert served.cli("audit", "verify")["verified"]
        replayed = served.cli("replay")
        assert replayed["same"]
        assert replayed["digest_live"] == replayed["digest_replay"]
        assert served.cli("bill", "--check")["check"]["unexplained_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, stream: bool) -> None:
    """No room for the journal: 503, nothing leaves unrecorded; with room again it goes on."""
    engine = FakeEngine(Behaviour(chunks=5))
    with in_front_of(tmp_path, engine) as served:
        before = ask(served, "fake", "s", stream=stream)
        assert before.status_code == 200
        assert before.content
        unlimited = resource.prlimit(served.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, unlimited[1]))
        answers = []

        def refused() -> bool:
            with contextlib.suppress(requests.exceptions.ReadTimeout):
                answers.append(call_briefly(served, stream=stream))
            return bool(answers) and answers[-1].status_code == 503

        until(refused)
        assert all(answer.status_code == 503 for answer in answers), "no answer without a record"
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert served.http("GET", "/readyz").status_code == 503
        assert served.http("GET", "/healthz").status_code == 200
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, unlimited)
        until(lambda: served.http("GET", "/readyz").status_code == 200)
        after = ask(served, "fake", "s2", stream=stream)
        assert after.status_code == 200
        until(served.at_rest)
        rows = served.rows()
        assert rows[before.headers["x-bedplate-turn"]]["status"] == "stop"
        assert rows[after.headers["x-bedplate-turn"]]["status"] == "stop"
        assert served.stop() == 0
        served.check_books()


def call_briefly(served: Served, *, stream: bool) -> Any:
    """Call and give up soon: a call that came just before the disk was full waits for it."""
    body: dict[str, Any] = {"model": "fake", "messages": [USER], "stream": stream}
    headers = {"authorization": f"Bearer {served.acme}"}
    time.sleep(0.05)
    return requests.post(served.url + CHAT, json=body, headers=headers, timeout=1)

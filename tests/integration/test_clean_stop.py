"""A service on real cards at rest and at a clean stop: nothing written, nothing lost, no alarm."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from bedplate.config import load
from bedplate.core import view
from bedplate.engines.base import Finished
from bedplate.journal import Reader
from bedplate.journal.storage import DATABASE_FILE
from bedplate.metering.check import reconcile
from bedplate.runtime.build import build_service
from bedplate.runtime.service import Service
from tests.integration.served import CHAT, Served, tiny_cards
from tests.integration.service_process import submit
from tests.integration.test_service_crash import QUESTION, write_config

HEARTBEAT_S = 0.1


async def run_turn(service: Service, turn: str, messages: list[Any]) -> Finished:
    order = {"turn": turn, "session": "s", "messages": messages, "limit": 8}
    stream = await submit(service, order)
    outputs = [output async for batch in stream for output in batch]
    assert isinstance(outputs[-1], Finished)
    return outputs[-1]


def checkpoints(data: Path) -> int:
    file = data / "journal" / DATABASE_FILE
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        (count,) = database.execute("SELECT count(*) FROM checkpoint").fetchone()
    return int(count)


async def test_at_rest_and_over_a_clean_stop(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = f'kind = "llamacpp"\nname = "e"\nmodel = "tiny"\npath = "{tiny_model}"\n'
    sizes = f"cards = 2\nslots = 2\nkv_tokens = 4096\nheartbeat_seconds = {HEARTBEAT_S}\n"
    config = load(write_config(tmp_path, engine + sizes))
    service = build_service(config)
    await service.start()
    try:
        first = await run_turn(service, "first", [QUESTION])
        await asyncio.sleep(10 * HEARTBEAT_S + 1.5)
        before = (service.journal.next_seq, service.stats())
        signed = checkpoints(tmp_path / "data")
        await asyncio.sleep(15 * HEARTBEAT_S)
        after = (service.journal.next_seq, service.stats())
        assert before[0] == after[0], "an idle service writes no record"
        assert before[1].events == after[1].events
        assert checkpoints(tmp_path / "data") == signed
        more = {"role": "user", "content": "And what follows from it?"}
        history = [QUESTION, first.message, more]
        second = await run_turn(service, "second", history)
        await service.drain(10)
        (left,) = view.sessions(service.base)
    finally:
        await service.stop()
    assert left.branches[0].pool_tokens >= second.prompt_tokens

    caplog.set_level(logging.INFO)
    again = build_service(config)
    await again.start()
    try:
        (kept,) = view.sessions(again.base)
        assert kept.branches[0].pool_tokens == left.branches[0].pool_tokens
        third = await run_turn(again, "third", [*history, second.message, more])
        assert third.cached_tokens >= left.branches[0].pool_tokens - 1
        await again.drain(10)
    finally:
        await again.stop()
    assert not [r.message for r in caplog.records if r.levelno > logging.INFO]
    with Reader(tmp_path / "data" / "journal") as reader:
        assert list(reader.read(kinds=("alarm",))) == []
        report = reconcile(reader.read())
    assert report.in_flight_turns == 0
    assert [(card.state, card.difference.used) for card in report.cards] == [
        ("down", 0),
        ("down", 0),
        ("up", 0),
        ("up", 0),
    ]


def test_a_second_signal_tells_clients_and_the_bill(tiny_model: Path, tmp_path: Path) -> None:
    with Served(tmp_path, tiny_cards(tiny_model)) as served:
        body: dict[str, Any] = {
            "model": "tiny",
            "messages": [QUESTION],
            "stream": True,
            "ignore_eos": True,
            "max_tokens": 8000,
        }
        answer = requests.post(
            served.url + CHAT,
            json=body,
            headers={"authorization": f"Bearer {served.acme}"},
            stream=True,
            timeout=30,
        )
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith(b"data: ")
        served.send_signal(signal.SIGINT)
        # The drain has begun once it refuses; until then the second signal would be the first.
        while served.http("GET", "/readyz").status_code == 200:
            pass
        assert served.stop(signal.SIGINT, within_s=10) == 0
        last = list(lines)[-1]
        assert last.startswith(b'data: {"error":')
        assert b'"draining"' in last
    with Reader(served.data / "journal") as reader:
        (shutdown,) = reader.read(kinds=("shutdown",))
        assert shutdown.body == {"turns": 0}
        report = reconcile(reader.read())
    assert (report.rows, report.in_flight_turns, report.unexplained_tokens) == (1, 0, 0)

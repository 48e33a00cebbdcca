"""How a service stops, what it leaves for the next start, and what it writes while it is idle."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from bedplate.config import Config
from bedplate.core import view
from bedplate.core.events import CardDraining, CardReport
from bedplate.core.ids import CardId
from bedplate.errors import Draining
from bedplate.journal import Journal, Reader
from bedplate.metering.check import Report, reconcile
from bedplate.runtime import service as services
from bedplate.runtime.service import Service
from tests.fakes.calls import at_rest, call, read_all, settle
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start

CARD = CardId("m-0")


class CountingEngine(ScriptedEngine):
    """Counts what the default script makes of each run, and reports when it stops."""

    async def stop(self) -> None:
        self.tell(CardReport(CARD, 0, 0, 100 * len(self.runs), 0, 3 * len(self.runs)))
        self.down(CARD)


def opened(folder: Path) -> tuple[Service, CountingEngine]:
    engine = CountingEngine()
    journal = Journal.open(folder / "journal", origin="test")
    return Service(Config(), [engine], None, journal), engine


def balance(folder: Path) -> Report:
    with Reader(folder / "journal") as reader:
        return reconcile(reader.read())


async def test_a_clean_stop_is_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        service, _ = opened(tmp_path)
        await service.start()
        await read_all(service.submit(call(session="s")))
        await settle(service)
        await service.drain(1)
        await service.stop()
    with Reader(tmp_path / "journal") as reader:
        assert list(reader.read(kinds=("alarm",))) == []
        downs = [record.body["reason"] for record in reader.read(kinds=("CardDown",))]
    assert downs == ["restart"]
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
    cards = balance(tmp_path).cards
    assert [(card.state, card.counted, card.difference.used) for card in cards] == [
        ("down", (100, 0, 3), 0),
        ("up", (100, 0, 3), 0),
    ]


async def test_a_crash_is_a_loss(tmp_path: Path) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    await service.stop()
    again, _ = opened(tmp_path / "b")
    await again.start()
    await again.stop()
    with Reader(tmp_path / "b" / "journal") as reader:
        assert [r.body["kind"] for r in reader.read(kinds=("alarm",))] == ["card_down"]
    assert [card.state for card in balance(tmp_path / "b").cards] == ["died", "up"]


@pytest.mark.parametrize("way", ["cut", "stop"])
async def test_turns_that_are_cut_end_in_the_bill(tmp_path: Path, way: str) -> None:
    service, engine = opened(tmp_path)
    engine.default = Script(gate=asyncio.Event())
    engine.running_max = 1
    await service.start()
    running, waiting = service.submit(call("t1", session="a")), service.submit(call("t2"))
    await anext(running)
    await (service.cut() if way == "cut" else service.stop())
    for stream in (running, waiting):
        with pytest.raises(Draining):
            await read_all(stream)
    if way == "cut":
        at_rest(service)
        await service.stop()
    with Reader(tmp_path / "journal") as reader:
        (last,) = reader.read(kinds=("shutdown",))
        assert last.body == {"turns": 0}
        assert {r.body["turn"] for r in reader.read(kinds=("usage",))} == {"t1", "t2"}
    report = balance(tmp_path)
    assert (report.in_flight_turns, report.issues) == (0, ())


async def test_a_drain_waits_for_the_kv_of_the_last_turn(start: Start) -> None:
    engine = ScriptedEngine()
    engine.store_gate = asyncio.Event()
    service = await start(engine)
    await read_all(service.submit(call(session="s")))
    draining = asyncio.ensure_future(service.drain(1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not draining.done(), "the store is under way"
    engine.store_gate.set()
    await asyncio.wait_for(draining, 2)
    at_rest(service)
    (shown,) = view.sessions(service.base)
    assert shown.branches[0].pool_tokens == 103


async def test_a_drain_does_not_wait_for_ever_for_a_store(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "STORE_END_S", 0.05)
    engine = ScriptedEngine()
    engine.store_gate = asyncio.Event()
    service = await start(engine)
    await read_all(service.submit(call(session="s")))
    await asyncio.wait_for(service.drain(1), 2)
    assert "KV was still being moved" in caplog.text


async def test_reports_that_say_nothing_new_are_not_written(start: Start) -> None:
    engine = ScriptedEngine()
    service = await start(engine)

    def told(out_tokens: int) -> int:
        """How many events a report that says so many tokens makes."""
        before = service.stats().events
        engine.tell(CardReport(CARD, 0, 0, 0, 0, out_tokens))
        return service.stats().events - before

    assert [told(0), told(0), told(0), told(3), told(3)] == [1, 0, 0, 1, 0]
    before = service.stats()
    assert told(3) == 0
    after = service.stats()
    assert (after.notes, after.journal_backlog) == (before.notes, before.journal_backlog)
    await read_all(service.submit(call()))
    await settle(service)
    assert [told(3), told(3)] == [1, 0], "a turn ended since: the account is taken anew"


async def test_a_service_whose_cards_are_all_out_is_not_ready(start: Start) -> None:
    service = await start(ScriptedEngine(cards=2))
    for card, ready in (("m-0", True), ("m-1", False)):
        service.post(CardDraining(CardId(card), True))
        assert service.ready is ready
    service.post(CardDraining(CARD, False))
    assert service.ready

"""Money over restarts: what is enforced equals the ledger, whatever the process remembers (F03)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bedplate.config import Config
from bedplate.config.tree import PricesConfig, TenantLimits
from bedplate.core import view
from bedplate.core.events import CalendarDay, Event
from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.core.units import SECOND_NS
from bedplate.engines.base import Embeddings
from bedplate.errors import BudgetExceeded, SessionBudgetExceeded
from bedplate.journal import Journal, Reader
from bedplate.metering.bill import BILL_KINDS, make_bill
from bedplate.metering.calendar import windows_at
from bedplate.replay import replay
from bedplate.runtime.calendars import Calendars
from bedplate.runtime.service import Service
from tests.fakes.calls import call, read_all, settle
from tests.fakes.scripted_engine import Script, ScriptedEngine

PRICES = PricesConfig(
    uncached_micro=1_000_000, output_micro=1_000_000, card_kv_micro=10**12, card_hour_micro=10**12
)
ZONE = "Asia/Shanghai"


def opened(folder: Path, prices: PricesConfig = PRICES, **limits: int) -> Service:
    config = Config(prices=prices, defaults=TenantLimits(zone=ZONE, **limits))
    journal = Journal.open(folder / "journal", origin="test")
    engine = ScriptedEngine(cards=2)
    return Service(config, [engine], None, journal)


def billed(service: Service) -> dict[str, int]:
    lines = make_bill(service.journal.read(0, kinds=BILL_KINDS)).lines
    return {line.key[0]: line.cost.total for line in lines}


def billed_of(folder: Path) -> dict[str, int]:
    with Reader(folder / "journal") as reader:
        return {line.key[0]: line.cost.total for line in make_bill(reader.read()).lines}


def enforced(service: Service) -> dict[str, int]:
    return {one.tenant: one.day_micro for one in view.tenants(service.base)}


async def test_failures_f03_counters_are_rebuilt_from_the_journal(tmp_path: Path) -> None:
    """F03: after a restart, a clean one or a crash's, spent equals the bill and binds."""
    service = opened(tmp_path)
    await service.start()
    for number in range(3):
        await read_all(service.submit(call(f"t{number}", session=f"s{number}")))
    await settle(service)
    await service.stop()
    for _ in range(2):
        service = opened(tmp_path)
        await service.start()
        assert enforced(service) == billed(service)
        assert min(billed(service).values()) > 0
        await service.stop()
    spent = min(billed_of(tmp_path).values())
    service = opened(tmp_path, day_micro_max=spent)
    await service.start()
    with pytest.raises(BudgetExceeded):
        await read_all(service.submit(call("late", session="late")))
    await service.stop()


async def test_a_core_of_another_version_learns_from_the_rows_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new core cannot read the old one's state: sessions are gone, debts are not."""
    service = opened(tmp_path)
    await service.start()
    await read_all(service.submit(call("t0", session="s")))
    await settle(service)
    await service.stop()
    for module in ("replay.snapshots", "replay.report", "runtime.recovery", "runtime.takeover"):
        monkeypatch.setattr(f"bedplate.{module}.core_version", lambda: "9-other")
    monkeypatch.setattr("bedplate.runtime.snapshots.core_version", lambda: "9-other")
    with monkeypatch.context() as patch:
        patch.setattr("bedplate.core.snapshot.CORE_VERSION", 9)
        new = opened(tmp_path, day_micro_max=1_000)
        await new.start()
    assert view.sessions(new.base) == []
    assert enforced(new) == billed(new)
    with pytest.raises(BudgetExceeded, match=r"money of the day of tenant acme, .*: spent"):
        await read_all(new.submit(call("t1", session="s")))
    await new.stop()


async def test_a_change_of_zone_forgets_nothing_that_falls_into_the_new_day(
    tmp_path: Path,
) -> None:
    """F03: what is enforced is the sum of the rows in the zone of now, whatever the one before."""
    service = opened(tmp_path)
    await service.start()
    await read_all(service.submit(call("t0", session="s0")))
    await settle(service)
    day = windows_at(ZONE, service.now_ns())
    soon_ns = service.now_ns() + SECOND_NS // 20
    service.post(CalendarDay(ZONE, day.day_ns, soon_ns, day.month_ns, soon_ns))
    await asyncio.sleep(0.1)  # day and month of that zone end between two rows
    await read_all(service.submit(call("t1", session="s1")))
    await settle(service)
    assert enforced(service)["acme"] < billed(service)["acme"]
    await service.stop()

    config = Config(prices=PRICES, defaults=TenantLimits(zone="Etc/GMT-8"))
    journal = Journal.open(tmp_path / "journal", origin="test")
    again = Service(config, [ScriptedEngine(cards=2)], None, journal)
    await again.start()
    assert enforced(again) == billed(again)
    await again.stop()
    with Reader(tmp_path / "journal") as reader:
        assert replay(reader).same


async def test_rows_that_a_crash_leaves_have_the_prices_that_they_name(tmp_path: Path) -> None:
    """A service that starts with a new list settles what the crash interrupted at that list."""
    service = opened(tmp_path / "a")
    engine = service.engines[0]
    assert isinstance(engine, ScriptedEngine)
    engine.scripts[TurnId("run")] = [Script(gate=asyncio.Event())]
    await service.start()
    running = service.submit(call("run", session="s", tokens=3_000))
    await anext(running)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    await service.stop()
    dearer = PRICES.model_copy(update={"version": "p-2", "card_kv_micro": 10**9})
    again = opened(tmp_path / "b", dearer)
    await again.start()
    await again.stop()
    assert enforced(again) == billed_of(tmp_path / "b")
    assert min(enforced(again).values()) > 0


async def test_a_refused_call_tells_what_is_spent_reserved_and_the_limit(tmp_path: Path) -> None:
    service = opened(tmp_path, session_total_tokens_max=50)
    await service.start()
    with pytest.raises(SessionBudgetExceeded) as caught:
        await read_all(service.submit(call(session="s", tokens=100)))
    assert caught.value.retry_after_s is None
    assert "spent 0, reserved 0, limit 50, this call may take" in caught.value.message
    assert caught.value.message.endswith("ask for less output")
    await service.stop()


async def test_embeddings_are_paid_from_the_same_money(tmp_path: Path) -> None:
    """What is enforced counts them too, they cannot pass a budget, and a crash frees what ran.

    What one reserves is what its text can have at most: a token a byte, 256 beside.
    """
    prices = PRICES.model_copy(update={"card_hour_micro": 0, "cached_micro": 1_000_000})
    service = opened(tmp_path / "a", prices, day_micro_max=560)
    engine = service.engines[0]
    assert isinstance(engine, ScriptedEngine)
    await service.start()
    who, model = TenantId("acme"), ModelId("m")
    await service.embed(who, 0, model, ["of twelve ch"])
    assert enforced(service) == billed(service) == {"acme": 12}
    gate, embed = asyncio.Event(), engine.embed

    async def held(inputs: Sequence[str]) -> Embeddings:
        await gate.wait()
        return await embed(inputs)

    engine.embed = held  # type: ignore[method-assign]
    runs = asyncio.ensure_future(service.embed(who, 0, model, ["x" * 20]))
    await asyncio.sleep(0)
    with pytest.raises(BudgetExceeded, match=r"reserved 0\.000276 CNY"):
        await service.embed(who, 0, model, ["x" * 20])
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    gate.set()
    await runs
    await service.stop()
    again = opened(tmp_path / "b", prices, day_micro_max=560)
    await again.start()
    (tenant,) = view.tenants(again.base)
    assert (tenant.inflight, tenant.reserved_micro, tenant.day_micro) == (0, 0, 12)
    await again.stop()
    with Reader(tmp_path / "b" / "journal") as reader:
        assert replay(reader).same
        assert not replay(reader).row_mismatches


async def test_calendars_are_told_at_the_start_and_at_each_midnight() -> None:
    day = windows_at(ZONE, 1_796_000_000 * SECOND_NS)
    now = [day.day_end_ns - SECOND_NS // 50]
    told: list[Event] = []
    policy = Config(defaults=TenantLimits(zone=ZONE)).policy()

    def post(event: Event) -> int:
        told.append(event)
        return len(told)

    calendars = Calendars(policy, lambda: now[0], post)
    calendars.tell()
    assert told == [CalendarDay(ZONE, *day)]
    now[0] = day.day_end_ns
    async with asyncio.timeout(5):
        while len(told) < 2:  # noqa: ASYNC110 (the clock decides)
            await asyncio.sleep(0.001)
    calendars.stop()
    assert told[1:] == [CalendarDay(ZONE, *windows_at(ZONE, day.day_end_ns))]

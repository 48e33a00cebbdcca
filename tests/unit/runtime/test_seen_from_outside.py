"""What others read of a service: its journal alone makes a bill, a closed session is not shown."""

from __future__ import annotations

import asyncio

from bedplate.core import view
from bedplate.core.ids import SessionId
from bedplate.metering.bill import make_bill
from tests.fakes.calls import call, read_all, settle
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.runtime.conftest import Start


async def test_the_journal_alone_makes_the_bill(start: Start) -> None:
    """The price list stands in it, so no configuration is needed."""
    service = await start(ScriptedEngine())
    await read_all(service.submit(call("t1")))
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    bill = make_bill(service.journal.read(), by=["tenant"])
    (line,) = bill.lines
    assert line.key == ("acme",)
    # 100 tokens at 2 and 3 at 8 a million, in millionths; KV of a moment rounds to nothing.
    assert line.cost.total == 100 * 2 + 3 * 8


async def test_a_closed_session_is_not_shown_while_its_store_ends(start: Start) -> None:
    engine = ScriptedEngine()
    engine.store_gate = asyncio.Event()
    service = await start(engine)
    await read_all(service.submit(call("t1", session="s1")))
    assert view.session(service.base, SessionId("s1")) is not None
    service.close_session(SessionId("s1"), "client")
    assert SessionId("s1") in service.base.state.sessions, "the store is still under way"
    assert view.session(service.base, SessionId("s1")) is None
    assert view.sessions(service.base) == []
    engine.store_gate.set()
    await settle(service)
    assert SessionId("s1") not in service.base.state.sessions

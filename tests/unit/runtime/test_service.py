from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bedplate.config import Config
from bedplate.config.tree import TenantLimits
from bedplate.core import view
from bedplate.core.ids import CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.engines.base import Delta, Embeddings, Finished, Started
from bedplate.errors import (
    ContextTooLong,
    EngineError,
    EngineTimeout,
    JournalError,
    QuotaExceeded,
    SchemaNotKept,
    UnknownModel,
    UnknownSession,
)
from bedplate.journal import Content, Reader, content_hash
from bedplate.replay import replay
from tests.fakes.calls import at_rest, call, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tests.unit.runtime.conftest import Start


async def test_a_turn_is_answered_stored_and_metered_once(start: Start) -> None:
    engine = ScriptedEngine()
    service = await start(engine)
    stream = service.submit(call("t1"))
    outputs = await read_all(stream)
    assert [type(o) for o in outputs] == [Started, Delta, Delta, Delta, Finished]
    assert text_of(outputs) == "abc"
    assert stream.limit_tokens == 16
    assert stream.card == "m-0"
    assert stream.started_ns >= stream.arrival_ns > 0
    await settle(service)
    at_rest(service)
    assert list(engine.stored.values()) == [103]
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    rows = list(service.journal.read(kinds=("usage",)))
    assert [(r.body["turn"], r.body["status"], r.body["out_tokens"]) for r in rows] == [
        ("t1", "stop", 3)
    ]
    assert service.stats().turns_ended == {"stop": 1}


async def test_nothing_leaves_before_its_record_is_durable(start: Start) -> None:
    engine = ScriptedEngine()
    service = await start(engine)
    engine.default = Script(batch=True)
    stream = service.submit(call())
    first = await anext(stream)
    durable = service.journal.next_seq
    assert [r.kind for r in service.journal.read(kinds=("TurnArrived",))] == ["TurnArrived"]
    assert not isinstance(first[-1], Finished), "the end waits for its own record"
    (end,) = await anext(stream)
    assert isinstance(end, Finished)
    assert [r.kind for r in service.journal.read(kinds=("TurnEnded",))] == ["TurnEnded"]
    assert service.journal.next_seq >= durable
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_the_next_turn_of_a_session_reuses_its_slot(start: Start) -> None:
    engine = ScriptedEngine(cards=2)
    service = await start(engine)
    await read_all(service.submit(call(tokens=100)))
    await read_all(service.submit(call(tokens=150, reuse=103)))
    assert [run.expect_cached_tokens for run in engine.runs] == [0, 103]
    assert len({(run.card, run.slot) for run in engine.runs}) == 1
    assert engine.runs[1].loaded is False


async def test_a_refusal_is_an_error_of_the_right_class(start: Start) -> None:
    service = await start(ScriptedEngine())
    with pytest.raises(ContextTooLong) as caught:
        await read_all(service.submit(call(tokens=99_999)))
    assert "99999" in caught.value.message
    with pytest.raises(UnknownModel):
        service.submit(call(model="nope"))
    at_rest(service)
    assert service.stats().sessions == 0
    assert service.stats().turns_ended == {"refused": 1}


async def test_cancel_stops_the_engine_and_bills_what_was_made(start: Start) -> None:
    engine = ScriptedEngine()
    engine.default = Script(gate=asyncio.Event())
    service = await start(engine)
    stream = service.submit(call("t1"))
    await anext(stream)
    stream.cancel("client_cancelled")
    stream.cancel("client_cancelled")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await settle(service)
    at_rest(service)
    assert engine.closed_runs == 1
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    (row,) = list(service.journal.read(kinds=("usage",)))
    assert (row.body["status"], row.body["prompt_tokens"], row.body["exact"]) == (
        "cancelled",
        100,
        0,
    )
    assert len(list(service.journal.read(kinds=("TurnCancelled",)))) == 1


@pytest.mark.parametrize("where", ["queued", "prefill"])
async def test_cancel_before_the_first_byte(start: Start, where: str) -> None:
    engine = ScriptedEngine()
    engine.running_max = 1
    engine.default = Script(before=asyncio.Event())
    service = await start(engine)
    running = service.submit(call(session="a"))
    waiting = service.submit(call(session="b"))
    await asyncio.sleep(0)
    victim = running if where == "prefill" else waiting
    victim.cancel("client_cancelled")
    with pytest.raises(StopAsyncIteration):
        await anext(victim)
    for _ in range(20):
        await asyncio.sleep(0)
    assert service.stats().turns_live == 1
    other = waiting if where == "prefill" else running
    assert engine.default.before is not None
    engine.default.before.set()
    assert text_of(await read_all(other)) == "abc"
    await settle(service)
    at_rest(service)


async def test_an_engine_that_does_not_stop_keeps_only_its_slot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bedplate.runtime.executor.STOP_S", 0.01)
    engine = ScriptedEngine()
    engine.cards["m-0"].slots = 1  # type: ignore[index]
    engine.running_max = 1
    stuck = asyncio.Event()
    engine.scripts[TurnId("t1")] = [Script(gate=asyncio.Event(), ignore_cancel=stuck)]
    service = await start(engine)
    stream = service.submit(call("t1", session="a"))
    await anext(stream)
    stream.cancel("client_cancelled")
    while service.stats().turns_live:  # noqa: ASYNC110 (the service has no event for it)
        await asyncio.sleep(0.001)
    second = service.submit(call("t2", session="b"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(engine.runs) == 1, "nothing starts on the slot before its last run is gone"
    stuck.set()
    assert text_of(await read_all(second)) == "abc"
    await settle(service)
    at_rest(service)


async def test_an_adapters_bug_costs_the_turn_only(start: Start) -> None:
    engine = ScriptedEngine()
    engine.scripts[TurnId("t1")] = [Script(error=ZeroDivisionError())]
    service = await start(engine)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await read_all(service.submit(call("t1")))
    assert text_of(await read_all(service.submit(call("t2", session="b")))) == "abc"


@pytest.mark.parametrize("error", [EngineTimeout("slow"), SchemaNotKept("no integer")])
async def test_what_another_card_would_not_do_better_is_not_tried_there(
    start: Start, error: EngineError
) -> None:
    engine = ScriptedEngine(cards=2)
    engine.scripts[TurnId("t1")] = [Script(pieces=(), error=error)]
    service = await start(engine)
    with pytest.raises(type(error), match=error.message):
        await read_all(service.submit(call("t1")))
    assert len(engine.runs) == 1


async def test_a_reader_that_is_interrupted_loses_nothing(start: Start) -> None:
    engine = ScriptedEngine()
    gate = asyncio.Event()
    engine.default = Script(before=gate)
    service = await start(engine)
    stream = service.submit(call())
    for _ in range(3):
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.set()
    assert text_of(await read_all(stream)) == "abc"


async def test_a_closed_session_is_forgotten_everywhere(start: Start) -> None:
    engine = ScriptedEngine()
    service = await start(engine)
    ended: list[SessionId] = []
    service.on_session_end(ended.append)
    await read_all(service.submit(call(session="a")))
    await settle(service)
    service.close_session(SessionId("a"), "client")
    await settle(service)
    assert ended == ["a"]
    assert engine.forgotten == ["a"]
    assert service.stats().sessions == 0
    at_rest(service)


async def test_embeddings_are_metered_before_they_leave(start: Start) -> None:
    service = await start(ScriptedEngine())
    result = await service.embed("acme", 0, "m", ["four", "five!"])  # type: ignore[arg-type]
    assert result.prompt_tokens == 9
    (row,) = list(service.journal.read(kinds=("usage",)))
    (ended,) = list(service.journal.read(kinds=("CallEnded",)))
    assert (row.tenant, row.body["prompt_tokens"], row.body["event_seq"]) == ("acme", 9, ended.seq)


async def test_embeddings_keep_to_the_limits_of_their_tenant(start: Start) -> None:
    """They and its turns share them."""
    limits = TenantLimits(inflight_max=1, requests_per_minute=2, tokens_per_minute=10)
    engine = ScriptedEngine()
    service = await start(engine, config=Config(defaults=limits))
    acme, rival, model = TenantId("acme"), TenantId("rival"), ModelId("m")
    gate, embed = asyncio.Event(), engine.embed

    async def held(inputs: Sequence[str]) -> Embeddings:
        await gate.wait()
        return await embed(inputs)

    engine.embed = held  # type: ignore[method-assign]
    first = asyncio.ensure_future(service.embed(acme, 0, model, ["four"]))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceeded, match="1 calls in flight"):
        await service.embed(acme, 0, model, ["four"])
    gate.set()
    await first
    assert (await service.embed(rival, 0, model, ["of twelve ch"])).prompt_tokens == 12
    with pytest.raises(QuotaExceeded, match="10 tokens a minute") as caught:
        await service.embed(rival, 0, model, ["a"])
    assert caught.value.retry_after_s is not None
    await service.embed(acme, 0, model, ["four"])
    with pytest.raises(QuotaExceeded, match="2 requests a minute"):
        await service.embed(acme, 0, model, ["four"])
    with pytest.raises(QuotaExceeded, match="2 requests a minute"):
        await read_all(service.submit(call("t1", tenant="acme", tokens=5)))


async def test_embeddings_that_fail_leave_the_limits_as_they_were(start: Start) -> None:
    engine = ScriptedEngine()
    limits = TenantLimits(inflight_max=1, tokens_per_minute=10)
    service = await start(engine, config=Config(defaults=limits))
    embed = engine.embed

    async def broken(inputs: Sequence[str]) -> Embeddings:
        raise EngineError("broken")

    engine.embed = broken  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(EngineError, match="broken"):
            await service.embed(TenantId("acme"), 0, ModelId("m"), ["x" * 100])
    engine.embed = embed  # type: ignore[method-assign]
    await service.embed(TenantId("acme"), 0, ModelId("m"), ["x"])


async def test_while_the_journal_is_stalled_nothing_is_embedded(start: Start) -> None:
    service = await start(ScriptedEngine())
    service._committer.stalled = True
    with pytest.raises(JournalError):
        await service.embed(TenantId("acme"), 0, ModelId("m"), ["x"])
    with pytest.raises(JournalError):
        service.check_writable()
    service._committer.stalled = False
    await service.embed(TenantId("acme"), 0, ModelId("m"), ["x"])


async def test_drain_lets_turns_end_then_cancels_and_says_so(start: Start) -> None:
    engine = ScriptedEngine()
    gate = asyncio.Event()
    engine.scripts[TurnId("t1")] = [Script(gate=gate)]
    engine.scripts[TurnId("t2")] = [Script(gate=asyncio.Event())]
    service = await start(engine)
    good = service.submit(call("t1", session="a"))
    late = service.submit(call("t2", session="b"))
    await anext(good)
    draining = asyncio.ensure_future(service.drain(0.05))
    await asyncio.sleep(0)
    with pytest.raises(Exception, match="shutting down"):
        await read_all(service.submit(call("t3", session="c")))
    gate.set()
    assert text_of(await read_all(good)).endswith("c")
    with pytest.raises(Exception, match="shut down"):
        await read_all(late)
    await draining
    at_rest(service)


async def test_live_and_replayed_digest_are_the_same(start: Start) -> None:
    engine = ScriptedEngine(cards=2)
    service = await start(engine)
    streams = [service.submit(call(session=f"s{i % 7}", tokens=50 + i)) for i in range(40)]
    await asyncio.gather(*(read_all(stream) for stream in streams))
    await settle(service)
    digest = service.base.digest.hex()
    folder = service.journal.folder
    await service.stop()
    with Reader(folder) as reader:
        report = replay(reader)
    assert report.same
    assert report.digest_live == report.digest_replay == digest
    assert report.rows == 40


async def test_contents_are_stored_with_the_arrival_and_named(start: Start) -> None:
    service = await start(ScriptedEngine())
    said = b'{"content":"hello","role":"user"}'
    content = Content(content_hash(said), "acme", "s1", said)
    order = call("t1")
    order.contents = (content,)
    await read_all(service.submit(order))
    (note,) = service.journal.read(kinds=("content",))
    (arrived,) = service.journal.read(kinds=("TurnArrived",))
    assert note.body == {"turn": "t1", "hashes": [content.hash]}
    assert (note.seq, note.tenant, note.session) == (arrived.seq + 1, "acme", "s1")
    assert service.journal.content(content.hash) == said


async def test_records_are_filed_under_their_tenant_and_session(start: Start) -> None:
    engine = ScriptedEngine()
    service = await start(engine)
    await read_all(service.submit(call("t1", tenant="acme", session="s1")))
    await settle(service)
    service.close_session(SessionId("s1"), "client")
    await settle(service)
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    kinds = ("TurnArrived", "TurnStarted", "TurnEnded", "usage", "SessionClosed")
    for record in service.journal.read(kinds=kinds):
        assert (record.tenant, record.session) == ("acme", "s1"), record


async def test_another_tenants_session_is_not_found_and_stays_its_owners(start: Start) -> None:
    service = await start(ScriptedEngine())
    await read_all(service.submit(call(tenant="acme", session="s1")))
    with pytest.raises(UnknownSession):
        await read_all(service.submit(call(tenant="evil", session="s1")))
    await settle(service)
    owners = {r.tenant for r in service.journal.read(kinds=("usage",))}
    assert owners == {"acme"}
    assert service.stats().sessions == 1


async def test_sessions_that_vanish_leave_nothing(start: Start) -> None:
    """F22, small: every fifth client goes away at some point; cards flap meanwhile."""
    engine = ScriptedEngine(cards=2)
    service = await start(engine)
    for number in range(100):
        stream = service.submit(call(session=f"s{number}", tokens=40))
        if number % 5 == 0:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            stream.cancel("client_cancelled")
        elif number % 17 == 3:
            engine.down(CardId("m-0"))
            engine.up(CardId("m-0"))
            assert text_of(await read_all(stream)) == "abc"
        else:
            assert text_of(await read_all(stream)) == "abc"
    await settle(service)
    for number in range(100):
        service.close_session(SessionId(f"s{number}"), "client")
    await settle(service)
    at_rest(service)
    assert service.stats().sessions == 0
    assert view.pool(service.base).entries == 0
    assert sum(service.stats().turns_ended.values()) == 100

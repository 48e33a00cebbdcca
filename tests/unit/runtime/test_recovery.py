from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from bedplate.config import Config
from bedplate.core import invariants, view
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.events import CardReport, PolicyChanged
from bedplate.core.ids import CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import BATCH, INTERACTIVE, Slice, default_policy
from bedplate.errors import JournalError, ReplayDivergence
from bedplate.journal import Journal, Reader, Record, verify
from bedplate.pool import Fingerprint, KvPool, Owner
from bedplate.replay import replay
from bedplate.runtime import loop as loops
from bedplate.runtime.service import Service
from bedplate.runtime.takeover import slices_of
from tests.fakes.calls import at_rest, call, read_all, settle, text_of
from tests.fakes.scripted_engine import Script, ScriptedEngine


class PoolingEngine(ScriptedEngine):
    """Stores into the real pool, so that a copy survives its process."""

    def __init__(self, pool: KvPool) -> None:
        super().__init__(cards=2)
        self.pool = pool

    async def store_kv(self, card, slot, lineage, entry):  # type: ignore[no-untyped-def]
        stored = await super().store_kv(card, slot, lineage, entry)
        pending = self.pool.begin(entry, Owner(lineage.tenant, lineage.session, lineage.branch))
        pending.path.write_bytes(b"k" * stored.size_bytes)
        print_of = Fingerprint("d", "f16", "l", "e", stored.tokens, "h")
        size = self.pool.commit(pending, print_of, str(stored.tokens).encode())
        return stored._replace(size_bytes=size)

    async def load_kv(self, card, slot, lineage, entry):  # type: ignore[no-untyped-def]
        self.moves.append(("load", card, slot))
        tokens = int(self.pool.open_entry(entry, None, lineage.tenant).meta)
        self.cards[card].held[slot] = tokens
        return tokens


def opened(folder: Path) -> tuple[Service, PoolingEngine]:
    journal = Journal.open(folder / "journal", origin="test")
    pool = KvPool.open(
        folder / "pool", name="test", size_bytes_max=10_000_000, fallback=folder / "disk"
    )
    engine = PoolingEngine(pool)
    return Service(Config(), [engine], pool, journal), engine


def part(name: str, *, cards: int = 0, kv_tokens: int = 0) -> Slice:
    """Return a slice that holds for as long as there is time."""
    model = ModelId("m")
    return Slice(name, TenantId("t"), model, cards, kv_tokens, -1, 0, (1 << 63) - 1)


async def crash_image(service: Service, to: Path) -> Path:
    """Copy what a process that is killed now leaves behind."""
    await service.committed(service.note("client_error", "", "", {"code": "x"}))
    shutil.copytree(service.journal.folder.parent, to)
    return to


async def test_a_crash_loses_running_turns_only(tmp_path: Path) -> None:
    service, engine = opened(tmp_path / "a")
    engine.scripts[TurnId("run")] = [Script(gate=asyncio.Event())]
    await service.start()
    await read_all(service.submit(call("done", session="kept", tokens=200)))
    await settle(service)
    running = service.submit(call("run", session="lost", tokens=300))
    await anext(running)
    engine.default = Script(gate=asyncio.Event())
    for i in range(6):
        service.submit(call(f"w{i}", session=f"w{i}"))
    image = await crash_image(service, tmp_path / "b")
    await service.stop()

    again, engine = opened(image)
    await again.start()
    at_rest(again)
    rows = {r.body["turn"]: r.body for r in again.journal.read(kinds=("usage",))}
    waited = [f"w{i}" for i in range(6)]
    assert sorted(rows) == sorted(["done", "run", *waited])
    assert rows["run"]["status"] == "lost"
    assert {rows[turn]["status"] for turn in waited} <= {"lost", "error"}
    stream = again.submit(call("next", session="kept", tokens=260, reuse=203))
    assert text_of(await read_all(stream)) == "abc"
    assert [m[0] for m in engine.moves][:1] == ["load"]
    assert engine.runs[0].expect_cached_tokens == 203
    await settle(again)
    await again.stop()
    assert verify(image / "journal").size == again.journal.next_seq
    with Reader(image / "journal") as reader:
        report = replay(reader)
    assert report.same
    assert report.digest_live == again.base.digest.hex()


async def test_a_turn_that_had_made_way_does_not_pay_for_the_crash(tmp_path: Path) -> None:
    """It waited, but had run: its client did not end it."""
    service, engine = opened(tmp_path / "a")
    engine.running_max = 1
    gate = asyncio.Event()
    engine.scripts[TurnId("batch")] = [Script(pieces=("one ", "lost"), gate=gate)]
    engine.default = Script(gate=gate)
    await service.start()
    batch = service.submit(call("batch", session="b", lane=BATCH, limit=64))
    await anext(batch)
    for number in range(2):
        now = call(f"n{number}", session=f"n{number}", lane=INTERACTIVE)
        async with asyncio.timeout(5):
            await anext(service.submit(now))
    image = await crash_image(service, tmp_path / "b")
    await service.stop()

    again, _ = opened(image)
    await again.start()
    row = {r.body["turn"]: r.body for r in again.journal.read(kinds=("usage",))}["batch"]
    assert (row["attempts"], row["status"]) == (1, "error")
    assert row["out_tokens"] > 0
    await again.stop()


async def test_pool_copies_that_vanished_are_computed_again(tmp_path: Path) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await settle(service)
    await service.stop()
    for file in (tmp_path / "a" / "pool").iterdir():
        if file.suffix in (".kv", ".meta"):
            file.unlink()
    again, engine = opened(tmp_path / "a")
    await again.start()
    assert view.pool(again.base).entries == 0
    await read_all(again.submit(call(session="s", tokens=150, reuse=103)))
    assert engine.runs[0].expect_cached_tokens == 0
    await again.stop()


async def test_the_pool_loses_what_no_session_owns(tmp_path: Path) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await settle(service)
    await service.stop()
    pool = KvPool.open(
        tmp_path / "a" / "pool", name="test", size_bytes_max=10_000_000, fallback=tmp_path / "d"
    )
    pending = pool.begin(999, Owner("acme", "ghost", 0))  # type: ignore[arg-type]
    pending.path.write_bytes(b"x")
    pool.commit(pending, Fingerprint("d", "f16", "l", "e", 1, "h"), b"")
    pool.close()
    again, _ = opened(tmp_path / "a")
    await again.start()
    assert again.pool is not None
    assert [info.owner.session for info in again.pool.entries()] == ["s"]
    await again.stop()


async def test_a_clean_stop_restarts_from_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await settle(service)
    await service.drain(1)
    await service.stop()
    fresh: list[int] = []
    handle = Base.handle

    def counted(self: Base, now_ns: int, event: object) -> object:
        fresh.append(self.seq)
        return handle(self, now_ns, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Base, "handle", counted)
    again, _ = opened(tmp_path / "a")
    await again.start()
    assert min(fresh) == service.base.seq, "nothing before the snapshot is handled again"
    assert [s.session for s in view.sessions(again.base)] == ["s"]
    assert text_of(await read_all(again.submit(call(session="s2")))) == "abc", "not draining"
    await again.stop()


async def test_snapshots_are_taken_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SNAPSHOT_EVENTS", 30)
    service, _ = opened(tmp_path / "a")
    await service.start()
    for turn in range(20):
        await read_all(service.submit(call(session=f"s{turn % 3}", tokens=50)))
        await settle(service)
    image = await crash_image(service, tmp_path / "b")
    await service.stop()
    again, _ = opened(image)
    snapshots = list(again.journal.read(kinds=("snapshot",)))
    assert len(snapshots) >= 2
    kept = [again.journal.content(note.body["content"]) is not None for note in snapshots]
    assert kept == [False] * (len(kept) - 1) + [True], "only the newest state is kept"
    await again.start()
    invariants.check(again.base)
    assert len(view.sessions(again.base)) == 3
    await again.stop()
    with Reader(image / "journal") as reader:
        whole, tail = replay(reader), replay(reader, from_start=False)
    assert whole.same
    assert tail.same
    assert tail.events < whole.events
    assert tail.digest_replay == whole.digest_replay


async def test_a_bug_in_the_core_halts_and_can_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    handle = Base.handle

    def buggy(self: Base, now_ns: int, event: object) -> object:
        assert not isinstance(event, CardReport), "a bug"
        return handle(self, now_ns, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Base, "handle", buggy)
    stream = service.submit(call())
    bad = service.post(CardReport(CardId("m-0"), 1, 0, 0, 0, 0))
    assert isinstance(await service.wait_halted(), AssertionError)
    with pytest.raises(Exception, match="bug in itself"):
        await read_all(stream)
    with pytest.raises(JournalError):
        service.submit(call())
    assert not service.ready
    await service.stop()
    note = next(iter(Reader(tmp_path / "a" / "journal").read(kinds=("halted",))))
    assert note.body["event_seq"] == bad

    again, _ = opened(tmp_path / "a")
    with pytest.raises(ReplayDivergence, match=f"--skip {bad}"):
        await again.start()
    with Journal.open(tmp_path / "a" / "journal", origin="test") as journal:
        seq, last = journal.next_seq, journal.last_time_ns
        journal.append([Record(seq, last, "skipped", "", "", {"seq": bad})])

    third, _ = opened(tmp_path / "a")
    await third.start()
    assert text_of(await read_all(third.submit(call(session="z")))) == "abc"
    await third.stop()
    with Reader(tmp_path / "a" / "journal") as reader:
        report = replay(reader)
    assert report.same
    assert report.skipped == (bad,)


async def test_another_core_takes_over_from_a_clean_shutdown_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await settle(service)
    image = await crash_image(service, tmp_path / "b")
    await service.stop()
    for module in ("replay.snapshots", "replay.report", "runtime.recovery", "runtime.takeover"):
        monkeypatch.setattr(f"bedplate.{module}.core_version", lambda: "2-other")
    killed, _ = opened(image)
    with pytest.raises(ReplayDivergence, match="was not shut down cleanly"):
        await killed.start()
    clean, _ = opened(tmp_path / "a")
    await clean.start()
    assert [s.session for s in view.sessions(clean.base)] == ["s"]
    (changed,) = clean.journal.read(kinds=("core_changed",))
    assert changed.body["to"] == "2-other"
    await read_all(clean.submit(call(session="s", tokens=150, reuse=103)))
    await clean.stop()
    with Reader(tmp_path / "a" / "journal") as reader:
        report = replay(reader)
    assert report.same
    assert report.start_seq == changed.body["snapshot_seq"] + 1


async def test_a_stalled_journal_takes_no_calls_and_lets_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bedplate.runtime.committer._RETRY_FIRST_S", 0.001)
    monkeypatch.setattr("bedplate.runtime.committer._RETRY_MAX_S", 0.001)
    service, engine = opened(tmp_path / "a")
    gate = asyncio.Event()
    engine.default = Script(gate=gate)
    await service.start()
    stream = service.submit(call())
    seen = list(await anext(stream))
    full = True
    append = service.journal.append

    def maybe(records, contents=()):  # type: ignore[no-untyped-def]
        if full:
            raise JournalError("the disk is full")
        append(records, contents)

    monkeypatch.setattr(service.journal, "append", maybe)
    service.note("client_error", "", "", {"code": "x"})
    while not service.stats().journal_stalled:  # noqa: ASYNC110 (a thread or the clock decides)
        await asyncio.sleep(0.001)
    with pytest.raises(JournalError, match="disk full"):
        service.submit(call(session="b"))
    assert not service.ready
    gate.set()
    rest = asyncio.ensure_future(read_all(stream))
    await asyncio.sleep(0.02)
    assert not rest.done()
    full = False
    seen += await rest
    assert text_of(seen) == "abc"
    assert service.ready
    stalls = [r.body["on"] for r in service.journal.read(kinds=("JournalStalled",))]
    assert stalls == [1, 0]
    assert SessionId("b") not in service.base.state.sessions
    await service.stop()


async def test_a_store_that_its_cards_loss_made_void_leaves_nothing_behind(tmp_path: Path) -> None:
    service, engine = opened(tmp_path / "a")
    engine.store_gate = asyncio.Event()
    await service.start()
    await read_all(service.submit(call(session="s")))
    engine.down(engine.runs[0].card)
    for _ in range(20):
        await asyncio.sleep(0)
    engine.store_gate.set()
    await settle(service)
    at_rest(service)
    assert service.pool is not None
    assert service.pool.entries() == []
    assert view.pool(service.base).entries == 0
    await service.stop()


async def test_a_core_that_cannot_read_the_state_begins_without_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = opened(tmp_path / "a")
    await service.start()
    await read_all(service.submit(call(session="s")))
    await settle(service)
    slices = (part("a", cards=1), part("b", kv_tokens=64))
    policy = service.base.state.policy._replace(slices=slices)
    service.post(PolicyChanged(policy))
    await settle(service)
    await service.stop()
    for module in ("replay.snapshots", "replay.report", "runtime.recovery", "runtime.takeover"):
        monkeypatch.setattr(f"bedplate.{module}.core_version", lambda: "9-other")
    monkeypatch.setattr("bedplate.runtime.snapshots.core_version", lambda: "9-other")
    with monkeypatch.context() as patch:
        patch.setattr("bedplate.core.snapshot.CORE_VERSION", 9)
        new, _ = opened(tmp_path / "a")
        await new.start()
    assert view.sessions(new.base) == []
    assert new.base.state.policy.slices == slices
    assert [card.slice for card in new.base.state.cards.values()].count(slices[0]) == 1
    assert new.pool is not None
    assert new.pool.entries() == []
    await read_all(new.submit(call(session="s")))
    await settle(new)
    image = await crash_image(new, tmp_path / "b")
    await new.stop()
    again, _ = opened(image)
    await again.start()
    assert [s.session for s in view.sessions(again.base)] == ["s"]
    await again.stop()
    with Reader(image / "journal") as reader:
        assert replay(reader).same


def test_a_slice_of_another_form_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = part("a", cards=1)
    other = {**known._asdict(), "id": "b", "colour": "green"}
    body = body_of(PolicyChanged(default_policy()._replace(slices=(known,))))
    body["policy"]["slices"].append(other)
    journal = Journal.open(tmp_path / "journal", origin="test")
    assert slices_of(journal) == ()
    journal.append(
        [Record(seq=0, time_ns=1, kind="PolicyChanged", tenant="", session="", body=body)]
    )
    assert slices_of(journal) == (known,)
    journal.close()
    assert "asked for again" in caplog.text
    assert "'b'" in caplog.text

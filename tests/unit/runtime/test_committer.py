from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from bedplate.errors import JournalError
from bedplate.journal import Content, Record
from bedplate.runtime.committer import Committer, Group, Hooks


class FakeJournal:
    """Takes batches in the writer's thread; fails or waits as told."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.batches: list[list[int]] = []
        self.failures: list[Exception] = []
        self.go = threading.Event()
        self.go.set()
        self.threads: set[int] = set()
        self.unsigned: list[Exception] = []
        self.signed: list[int] = []
        self.signings = threading.Semaphore(0)

    def append(self, records: Sequence[Record], contents: Sequence[Content] = ()) -> None:
        self.threads.add(threading.get_ident())
        self.go.wait()
        if self.failures:
            raise self.failures.pop(0)
        assert records[0].seq == self.next_seq
        self.batches.append([record.seq for record in records])
        self.next_seq = records[-1].seq + 1

    def checkpoint(self) -> bytes:
        self.threads.add(threading.get_ident())
        self.signings.release()
        if self.unsigned:
            raise self.unsigned.pop(0)
        self.signed.append(self.next_seq)
        return b""


class Seen:
    def __init__(self) -> None:
        self.stalls: list[bool] = []
        self.crashes: list[BaseException] = []
        self.hooks = Hooks(stalled=self.stalls.append, crashed=self.crashes.append)


def group(*seqs: int, body: object = 1) -> Group:
    return Group([Record(seq, seq, "note", "", "", {"x": body}) for seq in seqs], [])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedplate.runtime.committer._RETRY_FIRST_S", 0.001)


async def test_groups_share_a_commit_and_are_never_split() -> None:
    journal, seen = FakeJournal(), Seen()
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    journal.go.clear()
    committer.publish(group(0))
    committer.publish(group(1, 2))
    committer.publish(group(3, 4, 5))
    assert committer.backlog == 6
    waits = [asyncio.ensure_future(committer.committed(seq)) for seq in (5, 0, 2)]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    journal.go.set()
    await asyncio.gather(*waits)
    assert [seq for batch in journal.batches for seq in batch] == [0, 1, 2, 3, 4, 5]
    assert all(batch[-1] in (0, 2, 5) for batch in journal.batches)
    assert len(journal.batches) <= 2
    assert committer.backlog == 0
    assert journal.threads.isdisjoint({threading.get_ident()})
    assert await committer.close()
    assert seen.stalls == []


async def test_a_failing_disk_stalls_and_heals_without_loss() -> None:
    journal, seen = FakeJournal(), Seen()
    journal.failures = [JournalError("disk full"), OSError("disk full")]
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    committer.publish(group(0, 1))
    await committer.committed(1)
    await committer.flowing()
    assert seen.stalls == [True, False]
    assert committer.stats.failures == 2
    assert journal.batches == [[0, 1]]
    assert await committer.close()


async def test_flowing_waits_while_the_journal_is_stalled() -> None:
    journal, seen = FakeJournal(), Seen()
    journal.failures = [JournalError("disk full")] * 3
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    committer.publish(group(0))
    while not committer.stalled:  # noqa: ASYNC110 (a thread or the clock decides)
        await asyncio.sleep(0.001)
    assert journal.batches == []
    await committer.flowing()
    assert journal.batches == [[0]]
    await committer.close()


async def test_a_commit_that_hangs_is_a_stall_too() -> None:
    journal, seen = FakeJournal(), Seen()
    committer = Committer(journal, seen.hooks, stall_s=0.01)  # type: ignore[arg-type]
    committer.start()
    journal.go.clear()
    committer.publish(group(0))
    while not seen.stalls:  # noqa: ASYNC110 (a thread or the clock decides)
        await asyncio.sleep(0.001)
    journal.go.set()
    committer.publish(group(1))
    await committer.committed(1)
    assert seen.stalls[0] is True
    while committer.stalled:
        committer.publish(group(committer.published + 1))
        await committer.committed(committer.published)
    assert seen.stalls[-1] is False
    await committer.close()


async def test_a_record_that_cannot_be_encoded_is_a_bug_not_a_full_disk() -> None:
    journal, seen = FakeJournal(), Seen()
    journal.failures = [JournalError("a float")]
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    committer.publish(group(0, body=0.5))
    with pytest.raises(JournalError):
        await committer.committed(0)
    assert len(seen.crashes) == 1
    with pytest.raises(JournalError):
        await committer.committed(0)


async def test_close_makes_everything_durable() -> None:
    journal, seen = FakeJournal(), Seen()
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    for seq in range(100):
        committer.publish(group(seq))
    assert await committer.close()
    assert journal.next_seq == 100
    assert committer.durable == 99


async def test_close_gives_up_on_a_dead_disk() -> None:
    journal, seen = FakeJournal(), Seen()
    journal.failures = [JournalError("disk full")] * 100_000
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    committer.publish(group(0))
    while not committer.stalled:  # noqa: ASYNC110 (a thread decides)
        await asyncio.sleep(0.001)
    waits = [
        asyncio.ensure_future(committer.committed(0)),
        asyncio.ensure_future(committer.flowing()),
    ]
    await asyncio.sleep(0)
    assert not await committer.close(timeout_s=0.05)
    assert journal.batches == []
    for wait in waits:
        with pytest.raises(JournalError):
            await wait


async def test_an_idle_journal_is_signed_once_by_the_writer() -> None:
    journal, seen = FakeJournal(), Seen()
    journal.unsigned = [JournalError("disk full")]
    committer = Committer(journal, seen.hooks, idle_s=0.01)  # type: ignore[arg-type]
    committer.start()
    for _ in range(2):  # once in vain
        assert await asyncio.to_thread(journal.signings.acquire, timeout=5)
    committer.publish(group(0, 1))
    await committer.committed(1)
    assert await asyncio.to_thread(journal.signings.acquire, timeout=5)
    assert not await asyncio.to_thread(journal.signings.acquire, timeout=0.1), "once is enough"
    assert journal.signed == [0, 2]
    assert journal.threads.isdisjoint({threading.get_ident()})
    assert await committer.close()
    assert (seen.stalls, seen.crashes) == ([], [])


async def test_a_gap_in_the_numbers_is_refused() -> None:
    journal, seen = FakeJournal(), Seen()
    committer = Committer(journal, seen.hooks)  # type: ignore[arg-type]
    committer.start()
    with pytest.raises(AssertionError):
        committer.publish(group(1))
    await committer.close()

"""Snapshots while the service runs: take one, and erase the content of the one before.

Only the newest snapshot is needed to recover, so once it is durable the former state is erased; its
note stays. The state that another version of the core handed over is kept: replay begins there.
"""

from __future__ import annotations

import asyncio
import logging

from bedplate.errors import JournalError
from bedplate.journal import Journal
from bedplate.replay import core_version
from bedplate.replay.snapshots import handed_over
from bedplate.runtime.committer import Committer
from bedplate.runtime.loop import CoreLoop

_log = logging.getLogger(__name__)


class Snapshots:
    """Takes snapshots of one loop's core."""

    def __init__(self, journal: Journal, committer: Committer, loop: CoreLoop) -> None:
        self._journal = journal
        self._committer = committer
        self._loop = loop
        former = journal.last("snapshot")
        self._former = former.body["content"] if former is not None else ""
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> None:
        """Write a snapshot now; the one before is erased when this one is durable."""
        saved = self._loop.note_snapshot(core_version())
        former, self._former = self._former, saved.content
        if former and former != saved.content:
            task = asyncio.get_running_loop().create_task(self._erase(former, saved.seq))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Finish what is being erased; call when everything is durable or given up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _erase(self, former: str, seq: int) -> None:
        try:
            await self._committer.committed(seq)
            await asyncio.to_thread(self._erase_now, former)
        except JournalError as error:
            _log.warning("the snapshot before record %d was not erased: %s", seq, error)

    def _erase_now(self, former: str) -> None:
        kept = handed_over(self._journal)
        if kept is None or kept.body["content"] != former:
            self._journal.erase_content(tenant="", session="", content_hash=former)

"""The counters of a service, read where its parts keep them."""

from __future__ import annotations

from bedplate.runtime.committer import Committer
from bedplate.runtime.driver import LiveDriver
from bedplate.runtime.loop import CoreLoop
from bedplate.runtime.slots import SlotUse
from bedplate.runtime.stats import Stats


def read_stats(loop: CoreLoop, committer: Committer, driver: LiveDriver, slots: SlotUse) -> Stats:
    """Read the counters. Cost: a few µs."""
    commits = committer.stats
    return Stats(
        turns_live=len(driver.turns),
        turns_running=driver.executor.running,
        slots_busy=slots.busy,
        kv_moves=driver.moves.active,
        sessions=len(driver.tenants),
        journal_backlog=committer.backlog,
        journal_stalled=committer.stalled,
        events=loop.events,
        notes=loop.notes,
        turns_ended=dict(driver.turns_ended),
        out_tokens=driver.out_tokens,
        handle_ns=loop.handle_ns,
        commits=commits.commits,
        commit_records=commits.records,
        commit_append_ns=commits.append_ns,
        commit_failures=commits.failures,
        commit_batch_max=commits.batch_max,
        ttft=driver.ttft,
        queue=driver.queue,
    )

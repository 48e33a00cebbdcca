"""What a demonstration did, measured by its agents and read back from its journal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bedplate.core.prices import Prices
from bedplate.demo.agents import SessionResult
from bedplate.errors import JournalError
from bedplate.journal import Reader
from bedplate.journal import verify as verify_journal
from bedplate.metering.bill import BILL_KINDS, Line, make_bill
from bedplate.metering.check import CHECK_KINDS, reconcile
from bedplate.replay import replay


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """Times of one lane in seconds, as its agents saw them; TTFT ends with the first part."""

    lane: str
    sessions: int
    turns: int
    ttft_median: float
    ttft_worst: float
    session_median: float
    session_worst: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run shows. Token counts are the engines' own, by way of the core.

    `repeated_calls` are those that agents sent again: the service bills them as turns of their own.
    """

    sessions_completed: int
    sessions_failed: int
    turns: int
    repeated_calls: int
    kv_loads: int
    kv_load_verified: int
    moves: int
    prefill_tokens: int
    prefill_tokens_saved: int
    pool_tokens_saved: int
    unexplained_tokens: int
    audit_verified: bool
    audit_records: int
    digest_live: str
    digest_replay: str
    replayed_events: int
    wall_seconds: float
    lanes: tuple[LaneTimes, ...]
    bill: tuple[Line, ...]
    totals: tuple[Line, ...]
    failures: tuple[str, ...]

    @property
    def good(self) -> bool:
        """True when nothing was lost and everything adds up."""
        return (
            self.sessions_failed == 0
            and self.unexplained_tokens == 0
            and self.audit_verified
            and self.digest_live == self.digest_replay
            and self.kv_load_verified == self.kv_loads
        )

    def summary(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        names = (
            "sessions_completed", "sessions_failed", "turns", "repeated_calls", "kv_loads",
            "kv_load_verified", "moves", "prefill_tokens", "prefill_tokens_saved",
            "pool_tokens_saved", "unexplained_tokens", "audit_verified", "audit_records",
            "digest_live", "digest_replay", "replayed_events",
        )  # fmt: skip
        figures: dict[str, object] = {name: getattr(self, name) for name in names}
        figures["wall_seconds"] = round(self.wall_seconds, 1)
        return figures


def read_outcome(
    results: Sequence[SessionResult],
    counters: dict[str, int],
    journal: Path,
    prices: Prices,
    wall_seconds: float,
) -> Outcome:
    """Verify, reconcile and replay the journal of a run that has stopped, and add it all up."""
    audit_records, verified = _verified(journal)
    with Reader(journal) as reader:
        bill = make_bill(reader.read(kinds=BILL_KINDS), by=["tenant"], configured=prices)
        check = reconcile(reader.read(kinds=CHECK_KINDS))
        again = replay(reader)
    done = [result for result in results if not result.error]
    cached = counters.get("cached_tokens", 0)
    return Outcome(
        sessions_completed=len(done),
        sessions_failed=len(results) - len(done),
        turns=sum(len(result.turns) for result in results),
        repeated_calls=sum(turn.attempts - 1 for result in results for turn in result.turns),
        kv_loads=counters.get("loads_used", 0),
        kv_load_verified=counters.get("loads_verified", 0),
        moves=counters.get("moves", 0),
        prefill_tokens=counters.get("prompt_tokens", 0) - cached,
        prefill_tokens_saved=cached,
        pool_tokens_saved=counters.get("pool_saved_tokens", 0),
        unexplained_tokens=check.unexplained_tokens,
        audit_verified=verified,
        audit_records=audit_records,
        digest_live=again.digest_live or "",
        digest_replay=again.digest_replay or "",
        replayed_events=again.events,
        wall_seconds=wall_seconds,
        lanes=tuple(_lane_times(results)),
        bill=bill.lines,
        totals=bill.totals,
        failures=tuple(
            f"{result.tenant}/{result.script}: {result.error}" for result in results if result.error
        ),
    )


def _verified(journal: Path) -> tuple[int, bool]:
    try:
        return verify_journal(journal).size, True
    except JournalError:
        return 0, False


def _lane_times(results: Sequence[SessionResult]) -> Iterable[LaneTimes]:
    for lane in dict.fromkeys(result.lane for result in results):
        mine = [result for result in results if result.lane == lane]
        ttfts = [turn.ttft_s for result in mine for turn in result.turns]
        times = [result.seconds for result in mine if not result.error]
        if ttfts and times:
            yield LaneTimes(
                lane=lane,
                sessions=len(mine),
                turns=len(ttfts),
                ttft_median=statistics.median(ttfts),
                ttft_worst=max(ttfts),
                session_median=statistics.median(times),
                session_worst=max(times),
            )

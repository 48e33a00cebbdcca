"""Replay a whole journal and say whether it explains what was decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bedplate.core.units import SECOND_NS
from bedplate.journal import Journal, Reader
from bedplate.replay.fold import Fold, Halt, skipped_seqs
from bedplate.replay.snapshots import begin
from bedplate.replay.version import core_version

PROGRESS_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        start_seq: First record replayed: 0, or the first after a snapshot.
        records: Records read from there on.
        events: Events handled again.
        digest_live: Digest that the live run noted last, empty if it noted none.
        digest_replay: Digest of the replayed core where that note stands.
        digests: Digests compared.
        first_divergence: Number of the first digest note that differs, None if none does.
        rows: Usage rows compared with those recomputed.
        row_mismatches: Records whose usage row differs or is missing, at most 20.
        halted_at: Record that halts the core, None if none does.
        halt: What it raised, empty if nothing.
        skipped: Records left out because the journal says so.
        core: Version of the core that replayed.
    """

    start_seq: int
    records: int
    events: int
    digest_live: str
    digest_replay: str
    digests: int
    first_divergence: int | None
    rows: int
    row_mismatches: tuple[int, ...]
    halted_at: int | None
    halt: str
    skipped: tuple[int, ...]
    core: str
    wall_seconds: float = field(compare=False)

    @property
    def same(self) -> bool:
        """True when every digest and every usage row came out as the journal has it."""
        return self.first_divergence is None and not self.row_mismatches and self.halted_at is None


def replay(
    journal: Journal | Reader,
    *,
    from_start: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Recompute every decision of a journal and compare.

    Args:
        journal: What to replay; read only.
        from_start: Begin with the first event; False begins at the newest snapshot. Where an older
            core wrote the first part, the replay begins at the snapshot that it handed over.
        progress: Called now and then with the number of records read.

    Raises:
        ReplayDivergence: another core wrote the journal, so this one cannot replay it.

    Cost: some 30 µs an event.
    """
    began_ns = time.monotonic_ns()
    base, start_seq, event_seq = begin(journal, from_start=from_start)
    skipped = skipped_seqs(journal)
    fold = Fold(base, skipped=skipped, event_seq=event_seq)
    records = 0
    halt: Halt | None = None
    for record in journal.read(start_seq):
        records += 1
        try:
            fold.step(record)
        except Halt as found:
            halt = found
            break
        if progress is not None and records % PROGRESS_RECORDS == 0:
            progress(records)
    if halt is None:
        fold.finish()
    return ReplayReport(
        start_seq=start_seq,
        records=records,
        events=fold.events,
        digest_live=fold.digest_live,
        digest_replay=fold.digest_replay,
        digests=fold.digests,
        first_divergence=fold.first_divergence,
        rows=fold.rows,
        row_mismatches=tuple(fold.row_mismatches),
        halted_at=None if halt is None else halt.seq,
        halt="" if halt is None else halt.message,
        skipped=tuple(sorted(skipped)),
        core=core_version(),
        wall_seconds=(time.monotonic_ns() - began_ns) / SECOND_NS,
    )

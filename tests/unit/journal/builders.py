"""Records as the service writes them, made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bedplate.journal import Content, Journal, Record

ORIGIN = "cell-1"
START_NS = 1_700_000_000_000_000_000


def records(count: int, *, start: int = 0, step_ns: int = 1_000_000) -> list[Record]:
    return [
        Record(
            seq,
            START_NS + seq * step_ns,
            "TurnEnded" if seq % 3 else "TokensEmitted",
            "fraud",
            f"s-{seq // 4}",
            {"turn": f"t-{seq}", "attempt": 1, "out_tokens": seq},
        )
        for seq in range(start, start + count)
    ]


def citing(seq: int, content: Content) -> Record:
    """Return the note that cites a content, for its tenant and session."""
    body = {"turn": f"t-{seq}", "hashes": [content.hash]}
    return Record(seq, START_NS + seq * 1_000_000, "content", content.tenant, content.session, body)


def written(folder: Path, batches: Sequence[int], *, step_ns: int = 1_000_000) -> list[Record]:
    """Write batches of these sizes and close the journal; return all records."""
    made: list[Record] = []
    with Journal.open(folder, origin=ORIGIN) as journal:
        for count in batches:
            batch = records(count, start=len(made), step_ns=step_ns)
            journal.append(batch)
            made += batch
    return made

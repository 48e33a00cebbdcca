"""A core driven by the records of a journal, one after the other."""

from __future__ import annotations

from collections import deque

from bedplate.core.actions import Action, Settled
from bedplate.core.base import Base
from bedplate.core.codec import EVENT_TYPES, event_from
from bedplate.errors import ReplayDivergence
from bedplate.journal import Journal, Reader, Record
from bedplate.metering.rows import usage_body

MISMATCHES_MAX = 20
"""Usage rows that differ are named up to this many."""


class Halt(ReplayDivergence):
    """A record halts the core. `seq` names it."""

    code = "replay_halted"

    def __init__(self, seq: int, error: BaseException) -> None:
        super().__init__(
            f"record {seq} halts the core ({type(error).__name__}: {error}); report it as a bug, "
            f"and leave the record out with: bedplate replay --skip {seq}"
        )
        self.seq = seq


class Fold:
    """Feed records in order; compare what the core decides with what the journal says it decided.

    Attributes:
        base: The core after the records so far.
        events: Events handled, skipped ones not counted.
        event_seq: Record number of the last event handled, -1 before the first.
        digest_live: Last digest that the journal noted, a snapshot's included; empty before.
        digest_replay: Digest of the core where that note stands.
        digests: Digest notes compared.
        first_divergence: Number of the first digest note that differs, None if none does.
        rows: Usage rows compared.
        row_mismatches: Numbers of records whose usage row differs, is missing or is too many.
    """

    def __init__(
        self, base: Base, *, skipped: frozenset[int] = frozenset(), event_seq: int = -1
    ) -> None:
        self.base = base
        self.events = 0
        self.event_seq = event_seq
        self.digest_live = self.digest_replay = base.digest.hex() if event_seq >= 0 else ""
        self.digests = 0
        self.first_divergence: int | None = None
        self.rows = 0
        self.row_mismatches: list[int] = []
        self._skipped = skipped
        self._due: deque[tuple[int, Settled]] = deque()

    def step(self, record: Record) -> tuple[Action, ...]:
        """Take one record, event or note, in order; return the actions of an event.

        Raises:
            Halt: the core raised; its state is of no more use.
            ReplayDivergence: the record is no event of this version's form.
        """
        kind = record.kind
        if kind in EVENT_TYPES:
            return () if record.seq in self._skipped else self._handle(record)
        if kind == "digest":
            self._compare_digest(record)
        elif kind == "usage":
            self._compare_row(record)
        return ()

    def finish(self) -> None:
        """Count the usage rows that the journal should hold and does not. Call once, at the end."""
        while self._due:
            self._mismatch(self._due.popleft()[0])

    def _handle(self, record: Record) -> tuple[Action, ...]:
        try:
            event = event_from(record.kind, record.body)
        except ValueError as error:
            raise ReplayDivergence(
                f"record {record.seq} is no {record.kind} of this version: {error}"
            ) from error
        try:
            actions = self.base.handle(record.time_ns, event)
        except Exception as error:  # whatever the core raises is a bug that the record shows
            raise Halt(record.seq, error) from error
        self.events += 1
        self.event_seq = record.seq
        for action in actions:
            if type(action) is Settled:
                self._due.append((record.seq, action))
        return actions

    def _compare_digest(self, record: Record) -> None:
        self.digest_live = record.body["digest"]
        self.digest_replay = self.base.digest.hex()
        self.digests += 1
        same = record.body["event_seq"] == self.event_seq and self.digest_live == self.digest_replay
        if not same and self.first_divergence is None:
            self.first_divergence = record.seq

    def _compare_row(self, record: Record) -> None:
        body = record.body
        self.rows += 1
        event_seq, settled = self._due.popleft() if self._due else (-1, None)
        version = body["price_version"]
        if settled is None or body != usage_body(
            settled, event_seq=event_seq, price_version=version
        ):
            self._mismatch(record.seq)

    def _mismatch(self, seq: int) -> None:
        if len(self.row_mismatches) < MISMATCHES_MAX:
            self.row_mismatches.append(seq)


def skipped_seqs(journal: Journal | Reader) -> frozenset[int]:
    """Return the records that the journal says to leave out."""
    return frozenset(record.body["seq"] for record in journal.read(kinds=("skipped",)))

"""The loop that owns the core: events in, records and actions out.

One step: the event gets its time and its sequence number and is written into the open group; the
core handles it; usage and digest notes of the step join the group; its actions are carried out in
order. An event posted by an action is written at once and handled after it. When nothing is left to
handle, the group is published as a whole, so that no crash can part a usage row from its event.

An exception out of the core, or out of carrying out an action, is a bug: the loop halts. It writes
a `halted` note with the record's number, takes nothing more, and tells its owner, who fails all
turns and exits. The record stays in the journal; `bedplate replay --skip` can quarantine it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import orjson

from bedplate.core.actions import Action, Settled
from bedplate.core.base import Base
from bedplate.core.codec import body_of
from bedplate.core.events import Event, TurnArrived
from bedplate.core.ids import CardId
from bedplate.core.snapshot import snapshot
from bedplate.core.units import SECOND_NS
from bedplate.errors import JournalError
from bedplate.journal import Content, Record, content_hash
from bedplate.metering.rows import usage_body
from bedplate.runtime.clock import Clock
from bedplate.runtime.committer import Committer, Group

_log = logging.getLogger(__name__)

DIGEST_EVENTS = 1000
DIGEST_NS = SECOND_NS
SNAPSHOT_EVENTS = 50_000
"""Events after which a snapshot is wanted, and waits for a moment without turns."""
SNAPSHOT_EVENTS_MAX = 500_000
"""Events after which it waits no longer: recovery would take a minute."""
BACKLOG_RECORDS_MAX = 262_144
"""Records that may wait for a stalled journal; beyond it the loop halts rather than forget."""


class Saved(NamedTuple):
    """A snapshot: number of its note, and hash of its content."""

    seq: int
    content: str


PATIENT_KINDS = frozenset({"TurnStarted", "TokensEmitted"})
"""Progress of a running turn: nothing that leaves the process waits for these records."""
PATIENCE_S = 0.01
"""How long they may wait for a record that somebody waits for, and share its commit."""


class Driver(Protocol):
    """What the loop needs of its owner."""

    def carry(self, action: Action, seq: int) -> None:
        """Start what the action of record `seq` asks for; never waits."""
        ...

    def owner(self, event: Event) -> tuple[str, str]:
        """Return tenant and session of an event, empty where it has none."""
        ...

    def halted(self, error: BaseException, seq: int) -> None:
        """The loop takes nothing more; `error` says why, record `seq` is the note of it."""
        ...


class CoreLoop:
    """The only caller of `Base.handle` in a live service, all in one thread."""

    def __init__(
        self,
        base: Base,
        clock: Clock,
        committer: Committer,
        driver: Driver,
        *,
        price_version: str,
    ) -> None:
        self.base = base
        self.events = 0
        self.notes = 0
        self.handle_ns = 0
        self.halt_error: BaseException | None = None
        self._price_version = price_version
        self._clock = clock
        self._committer = committer
        self._driver = driver
        self._next_seq = committer.published + 1
        self._records: list[Record] = []
        self._contents: list[Content] = []
        self._inbox: deque[tuple[int, int, Event]] = deque()
        self._busy = False
        self._gathering = False
        self._later: asyncio.TimerHandle | None = None
        self._last_event_seq = -1
        self._events_undigested = 0
        self._digest_ns = 0
        self._events_since_snapshot = 0

    def post(self, event: Event, contents: Sequence[Content] = ()) -> int:
        """Write the event, let the core handle it, start its actions; return its record's number.

        `contents` are stored with it, and a `content` note in the same group names them.

        Raises:
            JournalError: the loop has halted.
        """
        self.check_running()
        now_ns = self._clock.now_ns()
        tenant, session = self._driver.owner(event)
        seq = self._append(type(event).__name__, tenant, session, body_of(event), now_ns)
        if contents:
            assert isinstance(event, TurnArrived), "contents belong to a call"
            body = {"turn": event.turn, "hashes": [content.hash for content in contents]}
            self._append("content", tenant, session, body, now_ns)
            self._contents.extend(contents)
        self._inbox.append((seq, now_ns, event))
        if not self._busy:
            self._drain()
        return seq

    def note(
        self,
        kind: str,
        tenant: str,
        session: str,
        body: dict[str, Any],
        contents: Sequence[Content] = (),
    ) -> int:
        """Write a note, which the core never sees; return its record's number.

        The body must not change afterwards: it is encoded later, by the writer.

        Raises:
            JournalError: the loop has halted.
        """
        self.check_running()
        seq = self._append(kind, tenant, session, body, self._clock.now_ns())
        self._contents.extend(contents)
        self.notes += 1
        if not self._busy:
            self._publish()
        return seq

    def note_digest(self) -> None:
        """Write the digest of the core as it is after the last event, unless that is written."""
        if self._events_undigested:
            self._events_undigested = 0
            self._digest_ns = self._clock.now_ns()
            body = {"event_seq": self._last_event_seq, "digest": self.base.digest.hex()}
            self.note("digest", "", "", body)

    def note_snapshot(self, core: str) -> Saved:
        """Write the core's whole state, from which recovery goes on. Cost: linear in sessions."""
        self.note_digest()
        data = orjson.dumps(snapshot(self.base))
        digest = content_hash(data)
        body = {
            "event_seq": self._last_event_seq,
            "digest": self.base.digest.hex(),
            "core": core,
            "content": digest,
        }
        self._events_since_snapshot = 0
        self._contents.append(Content(digest, "", "", data))
        return Saved(self.note("snapshot", "", "", body), digest)

    def snapshot_due(self, *, idle: bool) -> bool:
        """Tell whether so much happened since the last snapshot that recovery would take long.

        A snapshot holds everything up (some 65 µs a session), so it is taken while nothing runs
        (`idle`) if that comes in time.
        """
        since = self._events_since_snapshot
        return since >= SNAPSHOT_EVENTS_MAX or (idle and since >= SNAPSHOT_EVENTS)

    def resume_after(self, last_event_seq: int) -> None:
        """Begin with a base that has handled the journal's events up to `last_event_seq`."""
        assert self.events == 0, "only before the first event"
        self._last_event_seq = last_event_seq

    def halt(self, error: BaseException, *, seq: int = -1) -> None:
        """Take nothing more. `seq` is the record that caused it, -1 if none did."""
        if self.halt_error is not None:
            return
        self.halt_error = error
        _log.critical("the core halts at record %d: %r", seq, error, exc_info=error)
        body = {"event_seq": seq, "error": type(error).__name__, "message": str(error)[:500]}
        seq = self._append("halted", "", "", body, self._clock.now_ns())
        self._driver.halted(error, seq)
        if not self._busy:
            self._publish()

    def check_running(self) -> None:
        """Raise JournalError when the loop has halted, or must for want of a journal."""
        if self.halt_error is not None:
            raise JournalError(f"the core has halted: {self.halt_error!r}")
        if self._committer.backlog > BACKLOG_RECORDS_MAX:
            error = JournalError(f"{self._committer.backlog} records wait for the journal")
            self.halt(error)
            raise error

    def check_writable(self) -> None:
        """Raise JournalError while the journal is stalled, or when the loop has halted."""
        if self._committer.stalled:
            raise JournalError(
                "the journal cannot be written now, so no call is taken; is its disk full?",
                retry_after_s=2.0,
            )
        self.check_running()

    def _append(
        self, kind: str, tenant: str, session: str, body: dict[str, Any], now_ns: int
    ) -> int:
        seq = self._next_seq
        self._next_seq = seq + 1
        self._records.append(Record(seq, now_ns, kind, tenant, session, body))
        return seq

    def _append_usage(self, settled: Settled, event_seq: int, now_ns: int) -> int:
        body = usage_body(settled, event_seq=event_seq, price_version=self._price_version)
        return self._append("usage", settled.tenant, settled.session, body, now_ns)

    def _drain(self) -> None:
        self._busy = True
        inbox = self._inbox
        seq, now_ns = -1, 0
        try:
            while inbox and self.halt_error is None:
                seq, now_ns, event = inbox.popleft()
                self._step(seq, now_ns, event)
            due = now_ns - self._digest_ns >= DIGEST_NS
            if self._events_undigested and (due or self._events_undigested >= DIGEST_EVENTS):
                self.note_digest()
        except Exception as error:  # noqa: BLE001 (a bug in the core: halt with its record)
            self.halt(error, seq=seq)
        finally:
            self._busy = False
            self._publish()

    def is_out(self, card: CardId) -> bool:
        """Tell whether an operator takes the card out."""
        found = self.base.state.cards.get(card)
        return found is not None and found.draining

    def _step(self, seq: int, now_ns: int, event: Event) -> None:
        actions = self.base.handle(now_ns, event)
        self.handle_ns += self._clock.now_ns() - now_ns
        self.events += 1
        self._events_since_snapshot += 1
        self._last_event_seq = seq
        for action in actions:
            if type(action) is Settled:
                self._append_usage(action, seq, now_ns)
        self._events_undigested += 1
        carry = self._driver.carry
        for action in actions:
            carry(action, seq)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what the body writes as one group, durable together or not at all."""
        assert not self._gathering
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            if not self._busy:
                self._publish()

    def _publish(self) -> None:
        """Hand what was written to the committer; what nobody waits for may gather a little."""
        records = self._records
        if not records or self._gathering:
            return
        if all(record.kind in PATIENT_KINDS for record in records):
            if self._later is None:
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(PATIENCE_S, self._hand_over)
            return
        self._hand_over()

    def _hand_over(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._records:
            group = Group(self._records, self._contents)
            self._records = []
            self._contents = []
            self._committer.publish(group)

"""From a journal back to a running core.

The core is restored from the newest snapshot and given every event after it; what it decided then
was carried out then, so its actions are dropped, and the digests that the journal noted must come
out again. What the crash interrupted is then told to it as new events, by `reconcile`: turns that
ran end as lost, waiting ones are cancelled (their clients are gone), every card is down until its
engine says otherwise, and pool copies that are not there are dropped from its books. Sessions live
on with the pool copies that are.

Only the version of the core that wrote the journal can do this. Another one may take over from the
snapshot that a clean shutdown left; where it cannot read it, it begins without sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from bedplate.core.base import Base
from bedplate.core.codec import EVENT_TYPES
from bedplate.core.events import (
    CallEnded,
    CardDown,
    EntryDropped,
    Event,
    JournalStalled,
    TimerFired,
    TurnCancelled,
    TurnEnded,
)
from bedplate.core.states import RUNNING, STORED, Turn
from bedplate.errors import ReplayDivergence
from bedplate.journal import Journal, Record
from bedplate.pool import KvPool
from bedplate.replay.fold import Fold, skipped_seqs
from bedplate.replay.snapshots import begin, resume
from bedplate.replay.version import core_version
from bedplate.runtime.driver import LiveDriver

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A core as the journal left it.

    `last_ns`: time of the newest record. `event_seq`: number of the last event handled, -1 if none.
    `events`: how many were handled again. `changed_from`: version of the core before, if another;
    `snapshot_seq` is then the snapshot that it handed over, -1 if none could be read. `clean`: the
    former process stopped in order, its cards with it.
    """

    base: Base
    last_ns: int
    event_seq: int
    events: int
    changed_from: str
    snapshot_seq: int
    clean: bool = True


def recover(journal: Journal, *, progress: Callable[[int], None] | None = None) -> Recovered:
    """Rebuild the core from a journal, which may be empty.

    Raises:
        ReplayDivergence: a record halts the core, a digest differs, or another version wrote what
            is not covered by a clean shutdown. The message says what to do.

    Cost: reads the events since the newest snapshot, some 30 µs each.
    """
    started = journal.last("core_started")
    if started is None:
        return Recovered(Base(), journal.last_time_ns, -1, 0, "", -1)
    snapshot_seq = -1
    changed_from = ""
    if started.body["core"] == core_version():
        start = begin(journal, from_start=False)
    else:
        changed_from = started.body["core"]
        note = _handover(journal, changed_from, started.body["bedplate"])
        try:
            start = resume(journal, note)
        except ValueError as error:
            _log.warning("sessions begin anew: %s", error)
            return Recovered(Base(), journal.last_time_ns, -1, 0, changed_from, -1)
        snapshot_seq = note.seq
    fold = Fold(start.base, skipped=skipped_seqs(journal), event_seq=start.event_seq)
    for count, record in enumerate(journal.read(start.seq)):
        fold.step(record)
        if progress is not None and count % 1000 == 0:
            progress(count)
    if fold.first_divergence is not None:
        raise ReplayDivergence(
            f"the core comes to another digest than record {fold.first_divergence} names; the "
            "journal was written by other code, or was changed: run `bedplate audit verify`"
        )
    return Recovered(
        base=fold.base,
        last_ns=journal.last_time_ns,
        event_seq=fold.event_seq,
        events=fold.events,
        changed_from=changed_from,
        snapshot_seq=snapshot_seq,
        clean=_stopped_since(journal, started.seq),
    )


def _stopped_since(journal: Journal, seq: int) -> bool:
    shutdown = journal.last("shutdown")
    return shutdown is not None and shutdown.seq > seq


def _handover(journal: Journal, core: str, bedplate: str) -> Record:
    """Return the snapshot that another core left at a clean shutdown.

    Raises:
        ReplayDivergence: it did not shut down cleanly, or something came after.
    """
    shutdown = journal.last("shutdown")
    note = journal.last("snapshot")
    if shutdown is not None and note is not None and shutdown.seq > note.seq:
        later = next(journal.read(note.seq + 1, kinds=EVENT_TYPES), None)
        if later is None:
            return note
    raise ReplayDivergence(
        f"core {core} (Bedplate {bedplate}) wrote this journal and was not shut down cleanly; this "
        f"is core {core_version()}, which may decide otherwise. Start the former version once and "
        "stop it with SIGTERM, or use a new data folder"
    )


def reconcile(
    base: Base,
    driver: LiveDriver,
    post: Callable[[Event], int],
    pool: KvPool | None,
    *,
    clean: bool,
) -> None:
    """Tell a recovered core what the end of its former process meant, as events.

    Cards that went with a `clean` stop are no loss, and raise no alarm.
    Afterwards it has no turn and no card; its sessions and the pool copies that are really there
    remain. The pool loses what no session owns.
    """
    state = base.state
    driver.tenants.update((session.id, session.tenant.id) for session in state.sessions.values())
    turns = list(state.turns.values())
    for turn in turns:
        session = turn.branch.session
        driver.owners[turn.id] = (session.tenant.id, session.id)
    driver.muted = True
    post(JournalStalled(False))
    post(TimerFired())
    for turn in turns:
        if turn.state != RUNNING:
            post(TurnCancelled(turn.id, "shutdown"))
    for turn in turns:
        if turn.state == RUNNING and turn.id in state.turns:
            post(_lost(turn))
    for call in list(state.calls):
        post(CallEnded(call, "lost", 0, 0))
    for card in list(state.cards.values()):
        if card.up:
            post(CardDown(card.id, "restart" if clean else "the service was lost"))
    assert not state.turns, "every turn of the former process has ended"
    owned = [entry.id for entry in state.entries.values() if entry.state == STORED]
    if pool is not None:
        pool.collect(owned)
    present = frozenset(info.entry for info in pool.entries()) if pool is not None else frozenset()
    for entry in list(state.entries):
        if entry not in present:
            post(EntryDropped(entry))
    driver.muted = False


def _lost(turn: Turn) -> TurnEnded:
    """What a lost turn used, as far as its last word told: an estimate, nothing before Started."""
    prompt_tokens, cached_tokens = turn.told or (0, 0)
    if prompt_tokens == 0 and turn.why == "decoding":
        prompt_tokens = turn.prompt_tokens
    return TurnEnded(
        turn=turn.id,
        attempt=turn.attempt,
        status="lost",
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        out_tokens=turn.out_tokens,
        kv_tokens=0,
        tool="",
        exact=False,
    )

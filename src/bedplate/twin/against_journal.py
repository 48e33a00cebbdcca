"""What a recorded journal says of a run: its cards, policy and faults, and how its turns went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bedplate.config.fields import SLOTS_MAX
from bedplate.core import events as ev
from bedplate.core.codec import EVENT_TYPES, event_from
from bedplate.core.events import Event
from bedplate.core.limits import Policy
from bedplate.errors import InvalidRequest, JournalError
from bedplate.journal import Reader, Record
from bedplate.journal.storage import DATABASE_FILE
from bedplate.metering.rows import USAGE, row_of
from bedplate.twin.faults import NEVER, CardLost, Fault
from bedplate.twin.outcome import Outcome, SessionRow, TurnRow
from bedplate.twin.workload.form import Workload

STARTED = "core_started"
_TOKENS_MAX = 1 << 40
"""Of a card, and bytes of a token: as card profiles have them."""
_KINDS = (
    "PolicyChanged",
    "CardUp",
    "CardDown",
    "CardDraining",
    "TurnArrived",
    "TurnStarted",
    "TurnEnded",
    "SessionClosed",
    USAGE,
    STARTED,
)


@dataclass(slots=True)
class LiveTurn:
    """One turn as the journal tells it; times on the journal's clock, −1 before their moment."""

    arrived: ev.TurnArrived
    arrival_ns: int
    first_ns: int = -1
    end_ns: int = -1
    queue_ns: int = 0
    card: str = ""
    ended: ev.TurnEnded | None = None

    @property
    def line(self) -> str:
        """Key of its session in the workload: a session's first branch has its name."""
        branch = self.arrived.branch
        return f"{self.arrived.session}/{branch}" if branch else str(self.arrived.session)

    @property
    def ran(self) -> bool:
        """Whether it gave an answer; the workload leaves the others out."""
        return self.ended is not None and bool(self.ended.out_tokens and self.ended.prompt_tokens)


@dataclass(slots=True)
class Recording:
    """What was read. `cards` are as they came up first; `states` when each came up and went down.

    `policy` is the one in force when the first turn arrived.
    """

    policy: Policy | None = None
    cards: dict[str, ev.CardUp] = field(default_factory=dict)
    states: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    turns: dict[str, LiveTurn] = field(default_factory=dict)
    drained: list[str] = field(default_factory=list)
    restarts: int = 0
    closes: bool = False

    @property
    def begin_ns(self) -> int:
        """When the first turn that gave an answer arrived: the workload's beginning."""
        return min(turn.arrival_ns for turn in self.turns.values() if turn.ran)

    @property
    def end_ns(self) -> int:
        """When the last of these ended."""
        return max(turn.end_ns for turn in self.turns.values() if turn.ran)

    def faults(self) -> Iterator[Fault]:
        """Yield what happened to cards between the first arrival and the last end.

        A card that came up later than the first turn is one that is lost until then.
        """
        begin_ns, end_ns = self.begin_ns, self.end_ns
        for card, states in self.states.items():
            down_ns = NEVER if states[0][0] <= begin_ns else 0
            for at_ns, up in states:
                at_ns = max(0, at_ns - begin_ns)
                if up and down_ns != NEVER:
                    if at_ns > down_ns:
                        yield CardLost(at_ns=down_ns, card=card, back_ns=at_ns)
                    down_ns = NEVER
                elif not up and down_ns == NEVER and at_ns <= end_ns - begin_ns:
                    down_ns = at_ns
            if down_ns != NEVER:
                yield CardLost(at_ns=down_ns, card=card)


def journal_folder(path: Path) -> Path:
    """Return the folder of the journal that a path means: its own, or the data folder above it.

    Raises:
        InvalidRequest: there is no journal.
    """
    for folder in (path, path / "journal"):
        if (folder / DATABASE_FILE).is_file():
            return folder
    raise InvalidRequest(f"{path} has no journal; name a journal's folder, or a data folder")


def read_recording(folder: Path) -> Recording:
    """Read a journal up to its newest record; a service may be writing it.

    Raises:
        JournalError: there is none, or a record cannot be read.
        InvalidRequest: no turn in it gave an answer, or no card came up.
    """
    found = Recording()
    with Reader(folder) as reader:
        for record in reader.read(kinds=_KINDS):
            if record.kind == STARTED:
                found.restarts += bool(found.turns)
            elif record.kind == USAGE:
                _take_row(found, record)
            else:
                event = _event(record)
                if isinstance(event, ev.CardUp):
                    _check_card(record.seq, event)
                _take(found, record.time_ns, event)
    if not any(turn.ran for turn in found.turns.values()):
        raise InvalidRequest(f"no turn in the journal of {folder} gave an answer")
    if not found.cards or found.policy is None:
        raise InvalidRequest(f"the journal of {folder} does not say which cards there were")
    return found


def live_outcome(found: Recording, workload: Workload, name: str) -> Outcome:
    """Return what really happened as an outcome of the workload that was read from it.

    Raises:
        JournalError: workload and journal do not have the same turns.
    """
    begin_ns = found.begin_ns
    lines: dict[str, list[LiveTurn]] = {}
    for turn in found.turns.values():
        if turn.ran:
            lines.setdefault(turn.line, []).append(turn)
    outcome = Outcome(name=name, seed=0, duration_ns=found.end_ns - begin_ns)
    for index, session in enumerate(workload.sessions):
        turns = lines.get(session.key, [])
        if len(turns) != len(session.turns):
            raise JournalError(
                f"session {session.key} has {len(turns)} turns in the journal and "
                f"{len(session.turns)} in the workload made from it; report it as a bug"
            )
        turns.sort(key=lambda turn: turn.arrival_ns)
        rows = [_row(index, number, turn, begin_ns) for number, turn in enumerate(turns)]
        outcome.turns += rows
        outcome.sessions.append(
            SessionRow(index, rows[0].arrival_ns, rows[-1].end_ns, len(rows), failed=False)
        )
    return outcome


def _row(session: int, number: int, turn: LiveTurn, begin_ns: int) -> TurnRow:
    ended = turn.ended
    assert ended is not None
    return TurnRow(
        session=session,
        turn=number,
        card=turn.card,
        arrival_ns=turn.arrival_ns - begin_ns,
        first_ns=turn.first_ns - begin_ns if turn.first_ns >= 0 else -1,
        end_ns=turn.end_ns - begin_ns,
        queue_ns=turn.queue_ns,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        out_tokens=ended.out_tokens,
        status=ended.status,
    )


def _event(record: Record) -> Event:
    assert record.kind in EVENT_TYPES
    try:
        return event_from(record.kind, record.body)
    except ValueError as error:
        raise JournalError(f"record {record.seq} cannot be read: {error}") from error


def _check_card(seq: int, up: ev.CardUp) -> None:
    """Refuse a card that no service could have had; the journal is read without being verified."""
    slots_fit = 1 <= up.slots <= SLOTS_MAX and up.running_max >= 1
    kv_fits = all(1 <= tokens <= _TOKENS_MAX for tokens in (up.kv_tokens, up.context_tokens))
    if not slots_fit or not kv_fits or not 0 <= up.kv_bytes_per_token <= _TOKENS_MAX:
        raise JournalError(
            f"record {seq} cannot be: card {up.card} has {up.slots} slots, runs {up.running_max} "
            f"turns, holds {up.kv_tokens} tokens of {up.kv_bytes_per_token} bytes and contexts of "
            f"{up.context_tokens}; run `bedplate audit verify`"
        )


def _take_row(found: Recording, record: Record) -> None:
    row = row_of(record)
    turn = found.turns.get(row.turn)
    if turn is not None:
        turn.queue_ns, turn.card = row.queue_ns, row.card


def _take(found: Recording, time_ns: int, event: Event) -> None:
    match event:
        case ev.PolicyChanged():
            if not found.turns:
                found.policy = event.policy
        case ev.CardUp():
            found.cards.setdefault(event.card, event)
            found.states.setdefault(event.card, []).append((time_ns, True))
        case ev.CardDown():
            if event.card in found.states:
                found.states[event.card].append((time_ns, False))
        case ev.CardDraining():
            if event.on and found.turns:
                found.drained.append(event.card)
        case ev.TurnArrived():
            found.turns[event.turn] = LiveTurn(event, time_ns)
        case ev.TurnStarted():
            turn = found.turns.get(event.turn)
            if turn is not None and turn.first_ns < 0:
                turn.first_ns = time_ns
        case ev.TurnEnded():
            turn = found.turns.get(event.turn)
            if turn is not None:
                turn.end_ns, turn.ended = time_ns, event
        case ev.SessionClosed():
            found.closes = True

"""Reconcile usage rows with what the journal says happened, and with the engines' own counters.

Nothing here is taken from the writer of the rows: tokens come from the events.

*Turns.* A turn that ended at its engine must have one row, with the tokens of its last attempt's
`TurnEnded`. One that was lost instead has what was known then: its prompt, nothing cached, and what
was delivered; if it had yielded, its prompt is counted as it was then. One that never ran has none.

*Cards.* A card counts what it computed since it came up (`CardReport`). At its newest report the
count must equal the sum of the turns that ended on it. Three things leave room, each no wider than
what the turns concerned can have used, and each names its turns:

- inexact: a cancelled turn is an estimate, a failed attempt computed something and has no row;
- in flight: turns that were open at the report, or ended since the report before it;
- a card that died after work that it never reported: its difference is told, and not judged.

What is outside the room is unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bedplate.journal import Record
from bedplate.metering.balance import ZERO, CardBalance, CardBook, Tokens
from bedplate.metering.rows import USAGE, UsageRow, row_of

CHECK_KINDS = (
    "TurnArrived",
    "TurnStarted",
    "TokensEmitted",
    "TurnEnded",
    "DispatchFailed",
    "CardUp",
    "CardDown",
    "CardReport",
    USAGE,
)
"""Kinds of records that a reconciliation reads."""


class Issue(NamedTuple):
    """A row that is not as the events say. `kind`: missing | double | different | unknown.

    `tokens` is by how many tokens the rows are wrong.
    """

    kind: str
    turn: str
    tokens: int
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a reconciliation.

    `metered_tokens` sums all rows. `in_flight` are turns that were open at the end of the journal.
    """

    rows: int
    turns: int
    metered_tokens: int
    in_flight: frozenset[str]
    issues: tuple[Issue, ...]
    cards: tuple[CardBalance, ...]

    @property
    def in_flight_turns(self) -> int:
        """How many turns were open at the end of the journal."""
        return len(self.in_flight)

    @property
    def unexplained_tokens(self) -> int:
        """Tokens that rows, events and counters do not agree on, and nothing accounts for."""
        return sum(issue.tokens for issue in self.issues) + sum(
            card.unexplained_tokens for card in self.cards
        )


@dataclass(slots=True)
class _Turn:
    """What the events say about a turn that has no row yet.

    `delivered_tokens` is the part of `out_tokens` that attempts before the present one gave;
    `yielded` is what the latest of those that yielded said.
    """

    arrived_seq: int
    tenant: str
    session: str
    lane: int
    model: str
    prompt_tokens: int
    limit_tokens: int
    exact: bool
    attempt: int = 0
    out_tokens: int = 0
    delivered_tokens: int = 0
    ended: dict[int, tuple[Tokens, bool]] = field(default_factory=dict)
    yielded: Tokens | None = None
    final: bool = False


def reconcile(records: Iterable[Record]) -> Report:
    """Compare rows, events and counters.

    Args:
        records: The journal from its beginning, at least of `CHECK_KINDS`.

    Raises:
        JournalError: a usage record cannot be read.

    Cost: a few µs a record. Memory: the open turns, one id for each ended turn, the cards.
    """
    walk = _Walk()
    for record in records:
        walk.see(record)
    return walk.report()


class _Walk:
    def __init__(self) -> None:
        self.rows = 0
        self.metered_tokens = 0
        self.issues: list[Issue] = []
        self.cards = CardBook()
        self._open: dict[str, _Turn] = {}
        self._done: set[str] = set()

    def see(self, record: Record) -> None:
        body = record.body
        match record.kind:
            case "TurnArrived":
                self._open[body["turn"]] = _Turn(
                    record.seq,
                    body["tenant"],
                    body["session"],
                    body["lane"],
                    body["model"],
                    body["prompt_tokens"],
                    body["limit_tokens"],
                    bool(body["exact"]),
                )
            case "TurnStarted" | "TokensEmitted" | "TurnEnded" | "DispatchFailed":
                turn = self._open.get(body["turn"])
                if turn is not None and body["attempt"] >= turn.attempt:
                    _progress(turn, record.kind, body)
            case "CardUp":
                self.cards.up(body["card"], body["model"], body["context_tokens"])
            case "CardDown":
                self.cards.down(body["card"])
            case "CardReport":
                counted = Tokens(
                    body["prompt_tokens_total"],
                    body["cached_tokens_total"],
                    body["out_tokens_total"],
                )
                self.cards.report(body["card"], counted, record.seq)
            case "usage":
                self._row(row_of(record))
            case _:
                pass

    def report(self) -> Report:
        in_flight: set[str] = set()
        for turn_id, turn in self._open.items():
            if turn.final:
                tokens = _expected(turn, max(turn.ended, default=turn.attempt))
                self._issue("missing", turn_id, tokens.used, "the turn ended and has no row")
            elif turn.attempt:
                in_flight.add(turn_id)
                most = _most(turn, self.cards, "").times(turn.attempt)
                self.cards.elsewhere(turn_id, turn.model, turn.arrived_seq, most)
        return Report(
            rows=self.rows,
            turns=len(self._done),
            metered_tokens=self.metered_tokens,
            in_flight=frozenset(in_flight),
            issues=tuple(self.issues),
            cards=self.cards.balances(),
        )

    def _issue(self, kind: str, turn: str, tokens: int, detail: str) -> None:
        self.issues.append(Issue(kind, turn, tokens, detail))

    def _row(self, row: UsageRow) -> None:
        self.rows += 1
        self.metered_tokens += row.tokens
        tokens = Tokens(row.prompt_tokens, row.cached_tokens, row.out_tokens)
        if not row.turn:
            if row.is_call:
                self.cards.call(row.card, row.model, tokens, row.seq)
            elif row.tokens:
                self._issue("different", "", row.tokens, f"the gap row {row.seq} has tokens")
            return
        turn = self._open.pop(row.turn, None)
        if turn is None:
            known = row.turn in self._done
            kind, detail = ("double", "a second row") if known else ("unknown", "no such turn")
            self._issue(kind, row.turn, row.tokens, f"{detail}, record {row.seq}")
            return
        self._done.add(row.turn)
        expected = _expected(turn, row.attempts)
        wrong = expected.distance(tokens)
        names = (row.tenant, row.session, row.lane, row.model)
        if wrong or row.attempts < turn.attempt:
            self._issue(
                "different",
                row.turn,
                wrong or row.tokens,
                f"record {row.seq} says {tokens} in attempt {row.attempts}; the events say "
                f"{expected} in attempt {turn.attempt}",
            )
        elif names != (turn.tenant, turn.session, turn.lane, turn.model):
            self._issue("different", row.turn, row.tokens, f"record {row.seq} names another owner")
        self._balance(row, turn)

    def _balance(self, row: UsageRow, turn: _Turn) -> None:
        """Book the last attempt on its card, and let the attempts before account for the rest."""
        if row.attempts == 0:
            return
        most = _most(turn, self.cards, row.card)
        tokens, exact = turn.ended.get(row.attempts, (ZERO, False))
        self.cards.ended(row.turn, row.card, turn.arrived_seq, tokens, most)
        if not exact:
            self.cards.doubt(row.turn, row.card, booked=tokens, most=most)
        if row.attempts > 1:
            before = most.times(row.attempts - 1)
            self.cards.elsewhere(row.turn, turn.model, turn.arrived_seq, before)
            # A resumed turn counts what attempts before delivered, and for one that yielded the
            # prompt of its first: on this card or on another.
            delivered = (turn.yielded or ZERO)._replace(out=turn.delivered_tokens)
            self.cards.doubt(row.turn, row.card, booked=delivered, most=ZERO)


def _progress(turn: _Turn, kind: str, body: dict[str, Any]) -> None:
    if body["attempt"] > turn.attempt:
        turn.attempt, turn.final = body["attempt"], False
        turn.delivered_tokens = turn.out_tokens
    if kind == "TurnStarted":
        return
    turn.out_tokens = max(turn.out_tokens, body["out_tokens"])
    if kind == "TurnEnded":
        tokens = Tokens(body["prompt_tokens"], body["cached_tokens"], body["out_tokens"])
        if body["status"] == "yielded":
            turn.yielded = tokens
        else:
            turn.ended[turn.attempt] = (tokens, bool(body["exact"]))
            turn.final = True
    elif kind == "DispatchFailed":
        turn.final = not body["retryable"]


def _expected(turn: _Turn, attempts: int) -> Tokens:
    """Return what the row of a turn with so many attempts must say."""
    if attempts in turn.ended:
        return turn.ended[attempts][0]
    if turn.yielded is not None:
        return turn.yielded._replace(out=turn.out_tokens)
    return Tokens(turn.prompt_tokens if attempts else 0, 0, turn.out_tokens)


def _most(turn: _Turn, cards: CardBook, card: str) -> Tokens:
    """Return the most that one attempt of the turn can have used on its card."""
    context = cards.context_tokens(card, turn.model)
    prompt = turn.prompt_tokens + turn.out_tokens if turn.exact else context
    return Tokens(prompt, prompt, turn.limit_tokens or context)

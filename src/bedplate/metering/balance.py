"""What each card counted against what was metered on it; see `check` for the rules.

A card's *life* runs from its `CardUp` to its `CardDown` or to the end of the journal. Its account
at a report is

    lowest ≤ counted − metered ≤ highest

where `metered` sums the turns that ended on the card before the report, and the bounds, 0 where all
is exact, grow by what inexact turns and turns in flight can have used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NAMES_MAX = 100
"""Turns named for one card."""


class Tokens(NamedTuple):
    """Counts of one kind of source. `cached` are among `prompt`."""

    prompt: int
    cached: int
    out: int

    def __str__(self) -> str:
        return f"{self.prompt} prompt ({self.cached} cached) and {self.out} output tokens"

    @property
    def used(self) -> int:
        """Prompt and output together."""
        return self.prompt + self.out

    def plus(self, other: Tokens) -> Tokens:
        """Return the sum."""
        return Tokens(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Tokens) -> Tokens:
        """Return the difference."""
        return Tokens(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> Tokens:
        """Return a multiple."""
        return Tokens(*(count * part for part in self))

    def distance(self, other: Tokens) -> int:
        """Return by how many tokens two counts differ; one filed as cached counts once."""
        return sum(abs(part) for part in self.minus(other))


ZERO = Tokens(0, 0, 0)


class Room(NamedTuple):
    """By how much a count may pass (`highest`) or miss (`lowest`) what was metered, and why.

    `turns` names the first `NAMES_MAX` of the `size` turns concerned.
    """

    lowest: Tokens = ZERO
    highest: Tokens = ZERO
    size: int = 0
    turns: tuple[str, ...] = ()

    def widened(self, turn: str, *, lowest: Tokens = ZERO, highest: Tokens = ZERO) -> Room:
        """Return this room with one more turn that accounts for a difference."""
        return self.with_room(Room(lowest, highest, 1, (turn,)))

    def with_room(self, other: Room) -> Room:
        """Return both rooms together."""
        return Room(
            self.lowest.plus(other.lowest),
            self.highest.plus(other.highest),
            self.size + other.size,
            (self.turns + other.turns)[:NAMES_MAX],
        )

    def outside(self, difference: Tokens) -> int:
        """Return how many tokens of a difference are beyond the room."""
        return sum(
            max(low - part, part - high, 0)
            for part, low, high in zip(difference, self.lowest, self.highest, strict=True)
        )


NO_ROOM = Room()


class CardBalance(NamedTuple):
    """One life of one card.

    `state`: up | down | died (down with work that it had not reported) | silent (never reported).
    `difference` is counted − metered at the newest report (for a card that died: metered to its
    end). `explained_by` names the turns that account for a difference, `unexplained_tokens` what
    they cannot account for; 0 for cards that died or are silent, whose difference is only told.
    """

    card: str
    model: str
    life: int
    state: str
    counted: Tokens
    metered: Tokens
    difference: Tokens
    unexplained_tokens: int
    explained_by: tuple[str, ...]


@dataclass(slots=True)
class _Reported:
    """The newest report, and the account as it stood then; `late` grows afterwards."""

    seq: int
    counted: Tokens
    metered: Tokens
    inexact: Room
    late: Room


@dataclass(slots=True)
class _Life:
    card: str
    model: str
    number: int
    context_tokens: int
    down: bool = False
    metered: Tokens = ZERO
    inexact: Room = NO_ROOM
    unreported: Room = NO_ROOM
    reported: _Reported | None = None

    def book(self, turn: str, tokens: Tokens) -> None:
        self.metered = self.metered.plus(tokens)
        self.unreported = self.unreported.widened(turn, lowest=ZERO.minus(tokens))

    def in_flight(self, turn: str, arrived_seq: int, most: Tokens) -> None:
        """Let a turn account for work before the newest report, if it had arrived by then."""
        if self.reported is not None and arrived_seq < self.reported.seq:
            self.reported.late = self.reported.late.widened(turn, highest=most)

    def balance(self) -> CardBalance:
        reported = self.reported
        died = self.down and self.unreported.size > 0
        counted, metered, room = ZERO, self.metered, self.inexact.with_room(self.unreported)
        if reported is not None:
            counted = reported.counted
            if not died:
                metered, room = reported.metered, reported.inexact.with_room(reported.late)
        if died:
            state = "died"
        elif reported is None and self.metered != ZERO:
            state = "silent"
        else:
            state = "down" if self.down else "up"
        difference = counted.minus(metered)
        judged = state in ("up", "down")
        return CardBalance(
            self.card,
            self.model,
            self.number,
            state,
            counted,
            metered,
            difference,
            room.outside(difference) if judged else 0,
            tuple(dict.fromkeys(room.turns)) if difference != ZERO else (),
        )


class CardBook:
    """The accounts of all cards, as records come in order."""

    def __init__(self) -> None:
        self._lives: list[_Life] = []
        self._current: dict[str, _Life] = {}
        self._numbers: dict[str, int] = {}

    def context_tokens(self, card: str, model: str) -> int:
        """Return the longest context of a card, or of any card of the model if it is not known."""
        life = self._current.get(card)
        if life is not None:
            return life.context_tokens
        return max(
            (x.context_tokens for x in self._current.values() if x.model == model), default=0
        )

    def up(self, card: str, model: str, context_tokens: int) -> None:
        """Begin a life; one that was not ended ends."""
        self.down(card)
        number = self._numbers[card] = self._numbers.get(card, 0) + 1
        life = _Life(card, model, number, context_tokens)
        self._lives.append(life)
        self._current[card] = life

    def down(self, card: str) -> None:
        """End a life. What its turns still say is booked on it until the next one begins."""
        life = self._current.get(card)
        if life is not None:
            life.down = True

    def report(self, card: str, counted: Tokens, seq: int) -> None:
        """Take the card's own count, measured some time after its report before."""
        life = self._current.get(card)
        if life is None or life.down:
            return
        life.reported = _Reported(seq, counted, life.metered, life.inexact, life.unreported)
        life.unreported = NO_ROOM

    def ended(self, turn: str, card: str, arrived_seq: int, tokens: Tokens, most: Tokens) -> None:
        """Book a turn that ended on a card; in flight before, it may have used `most`."""
        life = self._current.get(card)
        if life is not None:
            life.in_flight(turn, arrived_seq, most)
            life.book(turn, tokens)

    def doubt(self, turn: str, card: str, *, booked: Tokens, most: Tokens) -> None:
        """Say that the turn just booked on a card may have used anything up to `most`."""
        life = self._current.get(card)
        if life is not None:
            more = Tokens(*(max(0, part) for part in most.minus(booked)))
            life.inexact = life.inexact.widened(turn, lowest=ZERO.minus(booked), highest=more)

    def call(self, card: str, model: str, tokens: Tokens, seq: int) -> None:
        """Book a call that is no turn: on its card, or as a doubt on every card of its model."""
        life = self._current.get(card)
        if life is not None:
            life.book(f"record {seq}", tokens)
        else:
            self.elsewhere(f"record {seq}", model, seq, tokens)

    def elsewhere(self, turn: str, model: str, arrived_seq: int, most: Tokens) -> None:
        """Let a turn account for work on any card of its model: the journal does not say which."""
        for life in self._lives:
            if life.model == model:
                life.inexact = life.inexact.widened(turn, highest=most)
                life.in_flight(turn, arrived_seq, most)

    def balances(self) -> tuple[CardBalance, ...]:
        """Return every life's account, in order of their beginning."""
        return tuple(life.balance() for life in self._lives)

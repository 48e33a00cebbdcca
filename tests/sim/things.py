"""Cards and their slots as an observer knows them; `book` keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bedplate.core import events as ev
from bedplate.core.units import SECOND_NS
from tests.sim.sequence import Sequence

DROPS_FAILED_MAX = 3
"""After so many failed drops in a row a slot may be given up until its card restarts."""


@dataclass(slots=True)
class Slot:
    """One slot of one card. `op` is the KV move under way: load | store | drop | "" for none."""

    tokens: Sequence = ()
    known: bool = True
    """False: something is in it that nobody can use (a failed or cancelled turn's remains)."""
    session: str = ""
    branch: int = -1
    tenant: str = ""
    turn: str = ""
    op: str = ""
    entry: int = -1
    loaded: bool = False
    """Filled from the pool and not used by a turn since."""
    remains_tokens: int = 0
    idle_since_ns: int = 0
    before_tokens: int = 0
    """What its branch may have had in it when the turn that runs was dispatched."""
    clean: bool = False
    """The pool has the same."""
    copy: int = -1
    """The entry that has it."""
    kept: bool = False
    """What is in it was left by a good turn or came from the pool."""
    drops_failed: int = 0

    @property
    def broken(self) -> bool:
        """Its card could not empty it several times in a row."""
        return self.drops_failed >= DROPS_FAILED_MAX

    @property
    def empty(self) -> bool:
        """Nothing in it, nothing on its way into it."""
        return not self.tokens and self.known and not self.turn and not self.op

    def clear(self, now: int) -> None:
        """Make it empty."""
        self.tokens, self.known, self.session, self.branch, self.tenant = (), True, "", -1, ""
        self.turn, self.op, self.entry, self.loaded, self.remains_tokens = "", "", -1, False, 0
        self.idle_since_ns, self.clean, self.kept, self.drops_failed = now, False, False, 0
        self.copy, self.before_tokens = -1, 0


@dataclass(slots=True)
class Card:
    """One card as announced, and its slots."""

    up: ev.CardUp
    alive: bool = True
    draining: bool = False
    """Taken out, until it is brought back: a restart does not bring it back."""
    slots: list[Slot] = field(default_factory=list)
    strikes: int = 0
    """Failures, less good ends, none further than a minute from the next."""
    struck_ns: int = 0
    pauses: int = 0
    """In a row: each lasts twice as long as the one before."""
    open_until_ns: int = 0
    """Until when its breaker is open; past that one turn at a time may try it. 0: closed."""

    def strike(self, now: int, *, silent: bool) -> None:
        """Count a failure; five open the breaker, one of a trial does, and so does silence."""
        if now < self.open_until_ns:
            return
        if now - self.struck_ns > 60 * SECOND_NS:
            self.strikes = 0
        self.strikes = 5 if silent else self.strikes + 1
        self.struck_ns = now
        if self.open_until_ns or self.strikes >= 5:
            self.open_until_ns = now + min(300 * SECOND_NS, SECOND_NS // 4 * 2**self.pauses)
            self.pauses += 1

    def works(self) -> None:
        """Count a good end."""
        self.strikes = max(0, self.strikes - 1)
        if self.open_until_ns:
            self.strikes = self.pauses = self.open_until_ns = 0

    def running(self) -> Iterator[Slot]:
        """Slots whose turn runs."""
        return (slot for slot in self.slots if slot.turn)

"""What must hold at every step, whatever the core decides: the runner and the list of checks.

A check is told each event and action before the book takes it in, and each end of a step after. It
raises CheckFailed with its own name. No check shares code with the core.
"""

from __future__ import annotations

from collections.abc import Iterable

from bedplate.core import actions as act
from bedplate.core import events as ev
from tests.sim.book import Book


class CheckFailed(AssertionError):
    """A property does not hold; `name` is the check."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Check:
    """One property."""

    name = ""

    def __init__(self, book: Book) -> None:
        self.book = book

    def event(self, event: ev.Event) -> None:
        """Look at an event before the book takes it in."""

    def action(self, action: act.Action) -> None:
        """Look at an action before the book takes it in."""

    def after(self, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        """Look at the book after a whole step."""

    def finish(self) -> None:
        """Look at the book after everything."""

    def need(self, holds: bool, message: str) -> None:
        """Fail unless it holds."""
        if not holds:
            raise CheckFailed(self.name, f"{message} [now {self.book.now}]")


class Checkers:
    """The book, and all checks over it."""

    def __init__(self, kinds: Iterable[type[Check]] | None = None) -> None:
        self.book = Book()
        self.checks = [kind(self.book) for kind in (all_checks() if kinds is None else kinds)]

    def step(self, now: int, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
        """Check one step of the core.

        Raises:
            CheckFailed: names the property.
        """
        if now < self.book.now:
            raise CheckFailed("time", f"{now} after {self.book.now}")
        for check in self.checks:
            check.event(event)
        self.book.hear(now, event)
        for action in actions:
            for check in self.checks:
                check.action(action)
            self.book.see(action)
        if isinstance(event, ev.TurnArrived):
            self.book.accept(event.turn)
        for check in self.checks:
            check.after(event, actions)

    def finish(self) -> None:
        """Check what must hold when nothing more will happen."""
        for check in self.checks:
            check.finish()


def all_checks() -> tuple[type[Check], ...]:
    """Return every check there is."""
    from tests.sim import (
        checks_breakers,
        checks_budgets,
        checks_kv,
        checks_order,
        checks_promises,
        checks_rates,
        checks_reserves,
        checks_turns,
    )

    modules = (
        *(checks_kv, checks_turns, checks_promises, checks_rates),
        *(checks_budgets, checks_breakers, checks_order, checks_reserves),
    )
    return tuple(kind for module in modules for kind in module.CHECKS)

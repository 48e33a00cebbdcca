"""How long a call may wait for a card, by the book."""

from __future__ import annotations

from bedplate.core import events as ev
from tests.sim.book import Book


def served(book: Book, model: str) -> bool:
    """Tell whether a card that serves a model is up."""
    return any(card.alive and card.up.model == model for card in book.cards.values())


def patience_ns(book: Book, event: ev.TurnArrived) -> int:
    """Return how long a call may wait: less where no card that serves its model is up."""
    assert book.policy is not None
    lane = book.policy.lanes[event.lane]
    if served(book, event.model) or not lane.refuse_ns:
        return lane.wait_max_ns
    return min(lane.wait_max_ns, lane.refuse_ns)

"""What the times of a run rest on, and how far off they are known to be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bedplate.perf import fitted, profile_file
from bedplate.perf.catalog import find_card
from bedplate.perf.profile import CardProfile


class Off(NamedTuple):
    """The mean relative error of one quantity, 0.18 for 18 %."""

    quantity: str
    mean: float


class Evidence(NamedTuple):
    """One profile of a run. `evidence`: measured | fitted | roofline, as the profile says.

    `errors` are empty where none is known; `of` says on what they were found.
    """

    profile: str
    evidence: str
    cards: int
    errors: tuple[Off, ...]
    of: str

    def words(self) -> str:
        """Return it as a line for people."""
        how = {
            "measured": "measured",
            "fitted": "estimated with constants fitted to measurements, not measured",
            "roofline": "estimated from data sheets alone, not measured",
        }.get(self.evidence, self.evidence)
        told = ", ".join(f"{off.quantity} ±{off.mean:.0%}" for off in self.errors)
        error = f"{told} (mean error {self.of})" if told else "no error is known"
        cards = "1 card" if self.cards == 1 else f"{self.cards:,} cards"
        return f"{self.profile}, {cards}: {how}; {error}"


def of_catalogue(profile: CardProfile, card: str, cards: int) -> Evidence:
    """Return what an estimated profile of a card of the catalogue rests on."""
    found = fitted.errors(find_card(card)) if profile.evidence == "fitted" else {}
    errors = tuple(Off(name.upper(), error.mean) for name, error in found.items())
    return Evidence(
        profile.name, profile.evidence, cards, errors, "on models that the fit had not seen"
    )


def of_file(profile: CardProfile, path: Path, cards: int) -> Evidence:
    """Return what the profile of a file rests on; raises as `profile_file.read`."""
    found = profile_file.read(path).errors
    kinds = {} if found is None else found.model_dump(exclude_none=True)
    errors = tuple(Off(kind, error["mean"]) for kind, error in kinds.items())
    return Evidence(profile.name, profile.evidence, cards, errors, "on points held out of the fit")


def merged(found: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return one row a profile, with the cards of all groups that use it."""
    rows: dict[Evidence, int] = {}
    for each in found:
        alike = each._replace(cards=0)
        rows[alike] = rows.get(alike, 0) + each.cards
    return tuple(alike._replace(cards=cards) for alike, cards in rows.items())

"""The two sites: the built-in box of 8 cards and supernode of 384, without their faults.

Engines are tuned as their users tune them: prompts are computed in chunks so small that a step with
one keeps the pace that the interactive class asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bedplate.perf.profile import Batching, CardProfile
from bedplate.twin.run import Site
from bedplate.twin.scenario import load_scenario

BOX, SUPERNODE = "box-of-8", "supernode-384"
TOKEN_BUDGET = 256
"""Tokens of one step."""


def site(name: str, *, token_budget: int = TOKEN_BUDGET, changes: Sequence[str] = ()) -> Site:
    """Return a built-in site without its faults, its cards tuned.

    `changes` are keys with values in place of the scenario's, as `bedplate sim --set` takes them.
    """
    found = load_scenario(name, changes=changes).site
    profiles: dict[int, CardProfile] = {}
    for card in found.cards:
        tuned = replace(card.profile, batching=Batching(token_budget=token_budget))
        profiles.setdefault(id(card.profile), tuned)
    cards = tuple(replace(card, profile=profiles[id(card.profile)]) for card in found.cards)
    return replace(found, cards=cards)

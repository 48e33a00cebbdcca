"""Which card of a fleet is asked to count tokens. The cards' servers are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.ids import CardId
from bedplate.engines.llamacpp.fleet import Fleet
from bedplate.engines.llamacpp.fragments import fragments_of
from bedplate.engines.llamacpp.model import Model
from bedplate.errors import EngineLost, NoEngine
from tests.fakes.card_engine import card, settings_for

MODEL = Model(
    path=Path("m.gguf"),
    digest="",
    licence=None,
    architecture="llama",
    context_tokens=4096,
    can_cut=True,
    kv_bytes_per_token=1,
    chat_template=None,
    special=frozenset(),
    fragments=fragments_of("gpt2", [], []),
    token_characters=1,
    bos_text="",
    eos_text="",
)


class Server:
    """Counts nothing and says who it is."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self.number = number
        self.error = error

    async def tokenize(self, content: Sequence[str | int], *, add_special: bool) -> list[int]:
        if self.error is not None:
            raise self.error
        return [self.number]


def fleet_of(folder: Path, out: set[CardId], servers: Sequence[Server | None]) -> Fleet:
    fleet = Fleet(
        settings_for(folder / "m.gguf", folder, cards=len(servers)),
        MODEL,
        slot_folder=None,
        sink=lambda event: None,
        is_out=out.__contains__,
    )
    for server, made in zip(servers, fleet.cards.values(), strict=True):
        client: Any = server
        made.client = client
    return fleet


def asked(fleet: Fleet) -> int:
    """Return the number of the card that counts."""
    return asyncio.run(fleet.tokenize(["a"], add_special=False))[0]


def test_a_card_that_is_taken_out_is_asked_after_those_that_are_in(tmp_path: Path) -> None:
    out: set[CardId] = set()
    fleet = fleet_of(tmp_path, out, [Server(0), Server(1), Server(2)])
    assert asked(fleet) == 0
    out.add(card(0))
    assert asked(fleet) == 1
    out.add(card(1))
    assert asked(fleet) == 2
    out.clear()
    assert asked(fleet) == 0


def test_a_card_that_is_taken_out_is_asked_where_no_other_answers(tmp_path: Path) -> None:
    lost = Server(1, EngineLost("gone"))
    fleet = fleet_of(tmp_path, {card(0)}, [Server(0), lost, None])
    assert asked(fleet) == 0
    assert fleet.cards[card(1)].silent
    lost.error = None
    assert asked(fleet) == 0, "a silent card holds up nobody"
    fleet.cards[card(1)].silent = False
    assert asked(fleet) == 1


def test_no_card_is_up(tmp_path: Path) -> None:
    with pytest.raises(NoEngine):
        asked(fleet_of(tmp_path, set(), [None, None]))

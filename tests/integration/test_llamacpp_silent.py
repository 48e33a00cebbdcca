"""Cards that live and do not answer, and cards that a request makes grow."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from bedplate.core.events import CardDown, CardUp
from bedplate.engines.base import JsonObject, TurnRun
from bedplate.engines.llamacpp.client import CardClient
from bedplate.engines.llamacpp.prompting import PromptIds
from bedplate.engines.llamacpp.request import completion_body
from bedplate.errors import EngineError, SchemaNotKept
from tests.fakes.card_engine import card, card_engine, lineage, user


async def test_a_frozen_card_holds_up_no_prompt_and_is_replaced(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with card_engine(tiny_model, tmp_path) as world:
        pid = world.engine.fleet.cards[card(0)].pid
        os.kill(pid, signal.SIGSTOP)
        for name in ("a", "b", "c"):
            began = time.monotonic()
            await world.turn_of([user("account 9")], lineage(name), slot=1)
            assert time.monotonic() - began < 3.0
        down = await world.wait_for(CardDown, within_s=10.0)
        assert (down.card, down.reason) == (card(0), "does not answer")
        assert world.engine.problems == {card(0): "does not answer"}
        up = await world.wait_for(CardUp, 3, within_s=10.0)
        assert up.card == card(0)
        assert world.engine.fleet.cards[card(0)].pid != pid


async def test_a_card_whose_slots_never_answer_is_replaced(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def door_only(_client: CardClient, path: str, _within_s: float) -> bool:
        return path == "/health"

    async with card_engine(tiny_model, tmp_path, cards=1) as world:
        monkeypatch.setattr("bedplate.engines.llamacpp.card.STUCK_SECONDS", 1.0)
        monkeypatch.setattr(CardClient, "answers", door_only)
        down = await world.wait_for(CardDown, within_s=10.0)
        assert down.reason == "does not answer"


async def test_a_card_that_grows_ends_alone(tiny_model: Path, tmp_path: Path) -> None:
    async with card_engine(tiny_model, tmp_path) as world:
        grown, other = (world.engine.fleet.cards[card(n)] for n in (0, 1))
        pid, kept = grown.pid, other.pid
        limit, _hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        assert 0 < limit < 3 << 30
        # A megabyte over what it holds stands for the gigabytes that a bomb takes.
        held = _data_bytes(pid)
        resource.prlimit(pid, resource.RLIMIT_DATA, (held + (1 << 20), held + (1 << 20)))
        big = {"prompt": [5] * 4_000, "n_predict": 4_000, "n_probs": 500, "stream": True}
        with pytest.raises(EngineError):
            async for _events in grown.server().complete(big):
                pass
        assert other.pid == kept
        await world.chat([user("account 9")], lineage("s"), card=1)


def _data_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


async def test_an_answer_outside_its_schema_is_no_answer(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets another grammar than the request: as where it lets go of the right one."""

    def other(turn: TurnRun, payload: PromptIds, stops: tuple[str, ...]) -> JsonObject:
        body = completion_body(turn, payload, stops)
        return {**body, "grammar": '%llguidance {}\nstart: "10001"'}

    monkeypatch.setattr("bedplate.engines.llamacpp.engine.completion_body", other)
    schema = {"type": "integer", "multipleOf": 5000, "minimum": 0, "maximum": 10**12}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with card_engine(tiny_model, tmp_path, cards=1) as world:
        with pytest.raises(SchemaNotKept, match="did not keep to the schema"):
            await world.chat([user("n")], lineage("s"), response_format=form, limit=32)

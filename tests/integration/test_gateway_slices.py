"""Slices through the service: asked for, refused, shown, given back, kept over a restart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bedplate.cli import main, operator
from bedplate.core.units import SECOND_NS
from bedplate.gateway.slices import SLICES
from bedplate.journal import Reader
from bedplate.replay import replay
from tests.integration.test_gateway_service import World, running


def asked(name: str = "s", **changes: Any) -> dict[str, Any]:
    """A reserve of 64 tokens on the cards of the one model, for an hour."""
    until_ns = time.time_ns() + 3_600 * SECOND_NS
    base = {"id": name, "tenant": "acme", "model": "m", "kv_tokens": 64, "until_ns": until_ns}
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


async def call(world: World, method: str, path: str = SLICES, **body: Any) -> tuple[int, Any]:
    """Return status and body of one call of the operator's."""
    sent = body or None
    async with world.http() as client, client.request(method, path, json=sent) as response:
        return response.status, await response.json()


def named(answer: Any) -> list[str]:
    """Names of the slices in a list."""
    return [part["id"] for part in answer["data"]]


async def test_a_slice_of_cards_is_added_shown_and_given_back(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        cards = [str(card["card"]) for card in world.gateway.parts.view.cards()]
        status, made = await call(world, "POST", **asked(kv_tokens=None, cards=1, lane="shared"))
        assert (status, made["cards_held"], made["lane"]) == (201, cards[:1], "shared")
        _, state = await call(world, "GET", "/v1/admin/state")
        assert [card["slice"] for card in state["cards"]] == ["s"] + [""] * (len(cards) - 1)
        assert named((await call(world, "GET"))[1]) == ["s"]
        policy = world.records("PolicyChanged")[-1]["policy"]
        assert [part["id"] for part in policy["slices"]] == ["s"]
        assert world.records("operator")[-1]["verb"] == "add"
        assert (await call(world, "DELETE", f"{SLICES}/s"))[0] == 200
        assert named((await call(world, "GET"))[1]) == []
        assert world.service.base.state.policy.slices == ()


async def test_what_does_not_fit_or_is_there_already_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        many = len(world.gateway.parts.view.cards()) + 1
        status, answer = await call(world, "POST", **asked(kv_tokens=None, cards=many))
        assert (status, answer["error"]["code"]) == (409, "slice_refused")
        assert f"cards of m asked for: {many}, free then: {many - 1}" in answer["error"]["message"]
        status, answer = await call(world, "POST", **asked(model="x"))
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        status, answer = await call(world, "POST", **asked(tenant="acne"))
        assert (status, answer["error"]["param"]) == (400, "tenant")
        assert "nearest one with a key is 'acme'" in answer["error"]["message"]
        assert (await call(world, "POST", **asked()))[0] == 201
        status, answer = await call(world, "POST", **asked())
        assert (status, "already" in answer["error"]["message"]) == (400, True)
        status, answer = await call(world, "DELETE", f"{SLICES}/none")
        assert status == 404
        assert answer["error"]["message"] == "No slice 'none'; there are: s."
        assert world.records("operator")[-1]["slice"] == "s"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"tenant": None}, "tenant"),
        ({"model": ""}, "model"),
        ({"id": "a/b"}, "id"),
        ({"kv_tokens": None}, "cards"),
        ({"cards": 1}, "cards"),
        ({"kv_tokens": -1}, "kv_tokens"),
        ({"lane": "fast"}, "lane"),
        ({"lane": "batch"}, "lane"),
        ({"until_ns": None}, "until_ns"),
        ({"until_ns": 1}, "until_ns"),
        ({"from_ns": 1 << 62}, "until_ns"),
        ({"cores": 1}, "cores"),
    ],
)
async def test_a_field_at_fault_is_named(
    tmp_path: Path, changes: dict[str, Any], names: str
) -> None:
    async with running(tmp_path) as world:
        status, answer = await call(world, "POST", **asked(**changes))
        assert status == 400
        assert names in answer["error"]["message"]
        assert not world.service.base.state.policy.slices


async def test_slices_are_there_after_a_restart_and_in_a_replay(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert (await call(world, "POST", **asked("kept")))[0] == 201
        short = asked("short", until_ns=time.time_ns() + SECOND_NS)
        assert (await call(world, "POST", **short))[0] == 201
        await asyncio.sleep(1.1)
        assert named((await call(world, "GET"))[1]) == ["kept"]
    async with running(tmp_path) as world:
        assert named((await call(world, "GET"))[1]) == ["kept"]
    with Reader(tmp_path / "journal") as reader:
        replayed = replay(reader)
    assert replayed.same
    assert replayed.digests > 0


async def test_the_command_reaches_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        reached = operator.Operator(world.url, world.key, None, {})
        monkeypatch.setattr(operator, "find", lambda folder: reached)

        def run(*words: str) -> Any:
            return CliRunner().invoke(main.application(["slice"]), ["slice", *words])

        place = ("--tenant", "acme", "--model", "m")
        made = await asyncio.to_thread(run, "add", "q", *place, "--cards", "1", "--until", "8h")
        assert made.exit_code == 0, made
        listed = await asyncio.to_thread(run, "list")
        assert "acme" in listed.stdout
        gone = await asyncio.to_thread(run, "remove", "q")
        assert gone.stdout == "q given back\n"
        none = await asyncio.to_thread(run, "list", "--json")
        assert '"data": []' in none.stdout or '"data":[]' in none.stdout

"""`POST /v1/sessions/{id}/progress`: a client says how long its tool still runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bedplate.core.events import ToolProgress
from bedplate.core.ids import BranchId, SessionId, TenantId
from bedplate.core.units import SECOND_NS
from tests.fakes.gateway_world import CHAT, World, body, gateway_world, http


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


async def opened(world: World) -> str:
    """Return the name of a session with one answered turn."""
    async with http(world) as client, client.post(CHAT, json=body()) as response:
        session = response.headers["x-session-id"]
    shown = {"id": session, "branches": [{"branch": 0}, {"branch": 3}]}
    world.view.held[SessionId(session)] = (TenantId("acme"), shown)
    return session


def told(world: World) -> list[ToolProgress]:
    return [event for event in world.runtime.events if isinstance(event, ToolProgress)]


async def test_the_core_hears_how_long_the_tool_still_runs(world: World) -> None:
    session = await opened(world)
    path = f"/v1/sessions/{session}/progress"
    async with http(world) as client:
        async with client.post(path, json={"eta_seconds": 2.5}) as response:
            assert response.status == 200
            assert (await response.json())["eta_seconds"] == 2.5
        assert told(world) == [
            ToolProgress(SessionId(session), BranchId(-1), 5 * SECOND_NS // 2),
        ]


async def test_a_branch_may_be_named(world: World) -> None:
    session = await opened(world)
    path = f"/v1/sessions/{session}/progress"
    sent = {"eta_seconds": 0, "branch": 3}
    async with http(world) as client, client.post(path, json=sent) as response:
        assert response.status == 200
    assert told(world) == [ToolProgress(SessionId(session), BranchId(3), 0)]


async def test_a_branch_that_is_not_there_is_named_and_uses_nothing_up(world: World) -> None:
    path = f"/v1/sessions/{await opened(world)}/progress"
    async with http(world) as client:
        async with client.post(path, json={"eta_seconds": 1, "branch": 9}) as response:
            assert response.status == 404
            error = (await response.json())["error"]
            assert (error["code"], error["param"]) == ("branch_not_found", "branch")
            assert "9" in error["message"]
        async with client.post(path, json={"eta_seconds": 1, "branch": 0}) as response:
            assert response.status == 200, "the refused word was not the one of this second"
    assert len(told(world)) == 1


async def test_a_session_that_ends_before_the_word_is_in_is_unknown(world: World) -> None:
    session = await opened(world)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"eta_seconds"'
        await asyncio.sleep(0.05)
        del world.view.held[SessionId(session)]
        yield b": 5}"

    path = f"/v1/sessions/{session}/progress"
    json_type = {"Content-Type": "application/json"}
    async with http(world) as client, client.post(path, data=slow(), headers=json_type) as response:
        assert response.status == 404
    assert told(world) == []


async def test_word_that_comes_too_often_is_refused_until_a_second_is_over(world: World) -> None:
    session = await opened(world)
    path = f"/v1/sessions/{session}/progress"
    async with http(world) as client:
        async with client.post(path, json={"eta_seconds": 5}) as response:
            assert response.status == 200
        async with client.post(path, json={"eta_seconds": 4}) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "quota_exceeded"
            assert 0 < int(response.headers["retry-after-ms"]) <= 1000
    assert len(told(world)) == 1


async def test_an_ended_session_is_unknown(world: World) -> None:
    session = await opened(world)
    path = f"/v1/sessions/{session}/progress"
    async with http(world) as client:
        async with client.post(path, json={"eta_seconds": 5}) as response:
            assert response.status == 200
        world.runtime.close_session(SessionId(session), "closed")
        async with client.post(path, json={"eta_seconds": 5}) as response:
            assert response.status == 404, "it is unknown, not told too often"
    assert len(told(world)) == 1


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({}, "eta_seconds"),
        ({"eta_seconds": -1}, "eta_seconds"),
        ({"eta_seconds": "5"}, "eta_seconds"),
        ({"eta_seconds": True}, "eta_seconds"),
        ({"eta_seconds": 1e9}, "eta_seconds"),
        ({"eta_seconds": 1, "branch": -2}, "branch"),
        ({"eta_seconds": 1, "tool": "grep"}, "tool"),
    ],
)
async def test_what_is_no_progress_is_named(
    world: World, sent: dict[str, object], param: str
) -> None:
    path = f"/v1/sessions/{await opened(world)}/progress"
    async with http(world) as client, client.post(path, json=sent) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
    assert told(world) == []


async def test_another_tenants_session_is_as_unknown_as_none(world: World) -> None:
    session = await opened(world)
    async with http(world, world.rival) as client:
        for name in (session, "s-none"):
            path = f"/v1/sessions/{name}/progress"
            async with client.post(path, json={"eta_seconds": 5}) as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "session_not_found"
    assert told(world) == []


async def test_a_post_elsewhere_under_a_session_is_unknown(world: World) -> None:
    session = await opened(world)
    async with http(world) as client:
        for path in (session, f"{session}/other", f"{session}/progress/more"):
            async with client.post(f"/v1/sessions/{path}", json={"eta_seconds": 5}) as response:
                assert response.status in (400, 404)
    assert told(world) == []

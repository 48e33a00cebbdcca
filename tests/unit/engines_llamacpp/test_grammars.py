"""Grammars are tried in a process of their own, and answers are read against them again."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bedplate.core.ids import ModelId, TenantId
from bedplate.engines.base import ChatRequest
from bedplate.engines.llamacpp import compiler
from bedplate.engines.llamacpp.grammars import Grammars
from bedplate.errors import InvalidRequest, SchemaNotKept

BOMB = {"allOf": [{"type": "string", "pattern": f".*{n}.*"} for n in range(100, 120)]}
"""Within all bounds; its automaton has a million states."""
STEPS = {"type": "integer", "multipleOf": 5000, "minimum": 0, "maximum": 10**12}
"""Compiles; in the middle of an answer the server runs out of what it may spend, and lets go."""
TENANT = TenantId("acme")


@pytest.fixture
async def grammars() -> AsyncIterator[Grammars]:
    made = Grammars()
    yield made
    await made.close()


def request(schema: dict[str, Any], **more: Any) -> ChatRequest:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return ChatRequest(
        ModelId("m"), ({"role": "user", "content": "x"},), response_format=form, **more
    )


async def admitted(grammars: Grammars, schema: dict[str, Any]) -> str:
    grammar = await grammars.admit(request(schema), TENANT)
    assert grammar is not None
    return grammar


async def test_a_schema_that_takes_all_memory_ends_the_compiler_only(grammars: Grammars) -> None:
    with pytest.raises(InvalidRequest, match="too much memory or time") as caught:
        await grammars.admit(request(BOMB), TENANT)
    assert caught.value.param == "response_format"
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="too much memory or time"):
        await grammars.admit(request(BOMB), TENANT)
    assert time.monotonic() - began < 0.1, "a refused schema is compiled only once"
    await admitted(grammars, {"type": "integer"})


async def test_an_answer_that_breaks_its_schema_is_an_error(grammars: Grammars) -> None:
    grammar = await admitted(grammars, STEPS)
    await grammars.check(grammar, "10000", TENANT)
    for wrong in ("10001", "1000000000000000", "", '"a"', "10000 "):
        with pytest.raises(SchemaNotKept, match="did not keep to the schema"):
            await grammars.check(grammar, wrong, TENANT)


async def test_patterns_and_cut_json_are_checked_too(grammars: Grammars) -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[a-z]{3}$"}},
        "required": ["id"],
    }
    grammar = await admitted(grammars, schema)
    await grammars.check(grammar, '{"id":"abc"}', TENANT)
    for wrong in ('{"id":"ABC"}', '{"id":"abc"', "{}"):
        with pytest.raises(SchemaNotKept, match="did not keep"):
            await grammars.check(grammar, wrong, TENANT)


async def test_an_answer_that_ends_the_compiler_is_not_tried_again(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = await admitted(grammars, {"type": "integer"})

    async def ends(line: bytes) -> bytes:
        return b""

    monkeypatch.setattr(grammars, "_exchange", ends)
    with pytest.raises(SchemaNotKept, match="could not be checked") as caught:
        await grammars.check(grammar, "1", TENANT)
    assert not caught.value.retryable


async def test_the_event_loop_goes_on_while_a_schema_compiles(grammars: Grammars) -> None:
    await admitted(grammars, {"type": "integer"})
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1_300)}}
    job = asyncio.create_task(grammars.admit(request(wide), TENANT))
    longest = 0.0
    last = time.monotonic()
    while not job.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert await job
    assert longest < 0.1


async def test_the_compilers_memory_is_limited(grammars: Grammars) -> None:
    await admitted(grammars, {"type": "integer"})
    process = grammars._process
    assert process is not None
    limit = compiler.MEMORY_BYTES_MAX
    assert resource.prlimit(process.pid, resource.RLIMIT_AS) == (limit, limit)


async def test_a_lost_compiler_is_started_again(grammars: Grammars) -> None:
    await admitted(grammars, {"type": "integer"})
    process = grammars._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await admitted(grammars, {"type": "string"})


async def test_a_caller_that_leaves_takes_no_other_answer(grammars: Grammars) -> None:
    await admitted(grammars, {"type": "integer"})
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1_300)}}
    leaver = asyncio.create_task(grammars.admit(request(wide), TENANT))
    await asyncio.sleep(0.005)
    leaver.cancel()
    with pytest.raises(InvalidRequest):
        await grammars.admit(request({"type": "objekt"}), TENANT)
    await asyncio.gather(leaver, return_exceptions=True)


async def test_what_is_remembered_is_bounded(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bedplate.engines.llamacpp.grammars.KNOWN_MAX", 3)
    for n in range(5):
        await admitted(grammars, {"const": n})
    assert len(grammars._known) == 3


async def test_a_tenant_waits_for_one_schema_of_another_not_for_all(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def judge(line: bytes) -> bytes:
        order.append("bomb" if b"bomb" in line else "small")
        await asyncio.sleep(0.01)
        return b'{"problem": ""}'

    monkeypatch.setattr(grammars, "_exchange", judge)
    bombs = [{"type": "object", "properties": {f"bomb{number}": {}}} for number in range(5)]
    jobs = [asyncio.create_task(grammars.admit(request(bomb), TENANT)) for bomb in bombs]
    await asyncio.sleep(0)
    await grammars.admit(request({"type": "integer"}), TenantId("rival"))
    await asyncio.gather(*jobs)
    assert order == ["bomb", "small", "bomb", "bomb", "bomb", "bomb"]

"""Where one request ends and the next begins: stray bytes, upgrades."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bedplate.cli.log_bound import LINES_MAX, BoundedHandler
from bedplate.engines.base import Delta
from bedplate.gateway import connection
from tests.fakes.gateway_world import CHAT, World, body, gateway_world, until
from tests.fakes.talking_engine import Script


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        yield made


async def test_a_byte_after_a_request_does_not_cut_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on a next head that never comes waits for the answer that is under way."""
    monkeypatch.setattr(connection, "HEAD_WAIT_SECONDS", 0.2)
    goes_on = asyncio.Event()
    world.engine.scripts.append(Script((goes_on, Delta("whole", tokens=1))))
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    data = json.dumps(body()).encode()
    key = f"authorization: Bearer {world.acme}\r\ncontent-type: application/json\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n{key}\r\n"
    writer.write(head.encode() + data)
    await until(lambda: world.engine.running)
    writer.write(b"\r\n")
    await asyncio.sleep(0.5)
    goes_on.set()
    reply = await asyncio.wait_for(reader.read(65536), 5)
    assert b"whole" in reply
    assert await asyncio.wait_for(reader.read(65536), 5) == b"", "then the bound holds"
    writer.close()


@pytest.mark.parametrize("framing", ["content-length: 36", "transfer-encoding: chunked"])
async def test_a_body_with_an_upgrade_is_refused_and_never_read_as_a_request(
    world: World, framing: str
) -> None:
    """Java's HttpClient asks so for HTTP/2. The parser leaves the body of such a request unread."""
    hidden = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    key = f"authorization: Bearer {world.acme}\r\ncontent-type: application/json\r\n"
    asks = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAM\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n{key}{asks}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    writer.write(head.encode())
    await asyncio.sleep(0.05)
    writer.write(hidden)
    reply = await asyncio.wait_for(reader.read(), 5)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"The header upgrade is not supported" in reply
    assert reply.count(b"HTTP/1.1 400 ") == 1
    assert b"200 OK" not in reply
    writer.close()


async def test_an_upgrade_without_a_body_is_ignored(world: World) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
    asks = b"connection: Upgrade\r\nupgrade: h2c\r\n"
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + asks + b"\r\n")
    assert (await asyncio.wait_for(reader.read(65536), 5)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_garbage_writes_a_bounded_number_of_log_lines(world: World) -> None:
    """One client that sends no HTTP causes a line each time; see `cli.log_bound`."""
    written = io.StringIO()
    handler = BoundedHandler(logging.StreamHandler(written))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        for _ in range(LINES_MAX + 40):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port)
            writer.write(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400 ")
            writer.close()
    finally:
        root.removeHandler(handler)
        handler.close()
    lines = written.getvalue().splitlines()
    assert lines.count("Invalid HTTP request received.") == LINES_MAX
    assert [line for line in lines if line.startswith("40 more in the last ")]

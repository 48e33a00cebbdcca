"""The HTTP client of endpoints, against servers that say exactly what each test writes down."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from bedplate.engines.openai import connection
from bedplate.engines.openai.connection import (
    NotHttp,
    Pool,
    Reply,
    Silent,
    TransportError,
    Unreachable,
)

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Script = list[bytes | float | None]
"""What the server does for a request: writes bytes, sleeps seconds, cuts at None."""


class Server:
    """Follows `script` for each request; counts connections and requests."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.requests = 0
        self.gone = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                for part in self.script:
                    if part is None:
                        return
                    if isinstance(part, float):
                        await asyncio.sleep(part)
                    else:
                        writer.write(part)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()


@asynccontextmanager
async def served(
    script: Script, *, limit: int = 4, keeps: bool = True
) -> AsyncIterator[tuple[Server, Pool]]:
    server = Server(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = Pool(URL(f"http://127.0.0.1:{port}"), limit=limit, keeps=keeps, connect_s=1.0)
    try:
        yield server, pool
    finally:
        pool.close()
        listener.close()


async def ask(pool: Pool, *, total_s: float = 5.0, read_s: float = 5.0) -> tuple[Reply, bytes]:
    reply = await pool.send(REQUEST, total_s=total_s, read_s=read_s)
    try:
        return reply, await reply.read(1 << 30)
    finally:
        reply.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for is the client's state
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("script", "body", "kept"),
    [
        ([HELLO], b"hello", True),
        ([HELLO[:9], 0.01, HELLO[9:40], 0.01, HELLO[40:]], b"hello", True),
        ([CHUNKED + b"5\r\nhello\r\n", 0.01, b"1\r\n!\r\n0\r\n\r\n"], b"hello!", True),
        ([CHUNKED + b"5;a=b\r\nhello\r\n0\r\nStatus: 500\r\n\r\n"], b"hello", True),
        ([OK + b"\r\nhel", 0.01, b"lo", None], b"hello", False),
        ([b"HTTP/1.0 200 OK\r\n\r\nhello", None], b"hello", False),
        ([OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", None], b"hello", False),
        ([OK + b"Content-Length: 0\r\n\r\n"], b"", True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, HELLO], b"hello", True),
        ([b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + HELLO], b"hello", True),
        ([HELLO + HELLO], b"hello", False),
        ([HELLO + b"noise"], b"hello", False),
    ],
)
async def test_a_whole_answer_and_whether_its_connection_is_used_again(
    script: Script, body: bytes, kept: bool
) -> None:
    async with served(script) as (server, pool):
        for _ in range(3):
            reply, found = await ask(pool)
            assert reply.status == 200
            assert found == body
            assert b"link" not in reply.headers
            assert reply.at_end
        assert server.connections == (1 if kept else 3)
        assert server.requests == 3


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([None], TransportError),
        ([OK, None], TransportError),
        ([OK + b"Content-Length: 9\r\n\r\nhello", None], TransportError),
        ([CHUNKED + b"5\r\nhello\r\n", None], TransportError),
        ([b"SSH-2.0-OpenSSH\r\n"], NotHttp),
        ([CHUNKED + b"zz\r\n"], NotHttp),
        ([b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], NotHttp),
        ([OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"], NotHttp),
        ([OK + b"X: " + b"x" * connection.HEAD_BYTES_MAX], NotHttp),
        ([b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 4_000], NotHttp),
        ([5.0], Silent),
        ([HELLO[:-1], 5.0], Silent),
    ],
)
async def test_a_broken_answer_is_an_error_and_the_connection_is_cut(
    script: Script, kind: type[Exception]
) -> None:
    async with served(script) as (_, pool):
        with pytest.raises(kind) as caught:
            await ask(pool, read_s=0.1)
        assert type(caught.value) is kind
        await until(lambda: not pool.connections)


async def test_what_came_before_a_break_is_given_out_first() -> None:
    async with served([CHUNKED + b"5\r\nhello\r\n", 0.01, None]) as (_, pool):
        reply = await pool.send(REQUEST, total_s=5, read_s=5)
        await until(lambda: not pool.connections)
        assert await reply.read_some() == b"hello"
        with pytest.raises(TransportError):
            await reply.read_some()
        reply.close()


async def test_a_steady_trickle_is_cut_at_the_total_time() -> None:
    trickle: Script = [b"1\r\nx\r\n", 0.02]
    async with served([CHUNKED, *trickle * 200]) as (_, pool):
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError) as caught:
            await ask(pool, total_s=0.3, read_s=0.2)
        assert type(caught.value) is TimeoutError
        assert asyncio.get_running_loop().time() - began < 1.0


async def test_an_unread_body_holds_the_server_back_without_being_silent() -> None:
    piece = b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16))
    async with served([CHUNKED, *[piece] * 1_000, b"0\r\n\r\n"]) as (_, pool):
        reply = await pool.send(REQUEST, total_s=20, read_s=0.2)
        await asyncio.sleep(0.6)
        size = len(await reply.read_some())
        assert size <= 2 * connection.UNREAD_BYTES_MAX
        while data := await reply.read_some():
            size += len(data)
        assert size == 1_000 << 16
        reply.close()
        assert len(pool.connections) == 1


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with served([HELLO, 0.01, None]) as (server, pool):
        await ask(pool)
        await until(lambda: not pool.connections)
        await ask(pool)
        assert server.connections == server.requests == 2


async def test_a_request_is_never_sent_twice() -> None:
    async with served([HELLO]) as (server, pool):
        await ask(pool)
        server.script = [None]
        with pytest.raises(TransportError):
            await ask(pool)
        assert server.requests == 2


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.05)
    async with served([HELLO]) as (server, pool):
        await ask(pool)
        await until(lambda: server.gone == 1)
        assert not pool.connections


async def test_a_server_that_speaks_unasked_is_not_asked_again() -> None:
    async with served([HELLO, 0.02, HELLO]) as (server, pool):
        await ask(pool)
        await until(lambda: not pool.connections)
        await ask(pool)
        assert server.connections == 2


async def test_servers_that_keep_no_connection_get_a_new_one_each_time() -> None:
    async with served([HELLO], keeps=False) as (server, pool):
        await ask(pool)
        await ask(pool)
        assert server.connections == 2


async def test_more_calls_than_connections_wait_their_turn() -> None:
    async with served([0.02, HELLO], limit=2) as (server, pool):
        await asyncio.gather(*(ask(pool) for _ in range(6)))
        assert server.connections == 2
        with pytest.raises(TimeoutError):
            await asyncio.gather(*(ask(pool, total_s=0.05) for _ in range(12)))


@pytest.mark.parametrize("script", [[5.0], [OK, 5.0]])
async def test_being_cancelled_cuts_the_connection(script: Script) -> None:
    async with served(script) as (server, pool):
        task = asyncio.create_task(ask(pool))
        await until(lambda: server.requests == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not pool.connections)


async def test_closing_in_mid_body_cuts_the_connection() -> None:
    trickle: Script = [b"1\r\nx\r\n", 0.01]
    async with served([CHUNKED, *trickle * 500]) as (server, pool):
        reply = await pool.send(REQUEST, total_s=5, read_s=5)
        await reply.read_some()
        reply.close()
        reply.close()  # may be called again
        await until(lambda: server.gone == 1)
        server.script = [HELLO]
        assert (await ask(pool))[1] == b"hello"


async def test_a_closed_port_is_unreachable_and_says_why() -> None:
    async with served([]) as (_, pool):
        pass
    with pytest.raises(Unreachable) as caught:
        await ask(pool)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_a_name_is_tried_at_each_of_its_addresses() -> None:
    async with served([HELLO]) as (server, pool):
        pool._host = "localhost"
        assert (await ask(pool))[1] == b"hello"
        assert server.connections == 1

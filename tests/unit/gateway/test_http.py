"""One exchange: headers once, bodies bounded, streams kept alive."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from bedplate.errors import BodyTooLarge, CapacityError, InvalidRequest
from bedplate.gateway.bodies import BODIES_MAX, TENANT_SHARE, BodyRoom
from bedplate.gateway.http import KEEPALIVE, ClientGone, Exchange, Pacer


class Wire:
    """An ASGI connection without a network."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self.messages:
            return self.messages.pop(0)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def exchange(self, *headers: tuple[bytes, bytes]) -> Exchange:
        scope = {
            "type": "http", "method": "POST", "path": "/x", "headers": list(headers),
            "client": ("10.0.0.1", 5),
        }  # fmt: skip
        exchange = Exchange(scope, self.receive, self.send, "0" * 24)
        exchange.read_headers()
        return exchange

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")


def piece(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.parametrize(
    "name",
    [b"authorization", b"x-session-id", b"idempotency-key", b"x-bedplate-lane", b"content-length"],
)
def test_a_header_of_identity_sent_twice_is_refused(name: bytes) -> None:
    """F14: nobody can say which of the two counts."""
    with pytest.raises(InvalidRequest) as caught:
        Wire().exchange((name, b"a"), (name, b"a"))
    assert caught.value.param == name.decode()


def test_other_headers_may_repeat() -> None:
    assert Wire().exchange((b"accept", b"a"), (b"accept", b"b")).header(b"accept") == "b"


async def test_a_body_is_read_whole() -> None:
    assert await Wire(piece(b"abc")).exchange().body(size_max=3) == b"abc"
    wire = Wire(piece(b"a", more=True), piece(b"", more=True), piece(b"bc"))
    assert await wire.exchange().body(size_max=3) == b"abc"


async def test_a_declared_length_is_refused_before_a_byte_is_read() -> None:
    wire = Wire(piece(b"abcd"))
    with pytest.raises(BodyTooLarge):
        await wire.exchange((b"content-length", b"4")).body(size_max=3)
    assert len(wire.messages) == 1


async def test_an_undeclared_length_is_refused_at_the_bound() -> None:
    wire = Wire(*(piece(b"ab", more=True) for _ in range(100)))
    with pytest.raises(BodyTooLarge):
        await wire.exchange((b"transfer-encoding", b"chunked")).body(size_max=5)
    assert len(wire.messages) == 97
    with pytest.raises(BodyTooLarge):
        await Wire(piece(b"abcd")).exchange().body(size_max=3)


async def test_bodies_under_way_are_bounded_together_and_for_each_tenant() -> None:
    """Or one key fills memory by as many bodies without an end as there may be connections."""
    room = BodyRoom(8)
    share = BODIES_MAX * 8 // TENANT_SHARE
    with room.one("a") as first, room.one("a") as second, room.one("b") as other:
        first.grow(share)
        other.grow(share)
        with pytest.raises(CapacityError, match="of tenant a"):
            second.grow(1)
        with ExitStack() as more:
            for number in range(TENANT_SHARE - 3):
                more.enter_context(room.one(f"c{number}")).grow(share)
            exchange = Wire(piece(b"abcd", more=True), piece(b"efgh")).exchange()
            exchange.tenant = "d"
            assert await exchange.body(size_max=8, room=room) == b"abcdefgh"
            more.enter_context(room.one("e")).grow(share - 5)
            exchange = Wire(piece(b"abcd", more=True), piece(b"efgh")).exchange()
            exchange.tenant = "d"
            with pytest.raises(CapacityError, match="Too many request bodies are"):
                await exchange.body(size_max=8, room=room)
    assert room.taken == 0


async def test_a_client_that_leaves_while_sending_is_gone() -> None:
    exchange = Wire(piece(b"a", more=True)).exchange()
    with pytest.raises(ClientGone):
        await exchange.body(size_max=9)
    assert exchange.gone


async def test_an_unread_body_closes_the_connection_if_it_is_large() -> None:
    for headers, closes in (
        ([(b"content-length", b"12")], False),
        ([(b"content-length", b"99999999")], True),
        ([(b"transfer-encoding", b"chunked")], True),
        ([], False),
    ):
        wire = Wire()
        await wire.exchange(*headers).respond(401, [], b"no")
        assert ((b"connection", b"close") in wire.sent[0]["headers"]) is closes


async def test_a_response_carries_its_length_and_request() -> None:
    wire = Wire()
    exchange = wire.exchange()
    await exchange.respond(200, [], b"hello")
    headers = dict(wire.sent[0]["headers"])
    assert headers[b"content-length"] == b"5"
    assert headers[b"x-request-id"] == exchange.request_id.encode()
    assert wire.body == b"hello"
    assert exchange.complete


async def test_a_late_stream_is_opened_and_then_kept_alive() -> None:
    wire = Wire()
    exchange = wire.exchange()
    pacer = Pacer(10.0)
    pacer.watch(exchange, [(b"a", b"b")])
    began = exchange.wrote_at
    pacer.sweep(began + 9.9)
    await exchange.settle()
    assert wire.sent == []
    pacer.sweep(began + 10)
    await exchange.settle()
    assert wire.sent[0]["status"] == 200
    assert (b"a", b"b") in wire.sent[0]["headers"]
    assert wire.body == KEEPALIVE
    pacer.sweep(exchange.wrote_at + 9.9)
    await exchange.settle()
    assert wire.body == KEEPALIVE
    pacer.sweep(exchange.wrote_at + 10)
    await exchange.settle()
    assert wire.body == KEEPALIVE * 2
    pacer.release(exchange)
    pacer.sweep(exchange.wrote_at + 100)
    await exchange.settle()
    assert wire.body == KEEPALIVE * 2
    await pacer.stop()


async def test_a_write_that_waits_for_its_reader_gets_no_comment() -> None:
    """The pacer never queues behind a slow reader more than one write."""
    gate = asyncio.Event()
    wire = Wire()
    sent = wire.send

    async def slow(message: dict[str, Any]) -> None:
        await gate.wait()
        await sent(message)

    exchange = wire.exchange()
    exchange.send = slow
    pacer = Pacer(1.0)
    pacer.watch(exchange, [])
    for later in range(1, 5):
        pacer.sweep(exchange.wrote_at + 2 * later)
        await asyncio.sleep(0)
    gate.set()
    await exchange.settle()
    assert wire.body == KEEPALIVE
    await pacer.stop()

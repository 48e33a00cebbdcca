"""The HTTP client of one endpoint: bounded pools, keep-alive, errors mapped, nothing leaked.

Turns, calls that are no turns, and probes have a pool each: none can keep the others waiting.

A connection is used again only after a whole answer, and only with servers that keep it. Nothing is
sent twice from here: a server that breaks off may have begun, and who runs the turn next is for
core to say, which counts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from typing import NamedTuple, Protocol

import orjson
from yarl import URL

from bedplate.config.engines import OpenaiEngine
from bedplate.engines.base import JsonObject
from bedplate.engines.openai import faults
from bedplate.engines.openai.connection import Pool, Reply, Silent, TransportError, Unreachable
from bedplate.engines.openai.servers import SERVERS
from bedplate.errors import BedplateError, ConfigError, EngineLost, EngineProtocolError

_LOG = logging.getLogger(__name__)
DRAIN_S = 1.0
ERROR_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 256 << 20
"""Longest answer that is no stream: many long embeddings."""
CALLS_MAX = 32
"""Connections for tokenizing and embedding; more calls wait for one of them."""
PROBES_MAX = 2
_UNREACHABLE = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
FAILURES = (TransportError, OSError, TimeoutError)
"""What a connection can raise; `HttpClient.failed` maps all of it."""


class Broken(Protocol):
    """Told of a failed connection; `refused`: nobody listens at the address."""

    def __call__(self, problem: str, *, refused: bool) -> None:
        """Take note."""
        ...


class Page(NamedTuple):
    """A whole answer, or as much of it as was wanted."""

    status: int
    body: bytes


class HttpClient:
    """Posts JSON to one endpoint, and gets pages of it.

    `broken` is called when a connection failed, so that whoever watches the endpoint looks soon.
    At most one turn a slot runs there, so that many connections serve them.
    """

    def __init__(self, settings: OpenaiEngine, address: URL, name: str, broken: Broken) -> None:
        self._address = address
        self._name = name
        self._settings = settings
        self._broken = broken
        self.secret = settings.api_key.get_secret_value() if settings.api_key else ""
        self._keeps = SERVERS[settings.server].keeps_connections
        self._headers = _headers(address, self.secret, keeps=self._keeps)
        self._pools: tuple[Pool, ...] = ()

    def open(self) -> None:
        """Make the pools, in the running loop.

        Raises:
            ConfigError: `tls_ca` cannot be used.
        """
        assert not self._pools
        tls = _tls(self._settings) if self._address.scheme == "https" else None
        limits = (self._settings.slots, CALLS_MAX, PROBES_MAX)
        connect_s = self._settings.connect_seconds
        self._pools = tuple(
            Pool(self._address, limit=limit, keeps=self._keeps, connect_s=connect_s, tls=tls)
            for limit in limits
        )

    def close(self) -> None:
        """Cut every connection."""
        pools, self._pools = self._pools, ()
        for pool in pools:
            pool.close()

    async def post(
        self,
        url: URL,
        body: JsonObject,
        *,
        total_s: float,
        prompt_tokens: int,
        is_turn: bool = True,
    ) -> Reply:
        """Send a request; return when the headers of its answer are there.

        An endpoint may be silent for longer while it computes the prompt, until `answering` is
        called. Cancelling cuts the connection. Raises FAILURES: see `failed`.
        """
        if not self._pools:
            raise EngineLost(f"engine {self._name} is not started")
        data = orjson.dumps(body)
        path = url.raw_path_qs.encode("ascii")
        head = b"POST %b%b\r\nContent-Length: %d\r\n\r\n" % (path, self._headers, len(data))
        prompt_s = self._settings.prompt_token_seconds * prompt_tokens
        return await self._pools[0 if is_turn else 1].send(
            head + data, total_s=total_s, read_s=self._settings.timeout_seconds + prompt_s
        )

    def answering(self, reply: Reply) -> None:
        """The prompt is computed: from now on the silence between pieces counts."""
        reply.expect_within(self._settings.timeout_seconds)

    async def probe(self, url: URL, *, size_max: int) -> Page:
        """Get a page within the time of a connect. Raises FAILURES, which nobody is told of."""
        assert self._pools, "open the client first"
        within_s = self._settings.connect_seconds
        request = b"GET %b%b\r\n\r\n" % (url.raw_path_qs.encode("ascii"), self._headers)
        reply = await self._pools[2].send(request, total_s=within_s, read_s=within_s)
        try:
            return Page(reply.status, await reply.read(size_max))
        finally:
            reply.close()

    async def post_json(self, url: URL, body: JsonObject) -> JsonObject:
        """Post and return the answer's JSON object.

        Raises:
            EngineError, RequestError, CapacityError: By what the endpoint did; see `faults`.
        """
        try:
            reply = await self.post(
                url, body, total_s=self._settings.timeout_seconds, prompt_tokens=0, is_turn=False
            )
            if reply.status != 200:
                raise (await self.refusal(reply)).error(self._name)
            try:
                answer = orjson.loads(await reply.read(ANSWER_BYTES_MAX))
            finally:
                reply.close()
        except orjson.JSONDecodeError as error:
            raise EngineProtocolError(f"engine {self._name} sent a body that is no JSON") from error
        except FAILURES as error:
            raise self.failed(error) from error
        if not isinstance(answer, dict):
            raise EngineProtocolError(f"engine {self._name} sent a body that is no object")
        return answer

    async def refusal(self, reply: Reply) -> faults.Refusal:
        """Read an answer that is none."""
        self.answering(reply)
        try:
            body = await reply.read(ERROR_BYTES_MAX)
        finally:
            reply.close()
        return faults.Refusal(reply.status, body, reply.header(b"retry-after"), self.secret)

    async def drain(self, reply: Reply) -> None:
        """Read to the end of the body, so that the connection can be used again.

        The answer is whole and given out: what fails here costs a connection, not a turn.
        """
        if reply.at_end:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                while await reply.read_some():
                    pass
        except FAILURES as error:
            _LOG.debug("engine %s: connection not kept: %s", self._name, type(error).__name__)

    def failed(self, error: Exception) -> BedplateError:
        """Return the error to raise for one of FAILURES."""
        if isinstance(error, Unreachable):
            self._broken(f"takes no connection: {error}", refused=is_refused(error))
        elif isinstance(error, (TransportError, Silent)):
            self._broken("broke a connection off", refused=False)
        return faults.of_transport(error, self._name)


def is_refused(error: Unreachable) -> bool:
    """Say whether nobody listens at the address."""
    return error.errno in _UNREACHABLE


def _tls(settings: OpenaiEngine) -> ssl.SSLContext:
    """Return what checks an endpoint: its certificate by the CAs, and that it is for its host."""
    try:
        return ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as error:
        raise ConfigError(
            f"engine {settings.name}: tls_ca {settings.tls_ca} cannot be used: {error}."
            " Name a PEM file of certificates."
        ) from error


def _headers(address: URL, secret: str, *, keeps: bool) -> bytes:
    """Return the end of the request line, and the headers of every request."""
    lines = [
        " HTTP/1.1",
        f"Host: {address.raw_authority}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
    ]
    if secret:
        lines.append(f"Authorization: Bearer {secret}")
    if not keeps:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode()

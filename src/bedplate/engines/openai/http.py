"""The HTTP client of one endpoint: bounded pools, keep-alive, errors mapped, nothing leaked.

Turns, calls that are no turns, and probes have a pool each: none can keep the others waiting.

A connection is used again only after a whole answer, and only with servers that keep it. It is
dropped when idle for longer than KEEP_ALIVE_S, which is less than what they allow. Nothing is sent
twice from here: a server that breaks off may have begun, and who runs the turn next is for core to
say, which counts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Protocol

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from bedplate.config.engines import OpenaiEngine
from bedplate.engines.base import JsonObject
from bedplate.engines.openai import faults
from bedplate.engines.openai.servers import SERVERS
from bedplate.errors import BedplateError, EngineLost, EngineProtocolError

_LOG = logging.getLogger(__name__)
KEEP_ALIVE_S = 3.0
DRAIN_S = 1.0
ERROR_BYTES_MAX = 64 << 10
CALLS_MAX = 32
"""Connections for tokenizing and embedding; more calls wait for one of them."""
PROBES_MAX = 2
_UNREACHABLE = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
"""What a connection can raise; `HttpClient.failed` maps all of it."""


class Broken(Protocol):
    """Told of a failed connection; `refused`: nobody listens at the address."""

    def __call__(self, problem: str, *, refused: bool) -> None:
        """Take note."""
        ...


class HttpClient:
    """Posts JSON to one endpoint.

    `broken` is called when a connection failed, so that whoever watches the endpoint looks soon.
    At most one turn a slot runs there, so that many connections serve them.
    """

    def __init__(self, settings: OpenaiEngine, name: str, broken: Broken) -> None:
        self.headers = CIMultiDict({"Content-Type": "application/json"})
        self._name = name
        self._settings = settings
        self._broken = broken
        self._secret = settings.api_key.get_secret_value() if settings.api_key else ""
        if self._secret:
            self.headers["Authorization"] = f"Bearer {self._secret}"
        self._sessions: tuple[aiohttp.ClientSession, ...] = ()

    @property
    def probes(self) -> aiohttp.ClientSession:
        """The session for probes."""
        assert self._sessions, "open the client first"
        return self._sessions[2]

    def open(self) -> None:
        """Make the sessions, in the running loop."""
        assert not self._sessions
        limits = (self._settings.slots, CALLS_MAX, PROBES_MAX)
        keeps = SERVERS[self._settings.server].keeps_connections
        self._sessions = tuple(_session(limit, keeps=keeps) for limit in limits)

    async def close(self) -> None:
        """Close every connection."""
        sessions, self._sessions = self._sessions, ()
        for session in sessions:
            await session.close()

    async def post(
        self, url: URL, body: JsonObject, *, total_s: float, is_turn: bool = True
    ) -> aiohttp.ClientResponse:
        """Send a request; return when the headers of its answer are there.

        Cancelling closes the connection. Raises what aiohttp raises: see `failed`.
        """
        if not self._sessions:
            raise EngineLost(f"engine {self._name} is not started")
        session = self._sessions[0 if is_turn else 1]
        data = orjson.dumps(body)
        timeout = aiohttp.ClientTimeout(
            total=total_s,
            sock_connect=self._settings.connect_seconds,
            sock_read=self._settings.timeout_seconds,
        )
        return await session.post(
            url, data=data, headers=self.headers, timeout=timeout, allow_redirects=False
        )

    async def post_json(self, url: URL, body: JsonObject) -> JsonObject:
        """Post and return the answer's JSON object.

        Raises:
            EngineError, RequestError, CapacityError: By what the endpoint did; see `faults`.
        """
        try:
            response = await self.post(
                url, body, total_s=self._settings.timeout_seconds, is_turn=False
            )
            if response.status != 200:
                raise (await self.refusal(response)).error(self._name)
            try:
                answer = orjson.loads(await response.read())
            finally:
                response.close()
        except orjson.JSONDecodeError as error:
            raise EngineProtocolError(f"engine {self._name} sent a body that is no JSON") from error
        except FAILURES as error:
            raise self.failed(error) from error
        if not isinstance(answer, dict):
            raise EngineProtocolError(f"engine {self._name} sent a body that is no object")
        return answer

    async def refusal(self, response: aiohttp.ClientResponse) -> faults.Refusal:
        """Read an answer that is none."""
        try:
            body = await response.content.read(ERROR_BYTES_MAX)
        finally:
            response.close()
        return faults.Refusal(
            response.status, body, response.headers.get("Retry-After"), self._secret
        )

    async def drain(self, response: aiohttp.ClientResponse) -> None:
        """Read to the end of the body, so that the connection can be used again.

        The answer is whole and given out: what fails here costs a connection, not a turn.
        """
        content = response.content
        if content.at_eof():
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                while not content.at_eof():
                    await content.readany()
        except FAILURES as error:
            _LOG.debug("engine %s: connection not kept: %s", self._name, type(error).__name__)

    def failed(self, error: Exception) -> BedplateError:
        """Return the error to raise for one of FAILURES."""
        if isinstance(error, aiohttp.ClientConnectorError):
            problem = f"takes no connection: {error.strerror or 'unreachable'}"
            self._broken(problem, refused=error.errno in _UNREACHABLE)
        elif isinstance(error, aiohttp.ClientConnectionError):
            self._broken("broke a connection off", refused=False)
        return faults.of_transport(error, self._name)


def _session(limit: int, *, keeps: bool) -> aiohttp.ClientSession:
    if keeps:
        connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEP_ALIVE_S)
    else:
        connector = aiohttp.TCPConnector(limit=limit, force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )

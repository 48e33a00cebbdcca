"""The HTTP client of one endpoint: one session, keep-alive, errors mapped, nothing leaked.

A connection is used again only after a whole answer. It is dropped when idle for longer than
KEEP_ALIVE_S, which is less than what most servers allow. A server may still close it at the moment
a request is sent on it (llama.cpp's does so after each stream): the request then goes out again on
another connection, as it cannot have begun. On a new one a break is a failure like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from bedplate.config.engines import OpenaiEngine
from bedplate.engines.base import JsonObject
from bedplate.engines.openai import faults
from bedplate.errors import BedplateError, EngineLost, EngineProtocolError

_LOG = logging.getLogger(__name__)
KEEP_ALIVE_S = 3.0
DRAIN_S = 1.0
ERROR_BYTES_MAX = 64 << 10
STALE_MAX = 64
"""Closed connections that one request may meet before it gives up."""
_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
"""What a connection can raise; `HttpClient.failed` maps all of it."""


class _Sent:
    """How one request went out: `reused` is True on a connection that had served before."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


class HttpClient:
    """Posts JSON to one endpoint.

    `suspect` is called when a connection failed, so that whoever watches the endpoint looks soon.
    """

    def __init__(self, settings: OpenaiEngine, suspect: Callable[[], None]) -> None:
        self.headers = CIMultiDict({"Content-Type": "application/json"})
        self._name = settings.name
        self._settings = settings
        self._suspect = suspect
        self._secret = settings.api_key.get_secret_value() if settings.api_key else ""
        if self._secret:
            self.headers["Authorization"] = f"Bearer {self._secret}"
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> aiohttp.ClientSession:
        """Make the session, in the running loop."""
        assert self._session is None
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            trace_configs=[trace],
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, url: URL, body: JsonObject, *, total_s: float) -> aiohttp.ClientResponse:
        """Send a request; return when the headers of its answer are there.

        Cancelling closes the connection. Raises what aiohttp raises: see `failed`.
        """
        if self._session is None:
            raise EngineLost(f"engine {self._name} is not started")
        data = orjson.dumps(body)
        timeout = aiohttp.ClientTimeout(
            total=total_s,
            sock_connect=self._settings.connect_seconds,
            sock_read=self._settings.timeout_seconds,
        )
        stale = 0
        while True:
            sent = _Sent()
            try:
                return await self._session.post(
                    url,
                    data=data,
                    headers=self.headers,
                    timeout=timeout,
                    allow_redirects=False,
                    trace_request_ctx=sent,
                )
            except _CLOSED:
                stale += 1
                if not sent.reused or stale > STALE_MAX:
                    raise

    async def post_json(self, url: URL, body: JsonObject) -> JsonObject:
        """Post and return the answer's JSON object.

        Raises:
            EngineError, RequestError, CapacityError: By what the endpoint did; see `faults`.
        """
        try:
            response = await self.post(url, body, total_s=self._settings.timeout_seconds)
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
        if isinstance(error, aiohttp.ClientConnectionError):
            self._suspect()
        return faults.of_transport(error, self._name)


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    if isinstance(context.trace_request_ctx, _Sent):
        context.trace_request_ctx.reused = True

"""The ASGI application: routes, and the one place where an error becomes an answer.

A plain ASGI callable: no middleware, no request or response objects of a framework, so that what a
call costs here is what stands here. The hot endpoint is `chat`; `endpoints` and `admin` are cold.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bedplate.core.ids import TenantId
from bedplate.errors import BedplateError, CapacityError, NotAllowed, NotAuthenticated
from bedplate.gateway.admin import CARDS, STATE, Admin
from bedplate.gateway.audit import CLIENT_ERROR, REFUSED
from bedplate.gateway.chat import ChatEndpoint
from bedplate.gateway.endpoints import (
    MODELS,
    PROGRESS,
    SESSIONS,
    Embeddings,
    Health,
    Models,
    Sessions,
)
from bedplate.gateway.errors_http import (
    MethodNotAllowed,
    UnknownPath,
    error_body,
    error_headers,
    internal_error,
)
from bedplate.gateway.http import ClientGone, Exchange, Receive, Scope, Send
from bedplate.gateway.limits import limit_headers
from bedplate.gateway.metrics import CLIENT_GONE, Metrics, runtime_families
from bedplate.gateway.parts import Parts
from bedplate.gateway.slices import SLICE, SLICES, Slices

SERIAL_BYTES = 12
CHAT = "/v1/chat/completions"
OTHER_APIS = ("/v1/responses", "/v1/completions")
"""OpenAI's other ways to ask for an answer, which clients may try."""

Handler = Callable[[Exchange], Awaitable[None]]

log = logging.getLogger("bedplate.gateway")


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: its name in metrics, and what handles each method."""

    name: str
    methods: Mapping[str, Handler]

    @property
    def allow(self) -> tuple[str, ...]:
        """Methods in the form of an Allow header."""
        names = set(self.methods) | {"OPTIONS"}
        if "GET" in names:
            names.add("HEAD")
        return tuple(sorted(names))


_OPERATORS = (STATE, SLICES)
"""Endpoints that a client is not told of."""


class Gateway:
    """Serves one runtime over HTTP."""

    def __init__(self, parts: Parts, cold: Mapping[str, Route], trees: Mapping[str, Route]) -> None:
        """Make the application from its endpoints.

        `cold` are those by exact path, besides chat completions; `trees` those by leading path,
        whose handlers read the rest of it.
        """
        self.parts = parts
        chat = Route("chat", {"POST": ChatEndpoint(parts).post})
        self._exact: dict[str, Route] = {CHAT: chat, **cold}
        self._trees = tuple(trees.items())
        self.idle = asyncio.Event()
        """Set once, while the gateway drains, when no request is open any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        if scope["type"] != "http":
            raise ValueError(f"only http is served, not {scope['type']}")
        exchange = Exchange(scope, receive, send, self.parts.words.draw(SERIAL_BYTES))
        counts = self.parts.counts
        counts.open += 1
        route = self._exact.get(exchange.path) or self._tree(exchange.path)
        try:
            await self._handle(exchange, route)
        except ClientGone:
            exchange.status = CLIENT_GONE
        except BedplateError as error:
            await self._fail(exchange, error)
        except Exception as error:  # noqa: BLE001 - the boundary: logged, and answered with 500
            # The message of a foreign error may hold a prompt; its type and place do not.
            log.error(
                "unexpected %s request=%s tenant=%s path=%s\n%s",
                type(error).__name__,
                exchange.request_id,
                exchange.tenant,
                exchange.path[:128],
                "".join(traceback.format_tb(error.__traceback__)),
            )
            await self._fail(exchange, internal_error(exchange.request_id))
        finally:
            counts.open -= 1
            if self.parts.draining and not counts.open:
                self.idle.set()
            name = route.name if route is not None else "other"
            status = exchange.status or CLIENT_GONE  # 0: the call was cut at shutdown
            counts.request(name, exchange.tenant, exchange.lane, status)

    def begin_drain(self) -> None:
        """Refuse new calls from now on."""
        self.parts.draining = True
        if not self.parts.counts.open:
            self.idle.set()

    async def close(self) -> None:
        """End what runs beside the calls, and note what was still counted."""
        await self.parts.pacer.stop()
        self.parts.turned_away.close()

    def _tree(self, path: str) -> Route | None:
        for prefix, route in self._trees:
            if path.startswith(prefix) and len(path) > len(prefix):
                return route
        return None

    async def _handle(self, exchange: Exchange, route: Route | None) -> None:
        exchange.read_headers()
        if route is None:
            raise UnknownPath(self._no_endpoint(exchange.path))
        method = exchange.scope["method"]
        handler = route.methods.get("GET" if method == "HEAD" else method)
        if handler is not None:
            await handler(exchange)
        elif method == "OPTIONS":
            await exchange.respond(204, [(b"allow", ", ".join(route.allow).encode("ascii"))], b"")
        else:
            raise MethodNotAllowed(method[:16], exchange.path[:128], route.allow)

    def _no_endpoint(self, path: str) -> str:
        """Say what to call instead of a path that is no endpoint."""
        if path in OTHER_APIS:
            return f"{path} is not served; use {CHAT}."
        if not f"{path}/".startswith("/v1/"):
            return f"There is no endpoint {path[:128]!r}. The API begins with /v1."
        known = sorted(
            name for name in self._exact if name.startswith("/v1/") and name not in _OPERATORS
        )
        known += sorted(
            f"{prefix}{{id}}" for prefix, _ in self._trees if not prefix.startswith("/v1/admin/")
        )
        if any(prefix == SESSIONS for prefix, _ in self._trees):
            known.append(f"{SESSIONS}{{id}}{PROGRESS}")
        return f"There is no endpoint {path[:128]!r}. There are {', '.join(known)}."

    async def _fail(self, exchange: Exchange, error: BedplateError) -> None:
        """Tell the client: by status, or by the last event of a stream that is open already."""
        status = error.http_status
        if status < 500 and error.code != UnknownPath.code:
            kind = REFUSED if isinstance(error, NotAuthenticated | NotAllowed) else CLIENT_ERROR
            self.parts.turned_away.add(kind, exchange.tenant, error, exchange.peer)
        if status >= 500 and not isinstance(error, CapacityError):
            log.warning(
                "failed request=%s tenant=%s status=%d code=%s",
                exchange.request_id,
                exchange.tenant,
                status,
                error.code,
            )
        await exchange.settle()
        if exchange.gone:
            exchange.status = CLIENT_GONE
        elif not exchange.started:
            headers = error_headers(error)
            if status == 429 and exchange.tenant:
                headers += limit_headers(self.parts.view.limits(TenantId(exchange.tenant)))
            await exchange.respond(status, headers, error_body(error))
        elif not exchange.complete:
            assert exchange.streams, "only a stream is sent in pieces"
            await exchange.write(b"data: " + error_body(error) + b"\n\n", more=False)
        exchange.status = exchange.status if exchange.gone else status


def make_gateway(parts: Parts) -> Gateway:
    """Put the endpoints together.

    Sessions that end are forgotten here too: by recognition, and by the record of contents.
    """
    metrics = Metrics(
        parts.counts.families, lambda: runtime_families(parts.runtime.stats()), parts.view.families
    )
    models, embeddings, sessions = Models(parts), Embeddings(parts), Sessions(parts)
    health, admin, parted = Health(parts, metrics), Admin(parts), Slices(parts)
    parts.runtime.on_session_end(parts.recogniser.forget)
    parts.runtime.on_session_end(parts.contents.forget)
    exact = {
        "/v1/models": Route("models", {"GET": models.list}),
        "/v1/embeddings": Route("embeddings", {"POST": embeddings.post}),
        "/v1/sessions": Route("sessions", {"GET": sessions.list}),
        "/healthz": Route("health", {"GET": health.alive}),
        "/readyz": Route("health", {"GET": health.ready}),
        "/metrics": Route("metrics", {"GET": health.metrics}),
        STATE: Route("admin", {"GET": admin.state}),
        SLICES: Route("admin", {"GET": parted.show, "POST": parted.add}),
    }
    trees = {
        MODELS: Route("models", {"GET": models.get}),
        SESSIONS: Route(
            "sessions", {"GET": sessions.get, "DELETE": sessions.delete, "POST": sessions.progress}
        ),
        CARDS: Route("admin", {"POST": admin.card}),
        SLICE: Route("admin", {"DELETE": parted.remove}),
    }
    return Gateway(parts, exact, trees)

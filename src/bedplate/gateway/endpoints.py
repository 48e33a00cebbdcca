"""The cold endpoints for clients: models, embeddings, sessions, health, metrics."""

from __future__ import annotations

import asyncio

import orjson

from bedplate.core.events import ToolProgress
from bedplate.core.ids import BranchId, ModelId, SessionId
from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.engines.base import JsonObject
from bedplate.errors import (
    DeadlineExceeded,
    Draining,
    JournalError,
    QuotaExceeded,
    UnknownModel,
    UnknownSession,
)
from bedplate.gateway.deadline import due_at
from bedplate.gateway.door import check_model
from bedplate.gateway.errors_http import JSON_TYPE, UnknownPath
from bedplate.gateway.http import Exchange
from bedplate.gateway.metrics import CONTENT_TYPE, Metrics
from bedplate.gateway.openai.checks import integer, number, only_keys, refuse
from bedplate.gateway.openai.embeddings import embedding_body, read_embedding
from bedplate.gateway.openai.wire import (
    check_content_encoding,
    check_content_type,
    decode,
    model_of,
)
from bedplate.gateway.parts import Parts
from bedplate.gateway.ports import Runtime
from bedplate.gateway.recognition import checked_name

MODELS = "/v1/models/"
SESSIONS = "/v1/sessions/"
PROGRESS = "/progress"
PROGRESS_KEYS = frozenset(("eta_seconds", "branch"))
PROGRESS_BYTES_MAX = 4096
PROGRESS_PAUSE_NS = SECOND_NS
"""Between two words of one session about its tool."""
ETA_SECONDS_MAX = 7 * 24 * 3600
BRANCH_MAX = 1 << 31
COMMIT_SECONDS = 10.0
"""How long a call waits for the journal to take what it decided."""
_NO_STORE = (b"cache-control", b"no-store")


async def respond_json(exchange: Exchange, value: object, *, status: int = 200) -> None:
    """Send a JSON value."""
    await exchange.respond(status, [JSON_TYPE, _NO_STORE], orjson.dumps(value))


async def durable(runtime: Runtime, seq: int) -> None:
    """Return once a decision is on the disk.

    Raises:
        JournalError: not within `COMMIT_SECONDS`; the decision stands while the service lives.
    """
    try:
        async with asyncio.timeout(COMMIT_SECONDS):
            await runtime.committed(seq)
    except TimeoutError as error:
        raise JournalError(
            "It is done, but the journal cannot be written now, so a crash would undo it. "
            "Send the call again.",
            retry_after_s=2.0,
        ) from error


class Models:
    """`GET /v1/models`, `GET /v1/models/{id}`: what this key may call."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._created = parts.runtime.now_ns() // SECOND_NS

    async def list(self, exchange: Exchange) -> None:
        """Answer with the models that the key permits."""
        parts = self._parts
        credential = parts.door.admit(exchange)
        allowed = credential.models
        models = [m for m in parts.runtime.models() if not allowed or m in allowed]
        data = [self._object(model) for model in models]
        await respond_json(exchange, {"object": "list", "data": data})

    async def get(self, exchange: Exchange) -> None:
        """Answer with one model; its name may hold slashes."""
        parts = self._parts
        credential = parts.door.admit(exchange)
        model = ModelId(exchange.path.removeprefix(MODELS))
        if credential.models and model not in credential.models:
            raise UnknownModel("No such model for this key. GET /v1/models lists them.")
        parts.runtime.engine_for(model)
        await respond_json(exchange, self._object(model))

    def _object(self, model: ModelId) -> JsonObject:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "bedplate"}


class Embeddings:
    """`POST /v1/embeddings`, where the engine of the model has it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def post(self, exchange: Exchange) -> None:
        """Embed one text or several."""
        parts = self._parts
        credential = parts.door.admit(exchange)
        lane = parts.door.lane(exchange, credential)
        exchange.lane = LANE_NAMES[lane]
        due = due_at(exchange)
        if parts.draining:
            raise Draining("The service is shutting down. Send the call to another one.")
        check_content_type(exchange.header(b"content-type"))
        check_content_encoding(exchange.header(b"content-encoding"))
        raw = await exchange.body(size_max=parts.body_bytes_max, room=parts.bodies)
        body = decode(raw)
        model = model_of(body)
        check_model(credential, model)
        engine = parts.runtime.engine_for(model)
        call = read_embedding(body, engine.capabilities)
        try:
            async with asyncio.timeout_at(due):
                found = await parts.runtime.embed(credential.tenant, lane, model, call.inputs)
        except TimeoutError:
            raise DeadlineExceeded(
                "The time that the caller gave this call is over, and it was stopped."
            ) from None
        await exchange.respond(200, [JSON_TYPE], embedding_body(call, found))


class Sessions:
    """`/v1/sessions`, `/v1/sessions/{id}` and its `/progress`: the tenant's own, and no others."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._told_ns: dict[SessionId, int] = {}
        parts.runtime.on_session_end(self._forget)

    def _forget(self, session: SessionId) -> None:
        self._told_ns.pop(session, None)

    async def list(self, exchange: Exchange) -> None:
        """Answer with the tenant's live sessions."""
        parts = self._parts
        credential = parts.door.admit(exchange)
        found = parts.view.sessions(credential.tenant)
        data = [self._shown(session, shown) for session, shown in found]
        await respond_json(exchange, {"object": "list", "data": data})

    async def get(self, exchange: Exchange) -> None:
        """Answer with one session: its branches, where their KV is, what its turns wait for."""
        session, shown = self._find(exchange)
        await respond_json(exchange, self._shown(session, shown))

    async def delete(self, exchange: Exchange) -> None:
        """End a session: its running turns stop, its KV is dropped. Durable when answered."""
        session, _ = self._find(exchange)
        runtime = self._parts.runtime
        runtime.check_writable()
        await durable(runtime, runtime.close_session(session, "closed"))
        name = exchange.path.removeprefix(SESSIONS)
        await respond_json(exchange, {"id": name, "object": "session", "deleted": True})

    async def progress(self, exchange: Exchange) -> None:
        """Take a client's word for how long its tool still runs: its KV is kept by that.

        It is advice, so the answer does not wait for the disk.
        """
        path = exchange.path.removeprefix(SESSIONS)
        name = path.removesuffix(PROGRESS)
        if name == path:
            raise UnknownPath(f"Sessions take a POST on {PROGRESS} only.")
        session, _ = self._find(exchange, name)
        check_content_type(exchange.header(b"content-type"))
        check_content_encoding(exchange.header(b"content-encoding"))
        body = decode(await exchange.body(size_max=PROGRESS_BYTES_MAX))
        only_keys("", body, PROGRESS_KEYS)
        if "eta_seconds" not in body:
            refuse("eta_seconds", "required: how long the tool still runs, 0 if nobody knows.")
        eta_s = number("eta_seconds", body["eta_seconds"], 0, ETA_SECONDS_MAX)
        branch = integer("branch", body.get("branch", -1), -1, BRANCH_MAX)
        self._check_branch(session, branch, name)
        runtime = self._parts.runtime
        runtime.check_writable()
        self._pace(session, runtime.now_ns())
        runtime.post(ToolProgress(session, BranchId(branch), round(eta_s * SECOND_NS)))
        await respond_json(exchange, {"id": name, "object": "session", "eta_seconds": eta_s})

    def _check_branch(self, session: SessionId, branch: int, name: str) -> None:
        """Refuse a branch that is not there; the session may have ended since the call began."""
        shown = self._parts.view.session(session)
        if shown is None:
            raise _unknown_session(name)
        if branch >= 0 and all(one["branch"] != branch for one in shown["branches"]):
            raise UnknownSession(
                f"This session has no branch {branch}; GET the session for those it has.",
                param="branch",
                code="branch_not_found",
            )

    def _pace(self, session: SessionId, now_ns: int) -> None:
        """Refuse word of a session that comes too soon after the last: each is a record."""
        since_ns = now_ns - self._told_ns.get(session, now_ns - PROGRESS_PAUSE_NS)
        if since_ns < PROGRESS_PAUSE_NS:
            raise QuotaExceeded(
                "Progress of a session is taken once a second.",
                retry_after_s=(PROGRESS_PAUSE_NS - since_ns) / SECOND_NS,
            )
        self._told_ns[session] = now_ns

    def _find(self, exchange: Exchange, path: str = "") -> tuple[SessionId, JsonObject]:
        """Return the open session that the path names; another tenant's is as unknown as none."""
        parts = self._parts
        credential = parts.door.admit(exchange)
        name = checked_name(path or exchange.path.removeprefix(SESSIONS))
        session = parts.recogniser.find(credential.tenant, name)
        shown = parts.view.session(session)
        if shown is None:
            raise _unknown_session(name)
        return session, shown

    def _shown(self, session: SessionId, shown: JsonObject) -> JsonObject:
        """Return a session under the name by which its client knows it."""
        return {"object": "session", **shown, "id": self._parts.recogniser.public_id(session)}


def _unknown_session(name: str) -> UnknownSession:
    return UnknownSession(
        f"No session {name!r}: it ended or never existed. "
        "GET /v1/sessions lists the tenant's live sessions."
    )


class Health:
    """`/healthz`, `/readyz`, `/metrics`: for probes and scrapers, no key needed."""

    def __init__(self, parts: Parts, metrics: Metrics) -> None:
        self._parts = parts
        self._metrics = metrics

    async def alive(self, exchange: Exchange) -> None:
        """Answer 200 while the process serves at all."""
        await respond_json(exchange, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """Answer 200 while a new call has a chance, else 503."""
        if self._parts.draining:
            await respond_json(exchange, {"status": "draining"}, status=503)
        elif not self._parts.runtime.ready:
            await respond_json(exchange, {"status": "not ready"}, status=503)
        else:
            await respond_json(exchange, {"status": "ready"})

    async def metrics(self, exchange: Exchange) -> None:
        """Answer with one scrape."""
        await exchange.respond(200, [(b"content-type", CONTENT_TYPE)], self._metrics.render())

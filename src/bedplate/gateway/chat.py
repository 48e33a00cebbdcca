"""`POST /v1/chat/completions`: the journey of one call.

    credential, lane → bounded body → model, engine → checked request → idempotency key
        → place in a session → engine counts the prompt → submit → stream of outputs → bytes

What a call holds (its idempotency key, its branch, its turn) is let go on every way out. The branch
learns the answer before the last byte is sent, since the client's next turn may follow at once.

Leaving (F09): one task a call waits for the disconnect and gives the turn up, wherever it is:
queued, before the first byte, in mid-stream, or unstreamed. Slow readers: a write returns when the
connection has room, and until then nothing more is taken from the turn, whose bounded buffer holds
its engine.
"""

from __future__ import annotations

import asyncio
import hashlib

from bedplate.core.ids import TenantId, TurnId
from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import MILLISECOND_NS, SECOND_NS
from bedplate.engines.base import Engine, Finished
from bedplate.errors import Draining, IdempotencyConflict, InvalidRequest
from bedplate.gateway.deadline import due_at
from bedplate.gateway.door import check_model
from bedplate.gateway.errors_http import JSON_TYPE, Header
from bedplate.gateway.http import ClientGone, Exchange
from bedplate.gateway.idempotency import NOTE_KIND as ANSWERED
from bedplate.gateway.idempotency import Fresh, Running, Stored, hash_body, in_progress
from bedplate.gateway.limits import limit_headers
from bedplate.gateway.openai.completion import Collector
from bedplate.gateway.openai.stream import ChunkEncoder, Identity
from bedplate.gateway.openai.wire import (
    ChatCall,
    check_content_encoding,
    check_content_type,
    decode,
    model_of,
    read_chat,
)
from bedplate.gateway.parts import Parts
from bedplate.gateway.ports import Stream
from bedplate.gateway.recognition import NOTE_KIND as RECOGNISED
from bedplate.gateway.recognition import SESSION_HEADER, Placement
from bedplate.journal import Content, content_hash
from bedplate.runtime.turns import Call

STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_STREAM_START = b"data: "


class ChatEndpoint:
    """Serves chat completions; one object for all calls."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fingerprints: dict[str, str] = {}

    async def post(self, exchange: Exchange) -> None:
        """Handle one call.

        Raises:
            BedplateError: what the client is to be told; the status is not sent yet, or the stream
                is open and lacks its end.
            ClientGone: there is nobody to tell.
        """
        parts = self._parts
        credential = parts.door.admit(exchange)
        lane = parts.door.lane(exchange, credential)
        exchange.lane = LANE_NAMES[lane]
        if parts.draining:
            raise Draining("The service is shutting down. Send the call to another one.")
        check_content_type(exchange.header(b"content-type"))
        check_content_encoding(exchange.header(b"content-encoding"))
        raw = await exchange.body(size_max=parts.body_bytes_max, room=parts.bodies)
        body = decode(raw)
        model = model_of(body)
        check_model(credential, model)
        engine = parts.runtime.engine_for(model)
        call = read_chat(body, model, engine.capabilities)
        fingerprint = self._fingerprint(engine)
        turn = _Turn(parts, exchange, engine, call, (credential.tenant, lane, fingerprint))
        named = exchange.header(b"x-session-id") or ""
        await turn.serve(hash_body(exchange.path, raw, session=named))

    def _fingerprint(self, engine: Engine) -> str:
        """Return OpenAI's word for the backend that answered: engine, model and its kind of KV."""
        found = self._fingerprints.get(engine.name)
        if found is None:
            text = f"{engine.name}\n{engine.model}\n{engine.capabilities.kv}"
            found = "fp_" + hashlib.sha256(text.encode()).hexdigest()[:10]
            self._fingerprints[engine.name] = found
        return found


class _Turn:
    """One call from its checked request to its last byte."""

    __slots__ = (
        "_call", "_claim", "_due_at", "_engine", "_exchange", "_fingerprint", "_lane", "_parts",
        "_placement", "_sent", "_stream", "_tenant", "_turn",
    )  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        exchange: Exchange,
        engine: Engine,
        call: ChatCall,
        caller: tuple[TenantId, int, str],
    ) -> None:
        self._parts = parts
        self._exchange = exchange
        self._engine = engine
        self._call = call
        self._due_at = due_at(exchange)
        self._tenant, self._lane, self._fingerprint = caller
        self._turn = TurnId("t-" + exchange.serial)
        self._claim: Fresh | None = None
        self._placement: Placement | None = None
        self._stream: Stream | None = None
        self._sent: list[bytes] = []

    async def serve(self, body_hash: bytes) -> None:
        key = self._exchange.header(b"idempotency-key")
        if key is None:
            await self._run(body_hash)
            return
        table = self._parts.idempotency
        now_ns = self._parts.runtime.now_ns()
        claim = table.begin(self._tenant, key, body_hash, self._turn, now_ns)
        if isinstance(claim, Running):
            raise in_progress(claim)
        if isinstance(claim, Stored):
            await self._replay(claim)
            return
        self._claim = claim
        try:
            await self._run(body_hash)
        finally:
            if self._claim is not None:
                table.release(self._tenant, self._claim)

    async def _run(self, body_hash: bytes) -> None:
        parts = self._parts
        request = self._call.request
        placement = parts.recogniser.match(
            self._tenant,
            request.model,
            request,
            self._session_name(),
            parts.runtime.now_ns(),
            turn=self._turn,
            body_hash=body_hash,
        )
        self._placement = placement
        try:
            lineage = placement.lineage(self._lane)
            prompt = await self._engine.prepare(request, lineage)
            contents = self._record_call(placement)
            call = Call(
                self._turn, lineage, request, prompt, contents, self._answered, self._due_at
            )
            stream = parts.runtime.submit(call)
            self._stream = stream
            watcher = asyncio.create_task(self._watch(stream))
            try:
                if self._call.stream:
                    await self._send_stream(stream, placement)
                else:
                    await self._send_whole(stream, placement)
            finally:
                watcher.cancel()
                stream.cancel("shutdown")  # changes nothing unless this call was cut short
        finally:
            if self._placement is not None:
                self._unanswered(placement)

    def _unanswered(self, placement: Placement) -> None:
        """Let go of the branch; a session whose only turn failed ends, for nobody can name it."""
        parts = self._parts
        parts.recogniser.turn_ended(
            placement, None, parts.runtime.now_ns(), disconnected=self._exchange.gone
        )
        session = placement.session
        if session not in parts.recogniser and parts.view.session(session) is not None:
            parts.runtime.close_session(session, "unanswered")

    def _session_name(self) -> str | None:
        header = self._exchange.header(b"x-session-id")
        named = self._call.session
        if header is not None and named is not None and header != named:
            raise InvalidRequest(
                f"{SESSION_HEADER} and session_id name two sessions. Send one of them.",
                param="session_id",
            )
        return named if header is None else header

    async def _watch(self, stream: Stream) -> None:
        await self._exchange.gone_away()
        if not self._exchange.complete:
            self._exchange.gone = True
            stream.cancel("client_cancelled")

    async def _send_whole(self, stream: Stream, placement: Placement) -> None:
        collector = Collector()
        async for outputs in stream:
            collector.add(outputs)
        if collector.finished is None:
            raise ClientGone
        body = collector.body(self._identity(stream))
        await self._end(collector.finished, placement, body)
        await self._exchange.respond(200, [JSON_TYPE, *self._headers(stream, placement)], body)

    async def _send_stream(self, stream: Stream, placement: Placement) -> None:
        exchange = self._exchange
        encoder = ChunkEncoder(self._identity(stream), include_usage=self._call.include_usage)
        exchange.streams = True
        early = STREAM_HEADERS + self._headers(None, placement)
        self._parts.pacer.watch(exchange, early)
        try:
            async for outputs in stream:
                data = encoder.encode(outputs)
                if not data:
                    continue
                if self._claim is not None:
                    self._sent.append(data)
                if encoder.finished is not None:
                    await self._end(encoder.finished, placement, b"".join(self._sent))
                await exchange.settle()
                if not exchange.started:
                    await exchange.start(200, STREAM_HEADERS + self._headers(stream, placement))
                await exchange.write(data, more=encoder.finished is None)
        finally:
            self._parts.pacer.release(exchange)
        if encoder.finished is None:
            raise ClientGone

    def _answered(self, finished: Finished) -> None:
        """Let the branch learn the answer, in the same commit as the turn's end."""
        placement = self._placement
        if placement is None:
            return
        parts = self._parts
        self._placement = None
        note = parts.recogniser.turn_ended(placement, finished.message, parts.runtime.now_ns())
        if note is not None:
            said = parts.contents.of_answer(placement, self._call.request, finished.message)
            note["content"] = said.hash
            kept = (said,) if parts.keeps_content else ()
            parts.runtime.note(RECOGNISED, self._tenant, placement.session, note, kept)

    async def _end(self, finished: Finished, placement: Placement, answer: bytes) -> None:
        """Count the tokens, and keep the response of a keyed call before its last byte is sent."""
        parts = self._parts
        parts.counts.tokens(self._tenant, self._exchange.lane, placement.model, finished)
        if self._claim is not None:
            await parts.runtime.committed(self._keep(placement, self._claim, answer))

    def _keep(self, placement: Placement, claim: Fresh, answer: bytes) -> int:
        """Store the response under the key: a repeat must not run again, after a crash neither."""
        parts = self._parts
        digest = content_hash(answer)
        parts.answers.keep(digest, answer)
        note = parts.idempotency.finish(
            self._tenant, claim, placement.session, digest, parts.runtime.now_ns()
        )
        self._claim = None
        content = Content(digest, self._tenant, placement.session, answer)
        kept = (content,) if parts.keeps_content else ()
        return parts.runtime.note(ANSWERED, self._tenant, placement.session, note, kept)

    async def _replay(self, stored: Stored) -> None:
        """Send a stored response again, as it was: a stream as a stream."""
        data = self._parts.answers.get(stored.content)
        if data is None:
            raise IdempotencyConflict(
                f"Turn {stored.turn} answered this call, and the answer is not kept any more. "
                "Use a new key for a new call.",
                code="idempotency_answer_gone",
            )
        streamed = data.startswith(_STREAM_START)
        headers = [
            *(STREAM_HEADERS if streamed else [JSON_TYPE]),
            (b"x-session-id", self._parts.recogniser.public_id(stored.session).encode("ascii")),
            (b"x-bedplate-turn", stored.turn.encode("ascii")),
            (b"idempotent-replayed", b"true"),
        ]
        await self._exchange.respond(200, headers, data)

    def _record_call(self, placement: Placement) -> tuple[Content, ...]:
        parts = self._parts
        contents = parts.contents.of_call(placement, self._call.request)
        if parts.keeps_content:
            return contents
        body = {"turn": self._turn, "hashes": [content.hash for content in contents]}
        parts.runtime.note("content", self._tenant, placement.session, body)
        return ()

    def _identity(self, stream: Stream) -> Identity:
        created = stream.arrival_ns // SECOND_NS
        answer_id = "chatcmpl-" + self._exchange.serial
        return Identity(answer_id, created, self._call.request.model, self._fingerprint)

    def _headers(self, stream: Stream | None, placement: Placement) -> list[Header]:
        headers = [
            (b"x-session-id", placement.public_id.encode("ascii")),
            (b"x-bedplate-turn", self._turn.encode("ascii")),
            (b"x-bedplate-branch", b"%d" % placement.branch),
        ]
        if stream is not None:
            headers.append((b"x-bedplate-queue-ms", b"%d" % (stream.queue_ns // MILLISECOND_NS)))
        headers += limit_headers(self._parts.view.limits(self._tenant))
        return headers

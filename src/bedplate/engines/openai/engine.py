"""The adapter: a turn's way to an OpenAI-compatible endpoint and back.

`run` posts the request, always streamed, and yields what each network read holds as one sequence.
It has no task of its own: cancelling whoever awaits the next item, or closing the iterator, closes
the connection, before the headers as well as in the middle of the answer, and the endpoint stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import aiohttp
from yarl import URL

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardUp, Event
from bedplate.core.ids import CardId, EntryId, ModelId, SessionId, SlotId
from bedplate.engines.base import (
    Capabilities,
    ChatRequest,
    Embeddings,
    Finished,
    JsonObject,
    Lineage,
    Output,
    Prompt,
    Started,
    StoredKv,
    TurnRun,
)
from bedplate.engines.openai import body as bodies
from bedplate.engines.openai.answer import Answer
from bedplate.engines.openai.health import Counters, Endpoint, Health
from bedplate.engines.openai.http import FAILURES, HttpClient
from bedplate.engines.openai.prompts import Items, Prompts, items_of
from bedplate.engines.openai.servers import SERVERS, capabilities_of
from bedplate.engines.openai.sse import EventSplitter
from bedplate.errors import (
    BedplateError,
    EngineLost,
    EngineProtocolError,
    InvalidRequest,
    PoolError,
)

_LOG = logging.getLogger(__name__)
PROBE_S = 2.0


class OpenAIEngine:
    """One endpoint as one card; an `Engine` with kv = "hints"."""

    def __init__(
        self,
        settings: OpenaiEngine,
        *,
        salt_secret: bytes | None = None,
        probe_interval_s: float = PROBE_S,
    ) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            settings: The engine's section of the configuration.
            salt_secret: Keeps tenants' cached prefixes apart at the endpoint. One that stays the
                same keeps its cache useful over a restart of this service; None draws a new one.
            probe_interval_s: Time between probes.
        """
        self._settings = settings
        self._kind = SERVERS[settings.server]
        self._capabilities = capabilities_of(settings)
        self._salt_secret = salt_secret or secrets.token_bytes(32)
        self._probe_interval_s = probe_interval_s
        self._card = CardId(settings.name)
        self._upstream_model = settings.upstream_model or settings.model
        base = settings.url.rstrip("/")
        root = base.removesuffix("/v1")
        self._chat_url = URL(f"{base}/chat/completions")
        self._embeddings_url = URL(f"{base}/embeddings")
        self._models_url = URL(f"{base}/models")
        self._tokenize_url = URL(f"{root}/tokenize")
        self._metrics_url = URL(f"{root}/metrics")
        self._left_out: frozenset[str] = frozenset()
        self._prompts = Prompts()
        self._counters = Counters()
        self._client = HttpClient(settings, self._suspect)
        self._health: Health | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name from the configuration."""
        return self._settings.name

    @property
    def model(self) -> ModelId:
        """Served model name, as clients write it."""
        return ModelId(self._settings.model)

    @property
    def capabilities(self) -> Capabilities:
        """What the server's kind can do, as corrected by the configuration."""
        return self._capabilities

    async def start(self, sink: Callable[[Event], None]) -> None:
        """Probe the endpoint and keep watching it; one that is down comes up when it answers."""
        assert self._health is None
        self._health = Health(
            self._endpoint(),
            self._card_up(),
            self._client.open(),
            sink,
            counters=self._counters,
            interval_s=self._probe_interval_s,
        )
        await self._health.probe()
        self._watch = asyncio.create_task(self._health.run(), name=f"health of {self.name}")

    async def stop(self) -> None:
        """Stop watching, send the last CardReport, close every connection."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        if self._health is not None and self._health.up:
            await self._health.last_report()
        self._health = None
        await self._client.close()

    async def prepare(self, request: ChatRequest, lineage: Lineage) -> Prompt:
        """Check the request against the capabilities and count it.

        Raises:
            InvalidRequest: The endpoint cannot do this; the message names the field.
        """
        bodies.check(request, self._capabilities, self.name)
        items = items_of(request)
        count = self._prompts.count(items, lineage)
        tokens, exact = count.tokens, False
        if self._capabilities.tokenizer:
            counted = await self._tokenize(request)
            if counted is not None:
                tokens, exact = counted, True
        return Prompt(
            tokens=tokens,
            reuse_tokens=min(count.reuse_tokens, tokens - 1),
            exact=exact,
            resumable=bodies.resumable(request, self._capabilities),
            payload=items,
        )

    async def run(self, turn: TurnRun) -> AsyncIterator[Sequence[Output]]:
        """Run the turn; see `Engine.run`.

        Started waits for the first delta that holds something, or for the end. Its cached tokens
        are what core expects: the endpoint's own count comes with its usage, in Finished.

        Raises:
            EngineLost, EngineTimeout, EngineProtocolError, EngineError: The endpoint failed.
            RequestError: It refuses the request.
            CapacityError: It has no room now (429, 503), with its Retry-After.
        """
        answer, splitter = Answer(turn.request.n), EventSplitter()
        response: aiohttp.ClientResponse | None = None
        started = ended = False
        finished: Finished | None = None
        self._counters.running += 1
        try:
            response = await self._post_chat(turn)
            while not ended:
                data = await response.content.readany()
                events = splitter.feed(data) if data else splitter.tail()
                outputs: list[Output] = [*answer.feed(events)]
                ended = answer.done or not data
                if ended and answer.complete:
                    finished = self._finish(turn, answer)
                    outputs.append(finished)
                if outputs:
                    if not started:
                        started = True
                        outputs.insert(0, _started(turn, answer))
                    yield outputs
            if finished is None:
                raise EngineLost(f"engine {self.name} ended the stream before the answer's end")
            await self._client.drain(response)
        except FAILURES as error:
            raise self._client.failed(error) from error
        finally:
            self._counters.running -= 1
            if started and finished is None:
                self._counters.add(turn.prompt.tokens, turn.expect_cached_tokens, answer.tokens)
            if response is not None:
                response.close()

    async def store_kv(
        self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId
    ) -> StoredKv:
        """Refuse: the endpoint keeps its KV itself."""
        raise self._no_kv()

    async def load_kv(self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId) -> int:
        """Refuse: the endpoint keeps its KV itself."""
        raise self._no_kv()

    async def drop_kv(self, card: CardId, slot: SlotId) -> None:
        """Refuse: the endpoint keeps its KV itself."""
        raise self._no_kv()

    async def forget(self, session: SessionId) -> None:
        """Drop what is remembered of an ended session."""
        self._prompts.forget(session)

    async def embed(self, inputs: Sequence[str]) -> Embeddings:
        """Embed texts at the endpoint.

        Raises:
            InvalidRequest: The endpoint has no embeddings, by its configuration.
            EngineError, RequestError, CapacityError: As for `run`.
        """
        if not self._capabilities.embeddings:
            raise InvalidRequest(f"engine {self.name} has no embeddings", param="model")
        body = {"model": self._upstream_model, "input": list(inputs), "encoding_format": "float"}
        answer = await self._client.post_json(self._embeddings_url, body)
        try:
            data = sorted(answer["data"], key=lambda item: int(item["index"]))
            vectors = tuple(tuple(map(float, item["embedding"])) for item in data)
            tokens = int(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineProtocolError(
                f"engine {self.name} sent embeddings that are none"
            ) from error
        if len(vectors) != len(inputs):
            raise EngineProtocolError(
                f"engine {self.name} sent {len(vectors)} embeddings for {len(inputs)} inputs"
            )
        self._counters.add(tokens, 0, 0)
        return Embeddings(vectors, tokens)

    def _endpoint(self) -> Endpoint:
        metrics = self._kind.metrics
        return Endpoint(
            name=self.name,
            model=self._upstream_model,
            models_url=self._models_url,
            metrics_url=self._metrics_url if metrics is not None else None,
            metric_names=metrics,
            headers=dict(self._client.headers),
            timeout_s=self._settings.connect_seconds,
        )

    def _card_up(self) -> CardUp:
        settings = self._settings
        return CardUp(
            card=self._card,
            model=self.model,
            partition=settings.partition,
            kv=self._capabilities.kv,
            can_cut=self._capabilities.can_cut,
            slots=settings.slots,
            running_max=settings.running_max,
            kv_tokens=settings.kv_tokens,
            context_tokens=settings.context_tokens,
            kv_bytes_per_token=0,
        )

    def _finish(self, turn: TurnRun, answer: Answer) -> Finished:
        finished = answer.finished(turn.prompt.tokens, turn.delivered)
        self._counters.add(finished.prompt_tokens, finished.cached_tokens, finished.out_tokens)
        items = turn.prompt.payload
        assert isinstance(items, Items)
        if turn.resume_tokens == 0:
            self._prompts.ended(items, turn.lineage, finished)
        return finished

    async def _post_chat(self, turn: TurnRun) -> aiohttp.ClientResponse:
        """Send the request; return the response with a stream to read.

        A field of ours that the endpoint refuses is left out from then on, once the request went
        through without it.
        """
        left_out = self._left_out
        salt = bodies.salt_of(turn.lineage.tenant, self._salt_secret)
        while True:
            body = bodies.chat_body(turn, self._upstream_model)
            bodies.add_service_fields(
                body, turn, self._kind, self._capabilities, salt=salt, left_out=left_out
            )
            response = await self._client.post(self._chat_url, body, total_s=turn.deadline_s)
            if response.status == 200:
                self._leave_out(left_out)
                return self._streaming(response)
            refusal = await self._client.refusal(response)
            refused = [
                name for name in bodies.OPTIONAL_FIELDS if name in body and refusal.names(name)
            ]
            if not refused:
                if "cache_salt" in body and refusal.names("cache_salt"):
                    raise EngineProtocolError(
                        f"engine {self.name} takes no cache_salt: set capabilities.salt to false"
                        " if its tenants may share cached prefixes"
                    )
                raise refusal.error(self.name)
            left_out = left_out | {*refused}

    def _leave_out(self, fields: frozenset[str]) -> None:
        for name in sorted(fields - self._left_out):
            _LOG.warning("engine %s takes no %s: it is left out from now on", self.name, name)
        self._left_out |= fields

    def _streaming(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        kind = response.headers.get("Content-Type", "")
        if not kind.startswith("text/event-stream"):
            response.close()
            raise EngineProtocolError(
                f"engine {self.name} does not stream: it answered with {kind or 'no type'}"
            )
        return response

    async def _tokenize(self, request: ChatRequest) -> int | None:
        """Count by the endpoint; None, and a word in the log, where it cannot."""
        body: JsonObject = {
            "model": self._upstream_model,
            "messages": list(request.messages),
            "add_generation_prompt": True,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        try:
            count = (await self._client.post_json(self._tokenize_url, body)).get("count")
        except BedplateError as error:
            _LOG.warning("engine %s: prompt is estimated: %s", self.name, error.message)
            return None
        return count if type(count) is int and count > 0 else None

    def _suspect(self) -> None:
        if self._health is not None:
            self._health.suspect()

    def _no_kv(self) -> PoolError:
        return PoolError(f"engine {self.name} keeps its KV itself: nothing is stored or loaded")


def _started(turn: TurnRun, answer: Answer) -> Started:
    usage = answer.usage
    if usage is not None:
        return Started(usage.prompt_tokens, usage.cached_tokens)
    tokens = turn.prompt.tokens
    return Started(tokens, min(turn.expect_cached_tokens, tokens))

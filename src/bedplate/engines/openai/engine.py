"""The adapter: a turn's way to an OpenAI-compatible endpoint and back.

`run` posts the request, always streamed, and yields what each network read holds as one sequence.
It has no task of its own: cancelling whoever awaits the next item, or closing the iterator, closes
the connection, before the headers as well as in the middle of the answer, and the endpoint stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import Event
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
    embedding_tokens_max,
    none_out,
)
from bedplate.engines.openai import body as bodies
from bedplate.engines.openai.answer import Answer
from bedplate.engines.openai.connection import Reply
from bedplate.engines.openai.http import FAILURES
from bedplate.engines.openai.prompts import Items, Prompts, items_of
from bedplate.engines.openai.replica import Replica
from bedplate.engines.openai.servers import capabilities_of
from bedplate.engines.openai.sse import EventSplitter
from bedplate.engines.openai.usage import (
    bounds_of,
    prompt_tokens_max,
    token_count,
)
from bedplate.errors import (
    BedplateError,
    CapacityError,
    EngineLost,
    EngineProtocolError,
    InvalidRequest,
    PoolError,
)

_LOG = logging.getLogger(__name__)
PROBE_S = 2.0


class OpenAIEngine:
    """Endpoints of one model, each a card; an `Engine` whose cards keep their KV themselves."""

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
            salt_secret: Keeps tenants' cached prefixes apart at the endpoints. One that stays the
                same keeps its cache useful over a restart of this service; None draws a new one.
            probe_interval_s: Time between probes of one endpoint.
        """
        self._settings = settings
        self._capabilities = capabilities_of(settings)
        self._salt_secret = salt_secret or secrets.token_bytes(32)
        self._probe_interval_s = probe_interval_s
        self._prompts = Prompts()
        places = zip(settings.card_names, settings.addresses, strict=True)
        replicas = [Replica(settings, name, address) for name, address in places]
        self._replicas = {replica.card: replica for replica in replicas}
        self._is_out: Callable[[CardId], bool] = none_out
        self._next_call = 0

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

    @property
    def problems(self) -> Mapping[CardId, str]:
        """What was last found wrong with each endpoint that is not up."""
        return {card: found.problem for card, found in self._replicas.items() if found.problem}

    async def start(
        self, sink: Callable[[Event], None], is_out: Callable[[CardId], bool] = none_out
    ) -> None:
        """Probe every endpoint and keep watching; one that is down comes up when it answers."""
        self._is_out = is_out
        interval_s = self._probe_interval_s
        starts = [r.start(sink, probe_interval_s=interval_s) for r in self._replicas.values()]
        await asyncio.gather(*starts)

    async def stop(self) -> None:
        """Stop watching, send the last CardReports, close every connection."""
        await asyncio.gather(*(replica.stop() for replica in self._replicas.values()))

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
            counted = await self._tokenize(request, prompt_tokens_max(request, items))
            if counted is not None:
                tokens, exact = counted, True
        least, most = (0, 0) if exact else (count.least_tokens, count.most_tokens)
        return Prompt(
            tokens=tokens,
            reuse_tokens=min(count.reuse_tokens, tokens - 1),
            exact=exact,
            resumable=bodies.resumable(request, self._capabilities),
            payload=items,
            least_tokens=least,
            most_tokens=most,
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
        replica = self._replicas[turn.card]
        client, counters = replica.client, replica.counters
        salt = bodies.salt_of(turn.lineage.tenant, self._salt_secret)
        answer = Answer(turn.request.n, client.secret, bounds_of(turn))
        splitter = EventSplitter()
        reply: Reply | None = None
        started = ended = False
        finished: Finished | None = None
        counters.running += 1
        try:
            reply = await replica.post_chat(turn, salt=salt)
            while not ended:
                data = await reply.read_some()
                events = splitter.feed(data) if data else splitter.tail()
                outputs: list[Output] = [*answer.feed(events)]
                ended = answer.done or not data
                if ended and answer.complete:
                    finished = self._finish(turn, answer)
                    outputs.append(finished)
                if outputs:
                    if not started:
                        started = True
                        client.answering(reply)
                        outputs.insert(0, _started(turn, answer))
                    yield outputs
            if finished is None:
                raise EngineLost(f"engine {replica.name} broke off before the answer's end")
            await client.drain(reply)
        except FAILURES as error:
            raise client.failed(error) from error
        finally:
            counters.running -= 1
            if finished is not None:
                new_tokens = finished.out_tokens - turn.resume_tokens
                counters.add(finished.prompt_tokens, finished.cached_tokens, new_tokens)
            elif started:
                counters.add(
                    turn.prompt.tokens + turn.resume_tokens,
                    turn.expect_cached_tokens,
                    answer.tokens,
                )
            if reply is not None:
                reply.close()

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
        """Embed texts at one endpoint, in turn; once more at another where that is lost or full.

        Raises:
            InvalidRequest: The endpoint has no embeddings, by its configuration.
            EngineError, RequestError, CapacityError: As for `run`.
        """
        if not self._capabilities.embeddings:
            raise InvalidRequest(f"engine {self.name} has no embeddings", param="model")
        body = {"input": list(inputs), "encoding_format": "float"}
        replica = self._any()
        try:
            answer = await replica.post_json(replica.embeddings_url, body)
        except (EngineLost, CapacityError) as error:
            first, replica = replica, self._any()
            if replica is first:
                raise  # a repeat at the same one would double the load of what is down
            _LOG.warning("engine %s: embeddings are tried once more: %s", self.name, error.message)
            answer = await replica.post_json(replica.embeddings_url, body)
        try:
            data = sorted(answer["data"], key=lambda item: int(item["index"]))
            vectors = tuple(tuple(map(float, item["embedding"])) for item in data)
            tokens = token_count(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise EngineProtocolError(
                f"engine {self.name} sent embeddings that are none"
            ) from error
        if len(vectors) != len(inputs):
            raise EngineProtocolError(
                f"engine {self.name} sent {len(vectors)} embeddings for {len(inputs)} inputs"
            )
        believed = min(tokens, embedding_tokens_max(inputs))
        if tokens > believed:
            _LOG.warning(
                "engine %s: it counts %d tokens for texts that can have %d: those are billed",
                self.name,
                tokens,
                believed,
            )
        replica.counters.add(believed, 0, 0)
        return Embeddings(vectors, believed)

    def _finish(self, turn: TurnRun, answer: Answer) -> Finished:
        finished = answer.finished(
            turn.prompt.tokens + turn.resume_tokens,
            turn.delivered,
            delivered_tokens=turn.resume_tokens,
        )
        if finished.unbelieved_tokens:
            _LOG.warning(
                "engine %s: turn %s: it counts %d tokens more than request and answer can have: %s",
                turn.card,
                turn.turn,
                finished.unbelieved_tokens,
                answer.claimed,
            )
        items = turn.prompt.payload
        assert isinstance(items, Items)
        if turn.resume_tokens == 0:
            self._prompts.ended(items, turn.lineage, finished)
        return finished

    async def _tokenize(self, request: ChatRequest, tokens_max: int) -> int | None:
        """Count by the endpoint; None, and a word in the log, where that is no count."""
        body: JsonObject = {
            "messages": list(request.messages),
            "add_generation_prompt": True,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        replica = self._any()
        try:
            count = (await replica.post_json(replica.tokenize_url, body)).get("count")
        except BedplateError as error:
            _LOG.warning("engine %s: prompt is estimated: %s", self.name, error.message)
            return None
        if type(count) is int and 0 < count <= tokens_max:
            return count
        _LOG.warning("engine %s: prompt is estimated: its tokenizer counts %.32r", self.name, count)
        return None

    def _any(self) -> Replica:
        """Return an endpoint for a call that is no turn: those that are up and in take turns."""
        replicas = tuple(self._replicas.values())
        up = [replica for replica in replicas if replica.up]
        choices = [replica for replica in up if not self._is_out(replica.card)] or up or replicas
        self._next_call += 1
        return choices[self._next_call % len(choices)]

    def _no_kv(self) -> PoolError:
        return PoolError(f"engine {self.name} keeps its KV itself: nothing is stored or loaded")


def _started(turn: TurnRun, answer: Answer) -> Started:
    usage = answer.usage
    if usage is not None:
        return Started(usage.prompt_tokens, usage.cached_tokens)
    tokens = turn.prompt.tokens + turn.resume_tokens
    return Started(tokens, min(turn.expect_cached_tokens, tokens))

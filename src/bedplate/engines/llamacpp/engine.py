"""The embedded engine: llama.cpp cards behind the engine seam.

Who does what: `fleet` and `card` own processes, `client` speaks HTTP, `prompting` makes ids and
`answer` reads them back, `transcript` remembers, `storing` moves KV between slots and the pool.
This module joins them into the life of a turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from bedplate.core.events import Event
from bedplate.core.ids import BranchId, CardId, EntryId, ModelId, SessionId, SlotId
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
    StoredPrefix,
    TurnRun,
    message_hash,
    none_out,
)
from bedplate.engines.llamacpp.answer import Answer
from bedplate.engines.llamacpp.client import CardClient
from bedplate.engines.llamacpp.fleet import Fleet
from bedplate.engines.llamacpp.grammar import must_call
from bedplate.engines.llamacpp.grammars import Grammars
from bedplate.engines.llamacpp.model import Model, licence_of, open_model
from bedplate.engines.llamacpp.packages import Licence
from bedplate.engines.llamacpp.prompting import Prompter, PromptIds, Room, finished_transcript
from bedplate.engines.llamacpp.request import (
    PARAMS,
    check_request,
    completion_body,
    extends_slot,
    is_resumable,
    line_to_keep,
    opening_body,
    reads_calls,
)
from bedplate.engines.llamacpp.settings import Settings
from bedplate.engines.llamacpp.special import Specials
from bedplate.engines.llamacpp.storing import Storing
from bedplate.engines.llamacpp.template import make_template
from bedplate.engines.llamacpp.transcript import Owner, Transcript, Transcripts, opening_name
from bedplate.errors import (
    EngineError,
    EngineLost,
    EngineTimeout,
    InvalidRequest,
    NoEngine,
    PoolError,
    SchemaNotKept,
)
from bedplate.pool import KvPool

_LOG = logging.getLogger(__name__)

TRANSCRIPT_BYTES_MAX = 64 << 20
"""Memory for the transcripts of all branches; what the pool holds too leaves first."""
SETTLE_SECONDS = 10.0
SETTLE_POLL_SECONDS = 0.02
CUT_SECONDS = 2.0
"""Longest time to cut a slot back: one token is computed, beside what the card runs."""


class LlamaCppEngine:
    """One model on the embedded cards of one gateway."""

    def __init__(self, settings: Settings, pool: KvPool | None = None) -> None:
        self._settings = settings
        self._pool = pool
        self._fleet: Fleet | None = None
        self._model: Model | None = None
        self._prompter: Prompter | None = None
        self._storing: Storing | None = None
        self._stops: tuple[str, ...] = ()
        self._transcripts = Transcripts(TRANSCRIPT_BYTES_MAX)
        self._grammars = Grammars()

    @property
    def name(self) -> str:
        """Name from the configuration."""
        return self._settings.name

    @property
    def model(self) -> ModelId:
        """Served model name, as clients write it."""
        return ModelId(self._settings.model)

    @property
    def licence(self) -> Licence | None:
        """Terms of the weights, where they are known; to be shown to the user."""
        return self._model.licence if self._model else licence_of(self._settings.path)

    @property
    def fleet(self) -> Fleet:
        """The cards, between `start` and `stop`."""
        if self._fleet is None:
            raise NoEngine(f"engine {self.name} is not started")
        return self._fleet

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do; `can_cut` is the model's and known after `start`."""
        return Capabilities(
            kv="full" if self._pool is not None else "none",
            tools=True,
            grammar=True,
            logprobs=True,
            embeddings=self._settings.embeddings,
            tokenizer=True,
            can_cut=self._model.can_cut if self._model else False,
            resumable=True,
            params=PARAMS,
        )

    @property
    def problems(self) -> Mapping[CardId, str]:
        """Why each card that is down is: how it ended, or why it does not start again."""
        cards = self._fleet.cards if self._fleet is not None else {}
        return {card.id: card.problem for card in cards.values() if card.problem}

    async def start(
        self, sink: Callable[[Event], None], is_out: Callable[[CardId], bool] = none_out
    ) -> None:
        """Verify the model and bring all cards up, in parallel; adopt those that still run.

        Raises:
            ConfigError: the model cannot be used, or another gateway has this engine's cards.
            EngineError: a card does not start; those that did are stopped again.
        """
        model = self._model = await asyncio.to_thread(open_model, self._settings)
        specials = Specials(model.special)
        template = make_template(self._settings.chat_template, model, specials)
        self._stops = template.stops
        room = Room(self._settings.kv_tokens, model.token_characters)
        self._prompter = Prompter(template, specials, self._tokenize, room)
        if self._pool is not None:
            self._storing = Storing(self._pool, model, self._settings, self._transcripts)
            self._storing.recall()
        folder = self._pool.folder if self._pool is not None else None
        self._fleet = Fleet(self._settings, model, slot_folder=folder, sink=sink, is_out=is_out)
        await self._fleet.start()

    async def stop(self) -> None:
        """End all cards, those that were adopted too."""
        if self._fleet is not None:
            await self._fleet.stop()
            self._fleet = None
        await self._grammars.close()

    async def prepare(self, request: ChatRequest, lineage: Lineage) -> Prompt:
        """Render and count the prompt; only messages that the branch does not know become tokens.

        Raises:
            InvalidRequest: something that this engine does not do, named.
            NoEngine: no card is up to count tokens.
        """
        check_request(request)
        grammar = await self._grammars.admit(request, lineage.tenant)
        known = await self._known(_owner(lineage))
        if known is None and lineage.fork_of >= 0:
            known = await self._known(_owner(lineage)._replace(branch=BranchId(lineage.fork_of)))
        assert self._prompter is not None
        payload = await self._prompter.ids_for(request, known=known, grammar=grammar)
        opening = payload.ids[: payload.opening * 4] if payload.reuse == 0 else b""
        return Prompt(
            tokens=payload.tokens,
            reuse_tokens=payload.reuse,
            exact=True,
            resumable=is_resumable(request, grammar),
            payload=payload,
            prefix=opening_name(lineage.tenant, self.model, opening) if opening else "",
            prefix_tokens=len(opening) // 4,
        )

    async def run(self, turn: TurnRun) -> AsyncIterator[Sequence[Output]]:
        """Run the turn on its card and slot. See `Engine.run`."""
        payload = turn.prompt.payload
        assert isinstance(payload, PromptIds)
        assert self._model is not None
        client = self.fleet.cards[turn.card].server()
        await self._resume(turn, payload)
        body = completion_body(turn, payload, self._stops)
        body["cache_prompt"] = self._model.can_cut or extends_slot(turn, payload)
        prompt_tokens = len(body["prompt"])
        if 0 < turn.limit_tokens <= payload.delivered.tokens:
            yield _all_delivered(payload, prompt_tokens)
            return
        deadline = time.monotonic() + turn.deadline_s
        if turn.prefix_tokens:
            yield [await self._store_opening(turn, payload, client, deadline)]
        answer = Answer(
            prompt_tokens=prompt_tokens,
            earlier=payload.delivered,
            fragments=self._model.fragments,
            tools=reads_calls(turn.request),
            logprobs=turn.request.top_logprobs if turn.request.logprobs else None,
            own_tokens=turn.prefix_tokens,
        )
        events = client.complete(body)
        try:
            while True:
                outputs = answer.feed(await _next_batch(events, turn, deadline))
                last = outputs[-1] if outputs else None
                if isinstance(last, Finished):
                    assert answer.ending is not None
                    await self._check(turn, answer, last)
                    hashed = message_hash(last.message)
                    transcript = finished_transcript(payload, hashed, answer.ending)
                    self._transcripts.put(_owner(turn.lineage), transcript)
                    yield outputs
                    return
                if outputs:
                    yield outputs
        finally:
            await events.aclose()
            if answer.started:
                ledger = self.fleet.ledgers[turn.card]
                own_tokens = min(answer.cached, turn.prefix_tokens)
                ledger.reused_own(own_tokens)
                if turn.prompted_before:
                    ledger.prompt_again(prompt_tokens, answer.cached - own_tokens)
            if not answer.over:
                await self._settle(turn, answer, prompt_tokens)

    async def store_kv(
        self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId
    ) -> StoredKv:
        """Copy the idle slot to the pool with its transcript."""
        return await self._moves().store(
            self.fleet.cards[card].server(), slot, _owner(lineage), entry
        )

    async def load_kv(self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId) -> int:
        """Fill the slot from the pool, verified before and by the server's own count after."""
        return await self._moves().load(
            self.fleet.cards[card].server(), slot, _owner(lineage), entry
        )

    async def drop_kv(self, card: CardId, slot: SlotId) -> None:
        """Empty the slot."""
        await self.fleet.cards[card].server().erase(slot)

    async def forget(self, session: SessionId) -> None:
        """Drop the transcripts of an ended session."""
        self._transcripts.forget(session)

    async def embed(self, inputs: Sequence[str]) -> Embeddings:
        """Embed texts, where the settings ask for it."""
        embedder = self.fleet.embedder
        if embedder is None:
            raise InvalidRequest(f"model {self.model} does not serve embeddings", param="model")
        return Embeddings(*await embedder.server().embed(inputs))

    async def _resume(self, turn: TurnRun, payload: PromptIds) -> None:
        """Bring `delivered` to what the client has, its ids from text where need be."""
        delivered = payload.delivered
        delivered.cut(turn.resume_tokens)
        if delivered.text and not delivered.exact:
            assert self._prompter is not None
            delivered.ids[:] = await self._prompter.text_ids(delivered.text)

    async def _store_opening(
        self, turn: TurnRun, payload: PromptIds, client: CardClient, deadline: float
    ) -> StoredPrefix:
        """Compute the opening alone and copy the slot; the turn then goes on from there.

        A slot can be stored whole only: now it holds the opening and no more.
        """
        opening = payload.ids[: turn.prefix_tokens * 4]
        await self._fill_slot(turn, client, opening, deadline)
        entry, tenant = turn.prefix_entry, turn.lineage.tenant
        try:
            stored = await self._moves().store_opening(
                client, turn.slot, tenant, entry, opening=opening
            )
        except PoolError as error:
            _LOG.warning("the opening of turn %s is not kept: %s", turn.turn, error.message)
            return StoredPrefix(0, 0)
        return StoredPrefix(*stored)

    async def _fill_slot(
        self, turn: TurnRun, client: CardClient, ids: bytes, deadline: float
    ) -> None:
        """Have the idle slot hold exactly `ids`; what the card does for that is no turn's."""
        events = client.complete(opening_body(turn, ids))
        ledger, tokens = self.fleet.ledgers[turn.card], len(ids) // 4
        last: JsonObject = {}
        try:
            while not last.get("stop"):
                last = (await _next_batch(events, turn, deadline))[-1]
        finally:
            await events.aclose()
            if not last.get("stop"):
                held = await self._free_slot(turn)
                ledger.unseen_prompt(held, 0)
                ledger.unseen_answer(int(held >= tokens))  # sampled at its end
        ledger.unseen_prompt(tokens, int(last["timings"]["cache_n"]))
        ledger.unseen_answer(int(last["tokens_predicted"]))

    async def _settle(self, turn: TurnRun, answer: Answer, prompt_tokens: int) -> None:
        """After a cut run, book what the server did unseen; leave what was given, to go on from.

        What is stored of a model with a window can be cut back no more: its slot is cut here.
        """
        assert self._model is not None
        ledger = self.fleet.ledgers[turn.card]
        held = await self._free_slot(turn)
        if not held:
            return
        if answer.started:
            ledger.unseen_answer(held - prompt_tokens + 1 - answer.counted)
            line = line_to_keep(turn)
            if not self._model.can_cut and 0 < len(line) // 4 < held:
                client = self.fleet.cards[turn.card].server()
                await self._fill_slot(turn, client, line, time.monotonic() + CUT_SECONDS)
        else:
            known = answer.cached or turn.expect_cached_tokens or turn.prefix_tokens
            ledger.unseen_prompt(held, known)

    async def _free_slot(self, turn: TurnRun) -> int:
        """Wait until the slot of a cut run is free; return what it holds, 0 if that is not seen."""
        card = self.fleet.cards[turn.card]
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    slot = (await card.server().slots())[turn.slot]
                    if not slot["is_processing"]:
                        break
                    await asyncio.sleep(SETTLE_POLL_SECONDS)
        except EngineError as error:
            _LOG.info("card %s: not seen to stop turn %s: %s", card.id, turn.turn, error.message)
            return 0
        except TimeoutError:
            _LOG.error("card %s does not stop turn %s", card.id, turn.turn)
            return 0
        return int(slot.get("n_prompt_tokens", 0))

    async def _check(self, turn: TurnRun, answer: Answer, end: Finished) -> None:
        """Check that the server kept to the grammar, where the model ended its answer itself."""
        payload = turn.prompt.payload
        assert isinstance(payload, PromptIds)
        by_client = answer.stop == "word" and turn.request.stop
        if payload.grammar is None or answer.stop == "limit" or by_client:
            return
        await self._grammars.check(payload.grammar, answer.text, turn.lineage.tenant)
        if must_call(turn.request) and not end.message.get("tool_calls"):
            raise SchemaNotKept("the engine gave no tool call although one was required")

    async def _tokenize(self, content: Sequence[str | int], first: bool) -> list[int]:
        return await self.fleet.tokenize(content, add_special=first)

    def _moves(self) -> Storing:
        if self._storing is None:
            raise EngineError(f"engine {self.name} has no pool")
        return self._storing

    async def _known(self, owner: Owner) -> Transcript | None:
        if self._storing is None:
            return self._transcripts.get(owner)
        return await self._storing.recalled(owner)


def _all_delivered(payload: PromptIds, prompt_tokens: int) -> list[Output]:
    """Return the end of a turn whose card was lost after its last token and before its end."""
    message = {"role": "assistant", "content": payload.delivered.text}
    tokens = payload.delivered.tokens
    return [
        Started(prompt_tokens, 0),
        Finished("length", prompt_tokens, 0, tokens, 0, exact=True, message=message),
    ]


async def _next_batch(
    events: AsyncIterator[list[JsonObject]], turn: TurnRun, deadline: float
) -> list[JsonObject]:
    """Return the next events of a run; `deadline` is on the monotonic clock."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await anext(events)
    except StopAsyncIteration:
        raise EngineLost(f"card {turn.card} ended the answer of turn {turn.turn}") from None
    except TimeoutError:
        raise EngineTimeout(f"turn {turn.turn} did not end in {turn.deadline_s:.0f} s") from None


def _owner(lineage: Lineage) -> Owner:
    return Owner(lineage.tenant, lineage.session, lineage.branch)

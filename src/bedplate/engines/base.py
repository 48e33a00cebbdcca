"""The engine seam: one protocol, with capabilities declared, never guessed.

An engine object lives in the gateway's process and owns one or more cards of one model. The runtime
calls it; it tells the runtime about its cards through the `sink` given to `start`. Everything it
raises is an `EngineError`, `CapacityError`, `PoolError` or `RequestError` of `bedplate.errors`.

Life of a turn at this seam:

    prepare(request, lineage)  -> Prompt        counts tokens, finds what the branch already
    computed run(TurnRun)               -> outputs       Started, Delta..., Finished; closing the
    iterator stops
                                                the engine within 1 s
    store_kv / load_kv / drop_kv                only with kv = "full"
    forget(session)                             the session ended: drop what is remembered of it
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from bedplate.core.events import Event
from bedplate.core.ids import (
    BranchId,
    CardId,
    EntryId,
    ModelId,
    SessionId,
    SlotId,
    TenantId,
    TurnId,
)

JsonObject = dict[str, Any]
"""A decoded JSON object. Its content is the client's or the engine's, checked where it is used."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. A request that needs more is refused by name before it is queued.

    `kv`: full | hints | none. `params`: names of request parameters beyond the common set that the
    engine takes as they are; `passes_unknown` means any (a vLLM endpoint judges them itself).
    """

    kv: str
    streaming: bool = True
    tools: bool = False
    grammar: bool = False
    logprobs: bool = False
    embeddings: bool = False
    images: bool = False
    audio: bool = False
    choices: bool = False
    tokenizer: bool = False
    priority: bool = False
    salt: bool = False
    can_cut: bool = False
    resumable: bool = False
    params: frozenset[str] = frozenset()
    passes_unknown: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat completion request, in OpenAI's terms.

    `limit_tokens` is 0 when the client named no limit, and `parallel_tool_calls` None when it said
    nothing about them. `extra` holds parameters beyond these, only such that the engine's
    capabilities admit.
    """

    model: ModelId
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    tool_choice: str | JsonObject = "auto"
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    limit_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    n: int = 1
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    extra: JsonObject = field(default_factory=dict)
    _hashes: list[bytes] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def hashes(self) -> Sequence[bytes]:
        """`message_hash` of each message. Recognition and engines ask; it is computed once."""
        if len(self._hashes) != len(self.messages):
            self._hashes.extend(map(message_hash, self.messages))
        return self._hashes


class Lineage(NamedTuple):
    """Where in its session's tree a turn stands; `fork_of` is -1 unless it opens a new branch."""

    tenant: TenantId
    session: SessionId
    branch: BranchId
    fork_of: int
    lane: int


@dataclass(slots=True)
class Prompt:
    """A request as its engine will see it.

    `tokens` and `reuse_tokens` go into TurnArrived: the whole prompt, and how many of its leading
    tokens equal what the branch (or the parent of a fork) has computed. `payload` is the adapter's
    own. Where nothing is computed yet, `prefix` may name the opening that other sessions of the
    tenant can share, its first `prefix_tokens` tokens: the same name means the same tokens. Where
    `tokens` is an estimate, the prompt has `least_tokens` to `most_tokens`; 0: it is none.
    """

    tokens: int
    reuse_tokens: int
    exact: bool
    resumable: bool
    payload: object
    prefix: str = ""
    prefix_tokens: int = 0
    least_tokens: int = 0
    most_tokens: int = 0


@dataclass(slots=True)
class TurnRun:
    """One dispatch of one turn.

    `delivered` is the text that earlier attempts already gave to the client (empty at first); with
    `resume_tokens` > 0 the adapter continues after it and yields only what is new. The prompt is
    metered once: `prompted_before` says that an earlier run computed it for what is delivered.
    `prefix_tokens` > 0 asks for a copy of the opening on the way: a StoredPrefix comes before the
    Started, alone in its batch, and what this run computed for it is not cached for its turn.
    """

    turn: TurnId
    attempt: int
    lineage: Lineage
    request: ChatRequest
    prompt: Prompt
    card: CardId
    slot: SlotId
    limit_tokens: int
    expect_cached_tokens: int
    loaded: bool
    resume_tokens: int
    deadline_s: float
    delivered: str = ""
    prefix_entry: EntryId = field(default=EntryId(0))
    prefix_tokens: int = 0
    prompted_before: bool = False


class Started(NamedTuple):
    """Prefill is done.

    `cached_tokens` are the prompt tokens that were not computed again, as the engine measured. An
    engine with kv = "hints" may learn that at the end only: then it is what core expects, and
    Finished has the measure.
    """

    prompt_tokens: int
    cached_tokens: int


class StoredPrefix(NamedTuple):
    """The pool has the opening that a run was asked to copy; 0 tokens where that failed."""

    tokens: int
    size_bytes: int


@dataclass(slots=True)
class Delta:
    """A piece of the answer of choice `index`, as it should reach the client.

    `content` is text (may be empty); `tool_calls` are OpenAI stream deltas (index, id and name in
    the first, argument pieces after); `logprobs` is OpenAI's `logprobs` object of this piece;
    `extra` are further fields of the delta that the engine sent (reasoning_content, refusal, ...).
    `tokens` counts output tokens in this piece.
    """

    content: str = ""
    tool_calls: tuple[JsonObject, ...] = ()
    logprobs: JsonObject | None = None
    tokens: int = 0
    index: int = 0
    extra: JsonObject | None = None


@dataclass(slots=True)
class Finished:
    """The end of a run.

    `finish_reason` is OpenAI's (stop, length, tool_calls, content_filter) for choice 0, `others`
    for further choices. `message` is the whole assistant message as the client would send it back,
    the form that recognition and transcripts hash. `kv_tokens`: tokens the slot now holds for the
    branch.

    `out_tokens` are those of the whole answer: on a resumed run the `resume_tokens` delivered
    before count too. `prompt_tokens` and `cached_tokens` are of what this run was prompted with,
    which on a resumed run ends with the delivered part; the runtime takes that off again.

    `unbelieved_tokens` are what the engine counted beyond what request and answer can have. None of
    the other counts has them, and `exact` is False then.
    """

    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    kv_tokens: int
    exact: bool
    message: JsonObject
    others: tuple[str, ...] = ()
    unbelieved_tokens: int = 0


Output = StoredPrefix | Started | Delta | Finished


class StoredKv(NamedTuple):
    """Result of store_kv."""

    tokens: int
    size_bytes: int


class Embeddings(NamedTuple):
    """Result of embed: one vector per input, and the tokens they took."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


EMBEDDING_TOKENS_MAX = 256
"""What an engine may add to each text that it embeds: marks, an instruction."""


def embedding_tokens_max(inputs: Sequence[str]) -> int:
    """Return how many tokens texts to embed can have: none is less than a byte."""
    return sum(len(text.encode()) + EMBEDDING_TOKENS_MAX for text in inputs)


def none_out(card: CardId) -> bool:
    """Tell that no card is taken out: for an engine that runs without a core."""
    return False


class Engine(Protocol):
    """One model on one or more cards."""

    @property
    def name(self) -> str:
        """Name from the configuration."""
        ...

    @property
    def model(self) -> ModelId:
        """Served model name, as clients write it."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start`."""
        ...

    @property
    def problems(self) -> Mapping[CardId, str]:
        """Why each card that is not up is not, as last seen; for people. No card that is up."""
        ...

    async def start(
        self, sink: Callable[[Event], None], is_out: Callable[[CardId], bool] = none_out
    ) -> None:
        """Start or reach every card, in parallel.

        Report CardUp through `sink` for each as it is ready.

        Later CardDown, CardUp (after a restart) and CardReport follow through the same sink.
        `is_out` tells whether an operator takes a card out (drains it): what is no turn, such as
        counting tokens, is asked of such a card only where no other answers.
        """
        ...

    async def stop(self) -> None:
        """Stop what `start` started. Cards that outlive a killed gateway end here too."""
        ...

    async def prepare(self, request: ChatRequest, lineage: Lineage) -> Prompt:
        """Render and count the prompt; raise InvalidRequest for what this engine cannot do."""
        ...

    def run(self, turn: TurnRun) -> AsyncIterator[Sequence[Output]]:
        """Run the turn; yield everything at hand at once, never an empty sequence.

        Exactly one Started comes before the first Delta and exactly one Finished ends a good run.
        Closing the iterator stops the engine within 1 s. With kv = "full", the slot of a resumable
        turn then holds all that was given but the last token, and more only where can_cut.

        Raises:
            EngineLost: The card is gone or broke off. Another may take the turn.
            CapacityError: The engine says that it has no room now (429, 503), with its Retry-After.
                It is not the client's fault: another card may take the turn, and the client hears
                of it only if none does.
            EngineTimeout, EngineProtocolError, SchemaNotKept: Another card would do no better.
            RequestError: The engine refuses the request.
        """
        ...

    async def store_kv(
        self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId
    ) -> StoredKv:
        """Copy the idle slot to the pool under `entry`; durable in the pool's sense on return."""
        ...

    async def load_kv(self, card: CardId, slot: SlotId, lineage: Lineage, entry: EntryId) -> int:
        """Fill the empty slot from the pool; fingerprint and checksum verified. Returns tokens."""
        ...

    async def drop_kv(self, card: CardId, slot: SlotId) -> None:
        """Empty the slot."""
        ...

    async def forget(self, session: SessionId) -> None:
        """Drop what the adapter remembers of an ended session."""
        ...

    async def embed(self, inputs: Sequence[str]) -> Embeddings:
        """Embed texts; raises InvalidRequest where capabilities.embeddings is False."""
        ...


def draws_by_seed(request: ChatRequest) -> bool:
    """Tell whether the answer depends on random numbers that the client wants to be the same."""
    return request.seed is not None and request.temperature != 0


def canonical(value: object) -> bytes:
    """Return the canonical JSON of a decoded value: sorted keys, no white space, UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def message_hash(message: JsonObject) -> bytes:
    """Return 32 bytes that are equal for messages that mean the same to a model.

    Role, content (a list of text parts equals their joined text), tool calls (id, name, arguments
    as parsed JSON where they parse), tool_call_id and name count; `null`, empty lists and unknown
    null-valued fields do not, since SDKs add or leave them out when they send an answer back.
    """
    return hashlib.sha256(canonical(_meaning(message))).digest()


def _meaning(message: JsonObject) -> JsonObject:
    kept: JsonObject = {}
    for key, value in message.items():
        if value is None or value == [] or value == "":
            continue
        if key == "content":
            kept[key] = _content(value)
        elif key == "tool_calls":
            kept[key] = [_tool_call(call) for call in value]
        elif key not in ("refusal", "annotations", "audio", "reasoning_content"):
            kept[key] = value
    return kept


def _content(value: Any) -> Any:
    if isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in value
    ):
        return "".join(str(part.get("text", "")) for part in value)
    return value


def _tool_call(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = call["function"]
    arguments = function.get("arguments")
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        parsed = arguments
    return {"id": call.get("id"), "name": function.get("name"), "arguments": parsed}

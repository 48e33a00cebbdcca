"""From a request to token ids: what is known already, and only the rest as text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bedplate.engines.base import ChatRequest, JsonObject
from bedplate.engines.llamacpp.answer import Delivered, Ending
from bedplate.engines.llamacpp.special import Specials, free_mark
from bedplate.engines.llamacpp.template import Part, Template, leading_system, plain_messages
from bedplate.engines.llamacpp.transcript import (
    Transcript,
    common_tokens,
    pack,
    pack_hashes,
    root_hash,
    unpack,
)
from bedplate.errors import ContextTooLong, EngineProtocolError, InvalidRequest

BOUNDARY = -1
"""Stands between parts in a call to the tokenizer, which gives integers back as they are."""

Tokenize = Callable[[Sequence[str | int], bool], Awaitable[list[int]]]
"""Texts, and whether the vocabulary's begin-of-text token comes first."""


@dataclass(slots=True)
class PromptIds:
    """The payload of a `Prompt`: its ids packed, and what its transcript will need.

    `opening` tokens are tools and leading system messages, 0 where that is not known to the token.
    `delivered` is what earlier attempts of the turn gave to the client.
    """

    root: bytes
    hashes: bytes
    ends: list[int]
    ids: bytes
    reuse: int
    grammar: str | None
    opening: int = 0
    delivered: Delivered = field(default_factory=Delivered)

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return len(self.ids) // 4


@dataclass(frozen=True, slots=True)
class Room:
    """What one card can hold: `tokens`, none of which stands for more than `token_characters`.

    Tokens are counted by the card, at some seconds and a hundred MiB for a few MiB of text, before
    core knows of the turn. So text that cannot fit is refused before it is counted.
    """

    tokens: int
    token_characters: int

    def check(self, content: Sequence[str | int], known_tokens: int) -> None:
        """Refuse pieces of text, each at least a token, that cannot fit after what is known.

        Raises:
            ContextTooLong: they cannot.
        """
        texts = [piece for piece in content if isinstance(piece, str)]
        least = sum(-(-len(text) // self.token_characters) for text in texts)
        if known_tokens + least > self.tokens:
            raise ContextTooLong(
                f"the prompt has more than {known_tokens + least - 1} tokens, one session may hold "
                f"{self.tokens}; {ContextTooLong.action}",
                param="messages",
            )


class Prompter:
    """Turns requests of one engine into ids."""

    def __init__(
        self, template: Template, specials: Specials, tokenize: Tokenize, room: Room
    ) -> None:
        self._template = template
        self._specials = specials
        self._tokenize = tokenize
        self._room = room

    async def ids_for(
        self, request: ChatRequest, *, known: Transcript | None, grammar: str | None
    ) -> PromptIds:
        """Return the prompt: the longest known run of leading messages, then what is new.

        Raises:
            InvalidRequest: messages that this model cannot take.
            ContextTooLong: more text than a card can hold, whatever its tokens are.
        """
        messages, tools = self._inert(plain_messages(request.messages), list(request.tools))
        hashes = pack_hashes(request.hashes)
        root = root_hash(self._template.name, request.tools)
        since = known.known(root, hashes) if known else 0
        parts = self._template.render(messages.plain, tools, since=since)
        if parts is None and since:
            since = 0
            parts = self._template.render(messages.plain, tools, since=0)
        assert parts is not None
        ends: list[int] = []
        old = b""
        if known is not None and since:
            ends = unpack(known.ends)[:since].tolist()
            old = known.ids[: ends[-1] * 4]
        new, new_ends = await self._tokens(parts, messages, len(old) // 4, first=since == 0)
        ends += [0] * (len(request.messages) - since)
        for part, end in zip(parts, new_ends, strict=True):
            if part.ends >= 0:
                ends[part.ends] = end
        opening = 0
        if since == 0:
            last = leading_system(messages.plain) - 1
            found = (
                end for part, end in zip(parts[:-1], new_ends, strict=False) if part.ends == last
            )
            opening = next(found, 0)
        ids = old + pack(new)
        reuse = 0
        if known is not None:
            # At least one token is always computed: its logits are the first of the answer.
            reuse = min(known.computed, common_tokens(known.ids, ids), len(ids) // 4 - 1)
        return PromptIds(root, hashes, ends, ids, reuse, grammar, opening)

    async def text_ids(self, text: str) -> list[int]:
        """Return the ids of content that stands in the middle of a prompt, special texts inert."""
        mark = free_mark([text])
        pieces: list[str | int] = [text]
        if mark is not None:
            pieces = [piece for piece in self._specials.cut(text, mark).split(mark) if piece]
        return await self._tokenize(pieces, False)

    async def _tokens(
        self, parts: Sequence[Part], messages: Inert, offset: int, *, first: bool
    ) -> tuple[list[int], list[int]]:
        """Return the ids of parts, and where in the whole prompt each part ends."""
        content: list[str | int] = []
        for part in parts:
            content += messages.pieces(part.text)
            content.append(BOUNDARY)
        self._room.check(content, offset)
        answered = await self._tokenize(content, first)
        ids: list[int] = []
        ends: list[int] = []
        for token in answered:
            if token != BOUNDARY:
                ids.append(token)
            else:
                ends.append(offset + len(ids))
        if len(ends) != len(parts):
            raise EngineProtocolError("the tokenizer of the card lost a part of the prompt")
        return ids, ends

    def _inert(
        self, messages: list[JsonObject], tools: list[JsonObject]
    ) -> tuple[Inert, list[JsonObject]]:
        texts: list[str] = []
        _each_text([messages, tools], texts.append)
        mark = free_mark(texts)
        if mark is None:
            raise InvalidRequest(
                "the messages use every private-use character from U+E000 to U+E00F",
                param="messages",
            )
        specials = self._specials

        def cut(text: str) -> str:
            return specials.cut(text, mark)

        if all(cut(text) is text for text in texts):
            return Inert(messages, None), tools
        return Inert(_mapped(messages, cut), mark), _mapped(tools, cut)


@dataclass(frozen=True, slots=True)
class Inert:
    """Messages whose special texts are cut in two by `mark`; None where there were none."""

    plain: list[JsonObject]
    mark: str | None

    def pieces(self, text: str) -> list[str | int]:
        """Return rendered text as the pieces that are tokenised each by itself."""
        if self.mark is None:
            return [text] if text else []
        return [piece for piece in text.split(self.mark) if piece]


def finished_transcript(prompt: PromptIds, message: bytes, ending: Ending) -> Transcript:
    """Return the transcript after an answer whose message hash is `message`."""
    ids = prompt.ids + pack(ending.ids)
    ends = [*prompt.ends, len(ids) // 4 if ending.whole else 0]
    return Transcript(
        root=prompt.root,
        hashes=prompt.hashes + pack_hashes([message]),
        ends=pack(ends),
        ids=ids,
        computed=min(ending.kv_tokens, len(ids) // 4),
        complete=not ending.fillable,
        tail=ending.tail,
    )


def _each_text(value: Any, take: Callable[[str], None]) -> None:
    if isinstance(value, str):
        take(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            take(key)
            _each_text(item, take)
    elif isinstance(value, list):
        for item in value:
            _each_text(item, take)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value

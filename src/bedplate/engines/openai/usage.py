"""What an endpoint says that it counted, and how much of that can be true.

Clients are billed by the endpoint's own count. So a count is believed only as far as what was sent
and what came can hold:

- prompt: a token is at least one byte of what was sent. A template adds words of its own, and what
  an image or a recording takes cannot be told from its length; both have bounds here.
- output: at most `max_tokens` for each choice; and a token is at least one byte of what came, or
  came as a chunk, or is reasoning that the endpoint hides and says so, or one of a few that no
  endpoint shows (the end of the answer, the marks around a tool call, the text of a stop).

Beyond that the bound is what counts, and the count is not exact any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from bedplate.engines.base import ChatRequest, JsonObject, TurnRun
from bedplate.engines.openai.prompts import Items
from bedplate.errors import EngineProtocolError

TOKENS_MAX = (1 << 26) - 1
"""Most tokens that an endpoint may say it counted in one answer: more than any context holds, and
few enough that the service's 64-bit limits a minute can book them."""
TEMPLATE_TOKENS_MAX = 2_048
"""A template's own words: a system prompt where none was sent, how tools are called, the marks
around messages. The longest of public chat templates, those with tools, take under half of it."""
MEDIA_TOKENS_MAX = 1 << 17
"""Of one part that is no text. A large image takes some 16,000, a video all of a usual context."""
HIDDEN_TOKENS_MAX = 256
"""Of one choice, beside those that show as text or as a chunk."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own count of one answer; output includes `reasoning_tokens`, shown or not."""

    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    reasoning_tokens: int = 0

    def within(self, prompt_tokens: int, out_tokens: int) -> Usage:
        """Return this count, cut to these."""
        if self.prompt_tokens <= prompt_tokens and self.out_tokens <= out_tokens:
            return self
        prompt = min(self.prompt_tokens, prompt_tokens)
        return replace(
            self,
            prompt_tokens=prompt,
            cached_tokens=min(self.cached_tokens, prompt),
            out_tokens=min(self.out_tokens, out_tokens),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most tokens that one answer can have: prompt and output by what was asked for."""

    prompt_tokens: int = TOKENS_MAX
    out_tokens: int = TOKENS_MAX
    hidden_tokens: int = TOKENS_MAX
    """Output that may come without a byte or a chunk, reasoning beside."""

    def out_of(self, usage: Usage, *, shown_bytes: int, chunks: int) -> int:
        """Return how many output tokens an answer of this size can have."""
        came = shown_bytes + chunks + self.hidden_tokens + usage.reasoning_tokens
        return min(self.out_tokens, came)


def bounds_of(turn: TurnRun) -> Bounds:
    """Return the bounds of a turn's answer. Cost: O(messages)."""
    request, items = turn.request, turn.prompt.payload
    assert isinstance(items, Items)
    prompt = prompt_tokens_max(request, items) + len(turn.delivered.encode())
    stops = max((len(word.encode()) for word in request.stop), default=0)
    return Bounds(
        prompt_tokens=min(TOKENS_MAX, prompt),
        out_tokens=min(TOKENS_MAX, request.n * max(1, turn.limit_tokens - turn.resume_tokens)),
        hidden_tokens=request.n * (HIDDEN_TOKENS_MAX + stops),
    )


def prompt_tokens_max(request: ChatRequest, items: Items) -> int:
    """Return how many tokens the prompt of a request can have; `items` are those of it."""
    beside = len(orjson.dumps((request.response_format, request.extra)))
    media = 0 if items.text_only else sum(map(_media_parts, request.messages))
    return items.size_bytes + beside + media * MEDIA_TOKENS_MAX + TEMPLATE_TOKENS_MAX


def read_usage(usage: Any) -> Usage:
    """Read OpenAI's usage object.

    Raises:
        EngineProtocolError: It is none, or counts what no answer can have.
    """
    if not isinstance(usage, dict):
        raise EngineProtocolError("the engine sent usage that is no object")
    prompt = token_count(usage.get("prompt_tokens"))
    cached = _detail(usage.get("prompt_tokens_details"), "cached_tokens")
    out = token_count(usage.get("completion_tokens") or 0)
    reasoning = _detail(usage.get("completion_tokens_details"), "reasoning_tokens")
    return Usage(prompt, min(cached, prompt), out, min(reasoning, out))


def token_count(count: Any) -> int:
    """Return a count of tokens that an endpoint sent.

    Raises:
        EngineProtocolError: It is none, or more than any answer can have. An endpoint that counts
            so is not to be billed by, and what it counts is not to be guessed.
    """
    if type(count) is not int or not 0 <= count <= TOKENS_MAX:
        raise EngineProtocolError(f"the engine sent usage that counts {str(count)[:32]} tokens")
    return count


def _detail(details: Any, name: str) -> int:
    """Return a part of a count; endpoints that know no such part leave it out or send null."""
    return token_count(details.get(name) or 0) if isinstance(details, dict) else 0


def _media_parts(message: JsonObject) -> int:
    """Count the parts of a message that are no text."""
    content = message.get("content")
    if not isinstance(content, list):
        return 0
    return sum(part.get("type") not in ("text", "refusal") for part in content)

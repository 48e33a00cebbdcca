"""Read one run's server events into outputs, and keep what the transcript needs of them.

The server sends one event a token: its text, its id, the count so far. Three things make ids and
text differ, and each is followed here, because a transcript must hold exactly the ids of the text:

- A character split over tokens: the server sends nothing until the last of them, and never sends
  the ids before it. The count jumps; `fragments` finds them, or ids are known up to there only
  (`_complete` is False).
- A text that could become a stop string is held back: ids come with empty text. `_flushed` ids are
  those whose text is out.
- The last token is sampled and not computed: the slot holds one token less than was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bedplate.engines.base import Delta, Finished, JsonObject, Output, Started
from bedplate.engines.llamacpp.calls import CallParser, Pieces
from bedplate.engines.llamacpp.fragments import Fragments

FINAL_FIELDS = (
    "content",
    "stop",
    "stop_type",
    "tokens_cached",
    "tokens_predicted",
    "timings",
    "id_slot",
)
"""Fields of the last event that are asked for; the rest repeats the whole prompt."""
LOGPROB_MIN = -9999.0


class _Mark(NamedTuple):
    tokens: int
    characters: int
    ids: int


@dataclass(slots=True)
class Delivered:
    """What the attempts of one turn gave to the client: text, and its ids while all are known."""

    text: str = ""
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    exact: bool = True
    marks: list[_Mark] = field(default_factory=list)

    def add(self, text: str, *, tokens: int, ids: Sequence[int], exact: bool) -> None:
        """Note one delta. `ids` are those whose text is out with it."""
        self.text += text
        self.tokens += tokens
        self.ids.extend(ids)
        self.exact = self.exact and exact
        self.marks.append(_Mark(self.tokens, len(self.text), len(self.ids)))

    def cut(self, tokens: int) -> None:
        """Go back to what had been given when `tokens` tokens were counted, at most."""
        while self.marks and self.marks[-1].tokens > tokens:
            self.marks.pop()
        mark = self.marks[-1] if self.marks else _Mark(0, 0, 0)
        self.tokens = mark.tokens
        self.text = self.text[: mark.characters]
        del self.ids[mark.ids :]


@dataclass(frozen=True, slots=True)
class Ending:
    """What a finished run leaves in its slot, for the transcript.

    `ids` are the answer's as far as they are known and equal its text. `whole`: they are all of it.
    `fillable`: some are unknown, and the slot holds exactly the text's (and `tail` after them).
    """

    ids: list[int]
    whole: bool
    fillable: bool
    tail: int
    kv_tokens: int


class Answer:
    """One run of one turn, first event to last; `earlier` holds what came before it.

    The turn itself has computed its first `own_tokens` in a run before: to it they are not cached.
    """

    def __init__(
        self,
        *,
        prompt_tokens: int,
        earlier: Delivered,
        fragments: Fragments,
        tools: bool,
        logprobs: int | None,
        own_tokens: int = 0,
    ) -> None:
        self.ending: Ending | None = None
        self.stop = ""
        """How it ended, in the server's words: eos, word (a stop string) or limit."""
        self.started = False
        self._prompt_tokens = prompt_tokens
        self._own_tokens = own_tokens
        self._delivered = earlier
        self._fragments = fragments
        self._earlier_ids = list(earlier.ids)
        self._earlier_tokens = earlier.tokens
        self._earlier_exact = earlier.exact
        self._text = [earlier.text]
        self._raw: list[str] = []
        self._parser = CallParser() if tools else None
        self._logprobs = logprobs
        self._ids: list[int] = []
        self._counted = 0
        self._complete = True
        self._flushed = 0
        self._flushed_before = 0
        self._last_content = ""
        self._last_id = -1
        self._cached = 0

    @property
    def over(self) -> bool:
        """True once the server's last event is in."""
        return self.ending is not None

    @property
    def counted(self) -> int:
        """Tokens of this run that the server reported so far."""
        return self._counted

    @property
    def cached(self) -> int:
        """Prompt tokens that the server reported as reused; 0 until it began."""
        return self._cached

    @property
    def text(self) -> str:
        """What the model wrote in this run, calls as it wrote them."""
        return "".join(self._raw)

    def feed(self, events: Sequence[JsonObject]) -> list[Output]:
        """Take events that arrived together; return a Started, a Delta, a Finished, as they fit."""
        outputs: list[Output] = []
        texts: list[str] = []
        logprobs: list[JsonObject] = []
        final: JsonObject | None = None
        counted, flushed = self._counted, self._flushed
        for event in events:
            progress = event.get("prompt_progress")
            if progress is not None:
                self._cached = int(progress["cache"])
                continue
            if not self.started:
                self.started = True
                outputs.append(
                    Started(self._prompt_tokens, max(0, self._cached - self._own_tokens))
                )
            if event["stop"]:
                final = event
            else:
                self._take(event, texts, logprobs)
        lost = 0
        if final is not None:
            lost = int(final["tokens_predicted"]) - self._counted
            self._counted += lost
        self._raw += texts
        pieces = self._pieces("".join(texts), final)
        if pieces.text or pieces.deltas or logprobs or self._counted > counted:
            outputs.append(
                Delta(
                    content=pieces.text,
                    tool_calls=tuple(pieces.deltas),
                    logprobs={"content": logprobs, "refusal": None} if logprobs else None,
                    tokens=self._counted - counted,
                )
            )
            if self._parser is None:
                self._delivered.add(
                    pieces.text,
                    tokens=self._counted - counted,
                    ids=self._ids[flushed : self._flushed],
                    exact=self._complete,
                )
        if final is not None:
            self.stop = final["stop_type"]
            self.ending = self._end(final, lost=lost)
            outputs.append(self._finished(final))
        return outputs

    def _take(self, event: JsonObject, texts: list[str], logprobs: list[JsonObject]) -> None:
        counted = int(event["tokens_predicted"])
        ids = event["tokens"]
        lost = counted - self._counted - len(ids)
        self._counted = counted
        self._last_id = ids[-1] if ids else -1
        self._last_content = event["content"]
        self._flushed_before = self._flushed
        if lost:
            ids = self._found(lost)
        self._complete = self._complete and ids is not None
        if self._complete:
            self._ids.extend(ids)
        if self._last_content:
            texts.append(self._last_content)
            self._flushed = len(self._ids)
        if self._logprobs is not None:
            for item in event.get("completion_probabilities", ()):
                entry = openai_logprob(item, self._logprobs)
                if entry["token"]:
                    logprobs.append(entry)

    def _found(self, lost: int) -> list[int] | None:
        """Return the ids of an event before which the server kept some back, None if in doubt."""
        if self._flushed != len(self._ids):
            return None
        before = self._fragments.lost(self._last_content, lost, self._last_id)
        return None if before is None else [*before, self._last_id]

    def _pieces(self, text: str, final: JsonObject | None) -> Pieces:
        if self._parser is None:
            self._text.append(text)
            return Pieces(text)
        pieces = self._parser.feed(text)
        if final is not None:
            rest = self._parser.finish(at_limit=final["stop_type"] == "limit")
            pieces.text += rest.text
            pieces.deltas += rest.deltas
        self._text.append(pieces.text)
        return pieces

    def _end(self, final: JsonObject, *, lost: int) -> Ending:
        """Say which ids equal the text. Each way to stop leaves another remainder.

        `lost` tokens came with no event: half a character at the very end, which nobody was given.
        """
        stop = final["stop_type"]
        tail = -1
        if stop == "word":
            aligned = not self._last_content
            kept = self._flushed if aligned else self._flushed_before
            whole, fillable = aligned and self._complete, False
        elif stop == "eos" and not lost:
            # The end token came with all text that was held; it is no part of the answer.
            kept = len(self._ids) - 1 if self._complete else len(self._ids)
            whole, fillable = self._complete, True
        else:
            kept = self._flushed
            whole = self._complete and self._flushed == len(self._ids)
            fillable = not lost and bool(self._last_content)
            tail = self._last_id if fillable else -1
        return Ending(
            ids=self._earlier_ids + self._ids[: max(kept, 0)],
            whole=whole and self._earlier_exact,
            fillable=fillable and self._earlier_exact and not whole,
            tail=tail,
            kv_tokens=int(final["tokens_cached"]),
        )

    def _finished(self, final: JsonObject) -> Finished:
        text = "".join(self._text)
        message: JsonObject = {"role": "assistant", "content": text}
        reason = "length" if final["stop_type"] == "limit" else "stop"
        if self._parser is not None and self._parser.calls:
            message = {**message, "content": text or None, "tool_calls": self._parser.calls}
            if reason == "stop" and not self._parser.cut_short:
                reason = "tool_calls"
        return Finished(
            finish_reason=reason,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=max(0, int(final["timings"]["cache_n"]) - self._own_tokens),
            out_tokens=self._earlier_tokens + self._counted,
            kv_tokens=int(final["tokens_cached"]),
            exact=True,
            message=message,
        )


def openai_logprob(item: JsonObject, top: int) -> JsonObject:
    """Return the server's entry for one token in OpenAI's form, with `top` alternatives.

    Where text is held back the server gives no text with the token; the same id among the
    alternatives has it.
    """
    alternatives = item.get("top_logprobs", ())
    chosen = item
    if not item["token"]:
        chosen = next((other for other in alternatives if other["id"] == item["id"]), item)
    return {
        **_logprob(chosen),
        "logprob": _finite(item["logprob"]),
        "top_logprobs": [_logprob(other) for other in alternatives[:top]],
    }


def _logprob(item: JsonObject) -> JsonObject:
    return {
        "token": item["token"],
        "logprob": _finite(item["logprob"]),
        "bytes": item.get("bytes"),
    }


def _finite(value: Any) -> float:
    return max(float(value), LOGPROB_MIN) if value is not None else LOGPROB_MIN

"""What was said, for the record: each new message once, by its hash.

A turn's `content` note lists the hash of its parameters (all of the request but messages), then
those of the messages that are new on its branch. The answer's hash stands in the note of the turn's
end. So a session's record is the path of its branches through these notes; no prompt is stored
whole per turn.
"""

from __future__ import annotations

from bedplate.core.ids import BranchId, SessionId
from bedplate.engines.base import ChatRequest, JsonObject, canonical
from bedplate.gateway.recognition import EXTEND, Placement
from bedplate.journal import Content, content_hash


class ContentBook:
    """Remembers how many messages of each branch the journal has: only new ones are added."""

    def __init__(self) -> None:
        self._known: dict[SessionId, dict[BranchId, int]] = {}

    def of_call(self, placement: Placement, request: ChatRequest) -> tuple[Content, ...]:
        """Return parameters and new messages; a branch that is new here begins with all."""
        known = 0
        if placement.kind == EXTEND:
            known = self._known.get(placement.session, {}).get(placement.branch, 0)
        new = [_parameters(request), *request.messages[known:]]
        return tuple(self._content(placement, item) for item in new)

    def of_answer(self, placement: Placement, request: ChatRequest, message: JsonObject) -> Content:
        """Return the answer; from now on its branch is known up to and including it."""
        known = self._known.setdefault(placement.session, {})
        known[placement.branch] = len(request.messages) + 1
        return self._content(placement, message)

    def forget(self, session: SessionId) -> None:
        """Drop what is remembered of an ended session."""
        self._known.pop(session, None)

    @staticmethod
    def _content(placement: Placement, item: JsonObject) -> Content:
        data = canonical(item)
        return Content(content_hash(data), placement.tenant, placement.session, data)


def _parameters(request: ChatRequest) -> JsonObject:
    found: JsonObject = {
        "model": request.model,
        "tools": request.tools,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": request.response_format,
        "limit_tokens": request.limit_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
        "stop": request.stop,
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        "n": request.n,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "extra": request.extra,
    }
    return {name: value for name, value in found.items() if value is not None}

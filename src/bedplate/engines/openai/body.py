"""The request that an endpoint gets: the client's, with what this service adds, nothing lost."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from bedplate.core.ids import TenantId
from bedplate.engines.base import Capabilities, ChatRequest, JsonObject, TurnRun, draws_by_seed
from bedplate.engines.openai.servers import RESERVED_PARAMS, ServerKind, priority_of
from bedplate.errors import InvalidRequest

OPTIONAL_FIELDS = ("stream_options", "priority")
"""Fields of ours that an endpoint may refuse: then it is asked again without, and remembered.

`cache_salt` is not among them: without it one tenant could learn from timing what another asked.
"""
_PART_NEEDS = {"image_url": "images", "input_audio": "audio"}


def check(request: ChatRequest, capabilities: Capabilities, engine: str) -> None:
    """Refuse by name what this endpoint cannot do.

    Raises:
        InvalidRequest: The message names the field, `param` holds it.
    """
    for name in request.extra:
        if name in RESERVED_PARAMS:
            raise InvalidRequest(
                f"parameter {name} is set by this service; leave it out", param=name
            )
        if not capabilities.passes_unknown and name not in capabilities.params:
            raise InvalidRequest(f"engine {engine} takes no parameter {name}", param=name)
    needs = (
        ("tools", bool(request.tools), capabilities.tools),
        ("response_format", _constrains(request.response_format), capabilities.grammar),
        ("logprobs", request.logprobs or request.top_logprobs > 0, capabilities.logprobs),
        ("n", request.n > 1, capabilities.choices),
    )
    for name, wanted, able in needs:
        if wanted and not able:
            raise InvalidRequest(f"engine {engine} does not support {name}", param=name)
    _check_parts(request, capabilities, engine)


def resumable(request: ChatRequest, capabilities: Capabilities) -> bool:
    """Say whether an answer of this request can be continued after its engine was lost."""
    return (
        capabilities.resumable
        and request.n == 1
        and not request.tools
        and not request.logprobs
        and not draws_by_seed(request)
        and not _constrains(request.response_format)
    )


def chat_body(turn: TurnRun, model: str) -> JsonObject:
    """Return the client's request as a body; `add_service_fields` adds what is ours.

    A resumed turn sends what was delivered as the beginning of the answer, and asks for the rest.
    """
    request = turn.request
    body: JsonObject = {
        **request.extra,
        "model": model,
        "messages": list(request.messages),
        "max_tokens": max(1, turn.limit_tokens - turn.resume_tokens),
        "stream": True,
    }
    if turn.resume_tokens > 0:
        body["messages"].append({"role": "assistant", "content": turn.delivered})
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False
    if request.tools:
        body["tools"] = list(request.tools)
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.n > 1:
        body["n"] = request.n
    if request.stop:
        body["stop"] = list(request.stop)
    if request.logprobs:
        body["logprobs"] = True
        if request.top_logprobs:
            body["top_logprobs"] = request.top_logprobs
    _add_given(body, request)
    return body


def add_service_fields(
    body: JsonObject,
    turn: TurnRun,
    kind: ServerKind,
    capabilities: Capabilities,
    *,
    salt: str,
    left_out: Collection[str] = (),
) -> None:
    """Ask for usage, and add lane and tenant where the server takes them, and only there."""
    if "stream_options" not in left_out:
        body["stream_options"] = {"include_usage": True}
    if capabilities.priority and "priority" not in left_out:
        body["priority"] = priority_of(turn.lineage.lane, kind)
    if capabilities.salt:
        body["cache_salt"] = salt


@lru_cache(maxsize=4_096)
def salt_of(tenant: TenantId, secret: bytes) -> str:
    """Return the word that keeps a tenant's cached prefixes apart; it cannot be guessed."""
    return hmac.digest(secret, tenant.encode(), "sha256").hex()


def _add_given(body: JsonObject, request: ChatRequest) -> None:
    given: tuple[tuple[str, Any], ...] = (
        ("response_format", request.response_format),
        ("temperature", request.temperature),
        ("top_p", request.top_p),
        ("seed", request.seed),
        ("presence_penalty", request.presence_penalty),
        ("frequency_penalty", request.frequency_penalty),
    )
    for name, value in given:
        if value is not None:
            body[name] = value
    if request.logit_bias is not None:
        body["logit_bias"] = dict(request.logit_bias)


def _constrains(response_format: JsonObject | None) -> bool:
    return response_format is not None and response_format.get("type") != "text"


def _check_parts(request: ChatRequest, capabilities: Capabilities, engine: str) -> None:
    for at, message in enumerate(request.messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            need = _PART_NEEDS.get(str(kind))
            able = getattr(capabilities, need) if need else capabilities.passes_unknown
            if kind not in ("text", "refusal") and not able:
                raise InvalidRequest(
                    f"engine {engine} does not take {kind} parts", param=f"messages[{at}].content"
                )

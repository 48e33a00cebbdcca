"""From a chat request to the body of the server's /completion, and what this engine refuses."""

from __future__ import annotations

import math
from typing import Any

from bedplate.core.limits import INTERACTIVE
from bedplate.engines.base import ChatRequest, JsonObject, TurnRun, draws_by_seed
from bedplate.engines.llamacpp.answer import FINAL_FIELDS
from bedplate.engines.llamacpp.bounds import DATA_DEPTH_MAX, too_deep
from bedplate.engines.llamacpp.grammar import must_call
from bedplate.engines.llamacpp.prompting import PromptIds
from bedplate.engines.llamacpp.transcript import pack, unpack
from bedplate.errors import InvalidRequest

_RANGES: dict[str, tuple[type[int | float], float, float]] = {
    "top_k": (int, -1, 1 << 20),
    "min_p": (float, 0, 1),
    "typical_p": (float, 0, 1),
    "repeat_penalty": (float, 0, 100),
    "repeat_last_n": (int, -1, 1 << 16),
}
"""Kind, least and largest value. `repeat_last_n` -1 is the whole sequence: the server takes no such
value, so it gets the length."""
PARAMS = frozenset({*_RANGES, "ignore_eos"})
"""Parameters beyond OpenAI's that the server takes as they are."""
LOGIT_BIAS_MAX = 1_024
_TOKEN_MAX = (1 << 31) - 1
TOP_LOGPROBS_MAX = 20
_SEEDS = (1 << 32) - 1
"""The largest seed of the server means a random one."""


def check_request(request: ChatRequest) -> None:
    """Refuse what this engine does not do, by the name of the field.

    Raises:
        InvalidRequest: the field is not supported, or out of range.
    """
    if request.n != 1:
        raise InvalidRequest("this model gives one choice; set n to 1", param="n")
    if request.top_logprobs > TOP_LOGPROBS_MAX:
        raise InvalidRequest(
            f"top_logprobs must be at most {TOP_LOGPROBS_MAX}", param="top_logprobs"
        )
    for name in request.extra:
        if name not in PARAMS:
            raise InvalidRequest(f"this model does not take {name}", param=name)
        _check_param(name, request.extra[name])
    names = set()
    for index, tool in enumerate(request.tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise InvalidRequest("only function tools are supported", param=f"tools[{index}]")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidRequest("a function needs a name", param=f"tools[{index}].function.name")
        if too_deep(tool):
            raise InvalidRequest(
                f"a tool may nest {DATA_DEPTH_MAX} levels", param=f"tools[{index}].function"
            )
        names.add(function["name"])
    if must_call(request) and not names:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tools")
    if isinstance(request.tool_choice, str) and request.tool_choice not in (
        "none",
        "auto",
        "required",
    ):
        raise InvalidRequest("tool_choice must be none, auto or required", param="tool_choice")
    _logit_bias(request)


def _check_param(name: str, value: Any) -> None:
    if name not in _RANGES:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false", param=name)
        return
    kind, least, most = _RANGES[name]
    numeric = isinstance(value, int if kind is int else int | float)
    if not numeric or isinstance(value, bool) or not least <= value <= most:
        what = "an integer" if kind is int else "a number"
        raise InvalidRequest(f"{name} must be {what} from {least} to {most}", param=name)


def reads_calls(request: ChatRequest) -> bool:
    """Tell whether calls in the answer become tool_calls; with `none` they stay text."""
    return bool(request.tools) and request.tool_choice != "none"


def is_resumable(request: ChatRequest, grammar: str | None) -> bool:
    """Tell whether an answer that is cut may go on later or elsewhere: plain text only.

    Penalties go on exactly, for what was delivered counts as what was sampled. Random numbers do
    not: they begin anew, so a seeded answer would not be the one that its seed gives.
    """
    plain = grammar is None and not reads_calls(request) and not request.logprobs
    return plain and not draws_by_seed(request)


def completion_body(turn: TurnRun, payload: PromptIds, stops: tuple[str, ...]) -> JsonObject:
    """Return the body of one run; what earlier attempts delivered is part of the prompt."""
    request = turn.request
    body: JsonObject = {
        "prompt": unpack(payload.ids).tolist() + payload.delivered.ids,
        "id_slot": turn.slot,
        "n_predict": max(1, turn.limit_tokens - payload.delivered.tokens),
        "cache_prompt": True,
        "stream": True,
        "return_progress": True,
        "return_tokens": True,
        "response_fields": FINAL_FIELDS,
    }
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    whole = len(body["prompt"]) + body["n_predict"]
    if request.presence_penalty or request.frequency_penalty:
        body["repeat_last_n"] = whole
    if request.seed is not None:
        body["seed"] = request.seed % _SEEDS
    if request.stop or stops:
        body["stop"] = [*request.stop, *stops]
    if request.logprobs:
        body["n_probs"] = max(1, request.top_logprobs)
    if payload.grammar is not None:
        body["grammar"] = payload.grammar
    if request.logit_bias:
        body["logit_bias"] = _logit_bias(request)
    body.update(request.extra)
    if body.get("repeat_last_n") == -1:
        body["repeat_last_n"] = whole
    return body


def extends_slot(turn: TurnRun, payload: PromptIds) -> bool:
    """Tell whether the prompt begins with all that the slot holds, so that nothing is cut off.

    A slot of a model with a window that was loaded from the pool has the window's tokens only: the
    server would cut it back all the same, and answer from keys and values that are not there.
    """
    same = payload.delivered.exact or turn.resume_tokens == 0
    return same and (turn.expect_cached_tokens > 0 or turn.prefix_tokens > 0)


def line_to_keep(turn: TurnRun) -> bytes:
    """Return the ids that a turn may go on from after it made way, b"" where it will not.

    All that was given but the last token, which goes in again. None where ids are not known.
    """
    payload = turn.prompt.payload
    assert isinstance(payload, PromptIds)
    given = payload.delivered
    whole = given.exact and len(given.ids) == given.tokens > 0
    if turn.lineage.lane == INTERACTIVE or not turn.prompt.resumable or not whole:
        return b""
    return payload.ids + pack(given.ids[:-1])


def opening_body(turn: TurnRun, ids: bytes) -> JsonObject:
    """Return the body of a run that leaves exactly these ids in the slot and answers nothing."""
    return {
        "prompt": unpack(ids).tolist(),
        "id_slot": turn.slot,
        "n_predict": 0,
        "cache_prompt": True,
        "stream": True,
        "response_fields": FINAL_FIELDS,
    }


def _logit_bias(request: ChatRequest) -> list[list[Any]]:
    given = request.logit_bias or {}
    if len(given) > LOGIT_BIAS_MAX:
        raise InvalidRequest(f"logit_bias may name {LOGIT_BIAS_MAX} tokens", param="logit_bias")
    try:
        biases = [[int(token), float(bias)] for token, bias in given.items()]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            "logit_bias must map token ids to numbers", param="logit_bias"
        ) from error
    if not all(0 <= token <= _TOKEN_MAX and math.isfinite(bias) for token, bias in biases):
        raise InvalidRequest("logit_bias holds a number out of range", param="logit_bias")
    return biases

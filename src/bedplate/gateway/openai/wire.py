"""A chat completion's body, checked field by field: bytes in, `ChatCall` out.

`decode` and `model_of` come first, since which parameters are right depends on the model's engine;
`read_chat` then checks the whole against that engine's capabilities. Null means "not given" where
OpenAI's schema says so, and is a wrong type elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from bedplate.core.ids import ModelId
from bedplate.engines.base import Capabilities, ChatRequest, JsonObject
from bedplate.errors import InvalidRequest
from bedplate.gateway.errors_http import WrongContentType
from bedplate.gateway.openai.checks import (
    array,
    boolean,
    integer,
    join,
    mapping,
    number,
    only_keys,
    refuse,
    string,
)
from bedplate.gateway.openai.messages import check_messages
from bedplate.gateway.openai.params import extra_params
from bedplate.gateway.openai.tools import check_choice, check_format, check_tools
from bedplate.gateway.openai.values import check_values

TOKENS_MAX = 1 << 31
CHOICES_MAX = 128
BIASES_MAX = 16_384
STOP_MAX = 4
STOP_LENGTH_MAX = 4096
MODEL_LENGTH_MAX = 256
SESSION_LENGTH_MAX = 128
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A checked body: the request for the engine, and what concerns the gateway only.

    `session` is the client's own name for its session, if it gave one in the body.
    """

    request: ChatRequest
    stream: bool
    include_usage: bool
    session: str | None


def check_content_type(value: str | None) -> None:
    """Refuse a body that is declared as something other than JSON in UTF-8."""
    kind, _, options = (value or "").partition(";")
    if kind.strip().lower() != "application/json":
        raise WrongContentType("Send the body as content-type application/json.")
    charset = options.partition("charset=")[2].strip(' "').lower()
    if charset not in ("", "utf-8", "utf8"):
        raise WrongContentType("Only UTF-8 is supported: send charset=utf-8 or none.")


def check_content_encoding(value: str | None) -> None:
    """Refuse a body that is declared as compressed."""
    if value is not None and value.lower() not in ("", "identity"):
        raise WrongContentType("Compressed bodies are not supported: send no content-encoding.")


def decode(body: bytes) -> JsonObject:
    """Return the body's JSON object; errors say where invalid JSON breaks, not what it holds.

    Raises:
        InvalidRequest: no JSON, no object, or one of more than `VALUES_MAX` values.
    """
    check_values(body)
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON in UTF-8: line {error.lineno}, column {error.colno}."
        ) from error
    if type(value) is not dict:
        raise InvalidRequest("The body must be a JSON object.")
    return value


def model_of(body: JsonObject) -> ModelId:
    """Return the model that the body names."""
    if "model" not in body:
        refuse("model", "is missing.")
    name = string("model", body["model"], length_max=MODEL_LENGTH_MAX)
    if not name:
        refuse("model", "must not be empty.")
    return ModelId(name)


def read_chat(body: JsonObject, model: ModelId, can: Capabilities) -> ChatCall:
    """Check the whole body against what the engine of `model` can do.

    Raises:
        InvalidRequest: naming the first field that is wrong, unknown or not supported.
    """
    if "messages" not in body:
        refuse("messages", "is missing.")
    messages = check_messages(body["messages"], can)
    stream = _flag(body, "stream")
    tools = check_tools(body["tools"], can) if "tools" in body else ()
    choice = check_choice(body["tool_choice"], tools) if "tool_choice" in body else "auto"
    form = check_format(body["response_format"], can) if "response_format" in body else None
    logprobs, top_logprobs = _logprobs(body, can)
    request = ChatRequest(
        model=model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=(
            boolean("parallel_tool_calls", body["parallel_tool_calls"])
            if "parallel_tool_calls" in body
            else None
        ),
        response_format=form,
        limit_tokens=_limit(body),
        temperature=_number(body, "temperature", 0, 2),
        top_p=_number(body, "top_p", 0, 1),
        seed=_integer(body, "seed", -_INT64_MAX - 1, _INT64_MAX),
        stop=_stop(body.get("stop")),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        n=_choices(body, can),
        presence_penalty=_number(body, "presence_penalty", -2, 2),
        frequency_penalty=_number(body, "frequency_penalty", -2, 2),
        logit_bias=_bias(body.get("logit_bias")),
        extra=extra_params(body, can, model),
    )
    return ChatCall(
        request=request,
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream=stream),
        session=session_name("session_id", body["session_id"]) if "session_id" in body else None,
    )


def session_name(where: str, value: Any) -> str:
    """Return a client's name of a session: 1 to 128 visible ASCII characters."""
    name = string(where, value)
    if not 1 <= len(name) <= SESSION_LENGTH_MAX or not name.isascii() or not name.isprintable():
        refuse(where, f"must be 1 to {SESSION_LENGTH_MAX} visible ASCII characters.")
    if " " in name:
        refuse(where, "must not hold spaces.")
    return name


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    return False if value is None else boolean(name, value)


def _number(body: JsonObject, name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    return None if value is None else number(name, value, low, high)


def _integer(body: JsonObject, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    return None if value is None else integer(name, value, low, high)


def _limit(body: JsonObject) -> int:
    """Return the output limit, 0 if none; old and new name may come together if equal."""
    old = _integer(body, "max_tokens", 1, TOKENS_MAX)
    new = _integer(body, "max_completion_tokens", 1, TOKENS_MAX)
    if old is not None and new is not None and old != new:
        refuse("max_tokens", "differs from max_completion_tokens. Send one of them.")
    return new or old or 0


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if type(value) is str:
        return (_stop_word("stop", value),)
    words = array("stop", value, at_least=1, at_most=STOP_MAX)
    return tuple(_stop_word(f"stop[{index}]", word) for index, word in enumerate(words))


def _stop_word(where: str, value: Any) -> str:
    word = string(where, value, length_max=STOP_LENGTH_MAX)
    if not word:
        refuse(where, "must not be empty.")
    return word


def _logprobs(body: JsonObject, can: Capabilities) -> tuple[bool, int]:
    wanted = _flag(body, "logprobs")
    top = _integer(body, "top_logprobs", 0, 20)
    if wanted and not can.logprobs:
        refuse("logprobs", "the engine of this model gives no log probabilities.")
    if top is not None and not wanted:
        refuse("top_logprobs", "needs logprobs to be true.")
    return wanted, top or 0


def _choices(body: JsonObject, can: Capabilities) -> int:
    count = _integer(body, "n", 1, CHOICES_MAX) or 1
    if count > 1 and not can.choices:
        refuse("n", "the engine of this model gives one choice. Send 1, or several requests.")
    return count


def _bias(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    bias: dict[str, float] = {}
    items = mapping("logit_bias", value)
    if len(items) > BIASES_MAX:
        refuse("logit_bias", f"at most {BIASES_MAX} tokens are allowed, got {len(items)}.")
    for key, item in items.items():
        where = join("logit_bias", key)
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            refuse(where, "a key must be a token id.")
        bias[key] = integer(where, item, -100, 100)
    return bias or None


def _include_usage(value: Any, *, stream: bool) -> bool:
    if value is None:
        return False
    options = mapping("stream_options", value)
    if not stream:
        refuse("stream_options", "belongs to a call with stream true.")
    only_keys("stream_options", options, frozenset(("include_usage", "include_obfuscation")))
    if "include_obfuscation" in options and boolean(
        "stream_options.include_obfuscation", options["include_obfuscation"]
    ):
        refuse(
            "stream_options.include_obfuscation", "is not supported. Send false or leave it out."
        )
    if "include_usage" not in options:
        return False
    return boolean("stream_options.include_usage", options["include_usage"])

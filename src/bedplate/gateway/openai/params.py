"""Every parameter of a chat completion, decided one by one.

A parameter is one of four things, and never dropped in silence:

- understood: read into the `ChatRequest` by `wire`;
- harmless (`HARMLESS`): checked, then left alone, for a reason that stands beside it;
- the service's own (`RESERVED`): refused, as it would let a client speak for lane, tenant or slot;
- anything else: handed to an engine that declares it (`Capabilities.params`, `passes_unknown`), or
  refused by name, with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bedplate.engines.base import Capabilities, JsonObject
from bedplate.gateway.openai.checks import (
    array,
    boolean,
    free_form,
    join,
    mapping,
    one_of,
    refuse,
    string,
    unknown,
)

UNDERSTOOD = frozenset(
    (
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "response_format",
        "seed",
        "session_id",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
    )
)

NULLABLE = frozenset(
    (
        "audio",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "modalities",
        "moderation",
        "n",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "top_logprobs",
        "top_p",
        "verbosity",
    )
)
"""Where OpenAI's schema says that null means: not given."""


class Harmless(NamedTuple):
    """A parameter that changes nothing here. `check` refuses values for which that is not true."""

    check: Callable[[str, Any], object]
    reason: str


def _label(where: str, value: Any) -> None:
    string(where, value)


def _short_label(where: str, value: Any) -> None:
    string(where, value, length_max=64)


def _metadata(where: str, value: Any) -> None:
    pairs = mapping(where, value)
    if len(pairs) > 16:
        refuse(where, "at most 16 pairs are allowed.")
    for key, item in pairs.items():
        if len(key) > 64:
            refuse(join(where, key), "a key has at most 64 characters.")
        string(join(where, key), item, length_max=512)


def _not_stored(where: str, value: Any) -> None:
    if boolean(where, value):
        refuse(where, "completions are not kept for later retrieval. Send false or leave it out.")


def _usual_tier(where: str, value: Any) -> None:
    if string(where, value) not in ("auto", "default"):
        refuse(where, "the lane comes from the key. Send auto, or ask by X-Bedplate-Lane.")


def _usual_words(where: str, value: Any) -> None:
    if one_of(where, value, ("low", "medium", "high")) != "medium":
        refuse(where, "the engine of this model has one verbosity, medium.")


def _usual_cache(where: str, value: Any) -> None:
    if one_of(where, value, ("in_memory", "24h")) != "in_memory":
        refuse(where, "only in_memory is supported: how long KV stays is set by the lane.")


def _usual_cache_mode(where: str, value: Any) -> None:
    options = mapping(where, value)
    for key in options:
        if key != "mode":
            refuse(join(where, key), "is not supported: how long KV stays is set by the lane.")
    if "mode" in options and one_of(f"{where}.mode", options["mode"], ("implicit", "explicit")) != (
        "implicit"
    ):
        refuse(f"{where}.mode", "only implicit is supported: every prefix of a session is kept.")


def _text_only(where: str, value: Any) -> None:
    for index, item in enumerate(array(where, value)):
        if one_of(f"{where}[{index}]", item, ("text", "audio")) != "text":
            refuse(where, "the engine of this model speaks text only.")


HARMLESS: dict[str, Harmless] = {
    "metadata": Harmless(_metadata, "labels of a stored completion, which there is none of"),
    "modalities": Harmless(_text_only, "text is what every engine gives"),
    "prompt_cache_key": Harmless(_label, "many conversations share one; the prefix itself decides"),
    "prompt_cache_options": Harmless(_usual_cache_mode, "prefixes are kept without being asked"),
    "prompt_cache_retention": Harmless(_usual_cache, "KV is kept in memory by lease and value"),
    "safety_identifier": Harmless(_short_label, "a name for the caller's own end user"),
    "service_tier": Harmless(_usual_tier, "the usual tier is the lane of the credential"),
    "store": Harmless(_not_stored, "false asks for what is done anyway"),
    "user": Harmless(
        _label, "a name for the caller's own end user; the tenant is the credential's"
    ),
    "verbosity": Harmless(_usual_words, "medium is what a model without the setting does"),
}

RESERVED: dict[str, str] = {
    name: reason
    for reason, names in {
        "the lane of the key decides this": ("priority", "priority_score"),
        "the service keeps tenants' KV apart by it": ("cache_salt", "extra_key"),
        "the service assigns cards and slots": (
            "id_slot",
            "slot_id",
            "data_parallel_rank",
            "routed_dp_rank",
            "cache_prompt",
            "n_cache_reuse",
            "n_keep",
        ),
        "the service gives requests their ids": ("request_id", "rid", "id_task"),
        "the service moves KV itself": (
            "kv_transfer_params",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "session_params",
        ),
        "the service asks for it itself": ("return_progress", "timings_per_token"),
    }.items()
    for name in names
}

_OLD_FORMS = {
    "functions": "is deprecated and not supported. Use tools.",
    "function_call": "is deprecated and not supported. Use tool_choice.",
}


def extra_params(body: JsonObject, can: Capabilities, model: str) -> JsonObject:
    """Return the parameters beyond the understood ones that go to the engine as they are.

    Raises:
        InvalidRequest: naming the first parameter that nobody would act upon.
    """
    extra: JsonObject = {}
    for name, value in body.items():
        if name in UNDERSTOOD:
            continue
        if name in RESERVED:
            refuse(name, f"is not for clients: {RESERVED[name]}. Leave it out.")
        if value is None and name in NULLABLE:
            continue
        if name in can.params or (can.passes_unknown and name not in HARMLESS):
            free_form(join("", name), value)
            extra[name] = value
            continue
        harmless = HARMLESS.get(name)
        if harmless is not None:
            harmless.check(name, value)
            continue
        if name in _OLD_FORMS:
            refuse(name, _OLD_FORMS[name])
        known = UNDERSTOOD | HARMLESS.keys() | can.params
        unknown("", name, known, f"the engine of model {model} takes no such parameter.")
    return extra

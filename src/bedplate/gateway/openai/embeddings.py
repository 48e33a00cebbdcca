"""`/v1/embeddings`: the body checked, the vectors as OpenAI's object."""

from __future__ import annotations

import base64
import sys
from array import array as packed
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from bedplate.core.ids import ModelId
from bedplate.engines.base import Capabilities, Embeddings, JsonObject
from bedplate.gateway.openai.checks import array, one_of, refuse, string, unknown, wrong_type
from bedplate.gateway.openai.wire import model_of

INPUTS_MAX = 2048
_KNOWN = frozenset(("model", "input", "encoding_format", "user", "dimensions"))


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A checked body; `packed` asks for base64 of little-endian 32-bit floats."""

    model: ModelId
    inputs: tuple[str, ...]
    packed: bool


def read_embedding(body: JsonObject, can: Capabilities) -> EmbeddingCall:
    """Check the body against what the engine can do.

    Raises:
        InvalidRequest: naming the field that is wrong or not supported.
    """
    model = model_of(body)
    if not can.embeddings:
        refuse("model", f"the engine of model {model} gives no embeddings.")
    for name in body:
        if name not in _KNOWN:
            unknown("", name, _KNOWN, "no such parameter.")
    if "dimensions" in body:
        refuse("dimensions", "is not supported: vectors have the model's own size.")
    if "user" in body:
        string("user", body["user"])
    return EmbeddingCall(model, _inputs(body), _packed(body))


def embedding_body(call: EmbeddingCall, found: Embeddings) -> bytes:
    """Return the list object of the vectors, in the order of the inputs."""
    return orjson.dumps(
        {
            "object": "list",
            "model": call.model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _pack(vector) if call.packed else vector,
                }
                for index, vector in enumerate(found.vectors)
            ],
            "usage": {
                "prompt_tokens": found.prompt_tokens,
                "total_tokens": found.prompt_tokens,
            },
        }
    )


def _inputs(body: JsonObject) -> tuple[str, ...]:
    value = body.get("input")
    if type(value) is str:
        return (_text("input", value),)
    if type(value) is not list:
        wrong_type("input", "a string or an array of strings", value)
    items = array("input", value, at_least=1, at_most=INPUTS_MAX)
    if type(items[0]) in (int, list):
        refuse("input", "token ids are not supported. Send text.")
    return tuple(_text(f"input[{index}]", item) for index, item in enumerate(items))


def _text(where: str, value: object) -> str:
    text = string(where, value)
    if not text:
        refuse(where, "must not be empty.")
    return text


def _packed(body: JsonObject) -> bool:
    if "encoding_format" not in body:
        return False
    form = one_of("encoding_format", body["encoding_format"], ("float", "base64"))
    return form == "base64"


def _pack(vector: Sequence[float]) -> str:
    numbers = packed("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")

"""OpenAI's own description of the API, where this machine has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes.datasets import dataset


def schema_path() -> Path:
    """Return the file, or skip the test."""
    return dataset("openai-api-conformance", "dev", "openai_chat_completions_subset.json")


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(schema_path().read_text())
    return loaded


def chat_parameters() -> set[str]:
    """Return every parameter of a chat completion request."""
    schemas = schema()["components"]["schemas"]
    found: set[str] = set()
    todo = [schemas["CreateChatCompletionRequest"]]
    while todo:
        part = todo.pop()
        if "$ref" in part:
            part = schemas[part["$ref"].rpartition("/")[2]]
        found |= set(part.get("properties", ()))
        todo += part.get("allOf", ())
    assert {"model", "messages", "metadata", "temperature"} <= found
    return found

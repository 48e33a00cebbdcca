"""OpenAI's own description of the API, where this machine has it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

NAME = "openai-api-conformance/dev/openai_chat_completions_subset.json"


def schema_path() -> Path:
    """Return the file, or skip. It is in BEDPLATE_SHARED, else in a folder beside the checkout."""
    shared = os.environ.get("BEDPLATE_SHARED")
    folder = Path(shared) if shared else Path(__file__).parents[3] / "shared"
    path = folder / "data" / NAME
    if not path.is_file():
        pytest.skip(f"OpenAI's schema is not here: {path} (set BEDPLATE_SHARED)")
    return path


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

"""OpenAI's own schema against `bedplate serve` on embedded cards: no 5xx, and OpenAI's forms.

test_schemathesis.py draws much more, against a fake engine; here the real one must stand it too.
"""

from __future__ import annotations

import copy
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.fakes.openai_schema import schema as openai_schema
from tests.integration.served import CHAT, Served, until
from tests.integration.test_clients import TOOL
from tests.integration.test_schemathesis import NEGATIVE, OPERATIONS, SERVED, load, settings

EXAMPLES = 20
OUTPUT_MAX = 32


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """Return the part of OpenAI's description that is served, with the served model."""
    whole = copy.deepcopy(openai_schema())
    whole["paths"] = {
        path: {method: whole["paths"][path][method] for method in methods}
        for path, methods in SERVED.items()
    }
    components = whole["components"]
    components["responses"] = {"TooManyRequests": {"description": "Left out of the subset."}}
    model = {"type": "string", "enum": ["tiny"]}
    whole["paths"]["/models/{model}"]["get"]["parameters"][0]["schema"] = model
    components["schemas"]["ModelIdsShared"] = model
    components["schemas"]["CreateEmbeddingRequest"]["properties"]["model"] = model
    # Its discriminator names no value that OpenAI itself sends; the oneOf beside it does hold.
    del components["schemas"]["ChatCompletionMessageToolCalls"]["items"]["discriminator"]
    return whole


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_whatever_the_schema_draws_is_answered_or_refused_by_name(
    served_tiny: Served, described: dict[str, Any], path: str, method: str
) -> None:
    operation = load(described)[path][method.upper()]
    session = requests.Session()
    session.headers["authorization"] = f"Bearer {served_tiny.acme}"
    seen: set[int] = set()

    @settings(EXAMPLES)
    @hypothesis.given(
        case=operation.as_strategy() | operation.as_strategy(generation_mode=NEGATIVE)
    )
    def run(case: schemathesis.Case[Any]) -> None:
        body = case.body
        if path == "/chat/completions" and isinstance(body, dict) and "max_tokens" not in body:
            body.setdefault("max_completion_tokens", OUTPUT_MAX)  # or a random model goes on
        response = case.call(base_url=served_tiny.url + "/v1", session=session)
        seen.add(response.status_code)
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code != 200:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]
        elif response.headers["content-type"][0].startswith("application/json"):
            case.validate_response(response, checks=[response_schema_conformance])

    run()
    assert seen
    until(served_tiny.at_rest)


def test_the_simplest_drawn_conversations_are_answered(
    served_tiny: Served, described: dict[str, Any]
) -> None:
    """The schema's messages alone, on their own, so that the engine is reached and not the door."""
    small = copy.deepcopy(described)
    schemas = small["components"]["schemas"]
    schemas["CreateChatCompletionRequest"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "messages", "max_tokens", "stream", "tool_choice", "tools"],
        "properties": {
            "model": {"enum": ["tiny"]},
            "messages": {
                "type": "array",
                "minItems": 1,
                "maxItems": 4,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["role", "content"],
                    "properties": {
                        "role": {"enum": ["user", "assistant", "system"]},
                        "content": {"type": "string", "maxLength": 200},
                    },
                },
            },
            "max_tokens": {"type": "integer", "minimum": 1, "maximum": OUTPUT_MAX},
            "stream": {"type": "boolean"},
            "tool_choice": {"enum": ["none", "auto", "required"]},
            "tools": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"enum": [TOOL]}},
        },
    }
    operation = load(small)["/chat/completions"]["POST"]
    session = requests.Session()
    session.headers["authorization"] = f"Bearer {served_tiny.acme}"

    @settings(EXAMPLES)
    @hypothesis.given(case=operation.as_strategy())
    def run(case: schemathesis.Case[Any]) -> None:
        body: Any = case.body
        if body["stream"]:  # `case.call` reads the beginning of a stream only
            answer = session.post(served_tiny.url + CHAT, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
            return
        response = case.call(base_url=served_tiny.url + "/v1", session=session)
        assert response.status_code == 200, response.text
        case.validate_response(response, checks=[response_schema_conformance])

    run()
    until(served_tiny.at_rest)

"""OpenAI's own schema against a real server: whatever it generates is answered or refused by name.

Valid and invalid requests are drawn from the schema. No answer may be a 5xx, every 200 must have
the schema's form, every refusal OpenAI's error form, and no parameter may be dropped in silence.
"""

from __future__ import annotations

import asyncio
import copy
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import (
    CoveragePhaseConfig,
    FuzzingPhaseConfig,
    GenerationConfig,
    PhasesConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import response_schema_conformance

from bedplate.gateway.openai.params import HARMLESS, UNDERSTOOD
from tests.fakes.gateway_world import World, gateway_world
from tests.fakes.openai_schema import schema as openai_schema

EXAMPLES = 25
PARAMETER_EXAMPLES = 12
MESSAGES = [{"role": "user", "content": "hi"}]
REFUSED = {
    "audio",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "reasoning_effort",
    "web_search_options",
}
"""Parameters of OpenAI's that this world's engine does not take."""
SERVED = {
    "/chat/completions": ("post",),
    "/embeddings": ("post",),
    "/models": ("get",),
    "/models/{model}": ("get",),
}
NEGATIVE = schemathesis.GenerationMode.NEGATIVE
PARAMETERS = (UNDERSTOOD | set(HARMLESS) | REFUSED) - {"model", "messages", "session_id"}
OPERATIONS = [(path, method) for path, methods in SERVED.items() for method in methods]


@pytest.fixture(scope="module")
def served() -> dict[str, Any]:
    """Return the part of OpenAI's description that is served here, with this world's model."""
    whole = openai_schema()
    whole["paths"] = {
        path: {method: whole["paths"][path][method] for method in methods}
        for path, methods in SERVED.items()
    }
    components = whole["components"]
    components["responses"] = {"TooManyRequests": {"description": "Left out of the subset."}}
    model = {"type": "string", "enum": ["m"]}
    whole["paths"]["/models/{model}"]["get"]["parameters"][0]["schema"] = model
    components["schemas"]["ModelIdsShared"] = model
    components["schemas"]["CreateEmbeddingRequest"]["properties"]["model"] = model
    return whole


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run a gateway in a thread of its own."""
    folder: Path = tmp_path_factory.mktemp("schemathesis")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = gateway_world(folder)
    made = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)
    yield made
    asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def load(served: dict[str, Any]) -> schemathesis.BaseSchema:
    generation = GenerationConfig(
        modes=[schemathesis.GenerationMode.POSITIVE, NEGATIVE],
        max_examples=EXAMPLES,
        deterministic=True,
        allow_x00=True,
    )
    phases = PhasesConfig(
        coverage=CoveragePhaseConfig(enabled=False), fuzzing=FuzzingPhaseConfig(enabled=True)
    )
    project = ProjectConfig(generation=generation, phases=phases)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_dict(served, config=config)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_request_is_answered_or_refused_by_name(
    world: World, served: dict[str, Any], path: str, method: str
) -> None:
    operation = load(served)[path][method.upper()]
    seen: Counter[int] = Counter()
    session = session_of(world)

    @settings(EXAMPLES)
    @hypothesis.given(
        case=operation.as_strategy() | operation.as_strategy(generation_mode=NEGATIVE)
    )
    def run(case: Case[Any]) -> None:
        response = case.call(base_url=world.url + "/v1", session=session)
        seen[response.status_code] += 1
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code == 200:
            _check_answer(case, response)
        else:
            _check_refusal(response)

    run()
    assert seen


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_value_of_a_parameter_is_taken_or_refused_under_its_name(
    world: World, served: dict[str, Any], name: str
) -> None:
    """One parameter at a time, so that the schema's values reach the check of that parameter."""
    small = copy.deepcopy(served)
    schemas = small["components"]["schemas"]
    schemas["CreateChatCompletionRequest"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "messages", name],
        "properties": {
            "messages": {"enum": [MESSAGES]},
            name: find(schemas, schemas["CreateChatCompletionRequest"], name),
            "model": {"enum": ["m"]},
        },
    }
    operation = load(small)["/chat/completions"]["POST"]
    session = session_of(world)

    @settings(PARAMETER_EXAMPLES)
    @hypothesis.given(case=operation.as_strategy())
    def run(case: Case[Any]) -> None:
        response = case.call(base_url=world.url + "/v1", session=session)
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code == 200:
            _check_answer(case, response)
        else:
            assert response.status_code == 400
            assert re.split(r"[.\[]", response.json()["error"]["param"])[0] == name

    run()


def find(schemas: dict[str, Any], part: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a property, wherever an object is put together from others."""
    if "$ref" in part:
        part = schemas[part["$ref"].rpartition("/")[2]]
    if name in part.get("properties", ()):
        found: dict[str, Any] = part["properties"][name]
        return found
    for each in part.get("allOf", ()):
        try:
            return find(schemas, each, name)
        except KeyError:
            continue
    raise KeyError(name)


def session_of(world: World) -> requests.Session:
    session = requests.Session()
    session.headers["authorization"] = f"Bearer {world.acme}"
    return session


def _check_answer(case: Case[Any], response: Any) -> None:
    packed = isinstance(case.body, dict) and case.body.get("encoding_format") == "base64"
    if response.headers["content-type"][0].startswith("application/json") and not packed:
        # The schema knows the floats only, and the official client asks for base64.
        case.validate_response(response, checks=[response_schema_conformance])
    if case.path.endswith("/completions") and isinstance(case.body, dict):
        given = {name for name, value in case.body.items() if value is not None}
        assert given <= UNDERSTOOD | set(HARMLESS) | {"top_k"}, "a parameter was dropped"


def _check_refusal(response: Any) -> None:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert 400 <= response.status_code < 500

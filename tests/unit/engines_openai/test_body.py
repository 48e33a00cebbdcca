"""What an endpoint is sent, and what is refused before."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.config.engines import CapabilityOverrides, OpenaiEngine
from bedplate.core.ids import ModelId, TenantId
from bedplate.engines.base import Capabilities, ChatRequest
from bedplate.engines.openai import body as bodies
from bedplate.engines.openai.servers import RESERVED_PARAMS, SERVERS, capabilities_of
from bedplate.errors import InvalidRequest

ASK = {"role": "user", "content": "hi"}
PLAIN = Capabilities(kv="hints")


def request(**fields: Any) -> ChatRequest:
    fields.setdefault("messages", (ASK,))
    return ChatRequest(model=ModelId("m"), **fields)


def parts(*kinds: str) -> ChatRequest:
    return request(messages=({"role": "user", "content": [{"type": kind} for kind in kinds]},))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (request(tools=({"type": "function"},)), "tools"),
        (request(response_format={"type": "json_schema"}), "response_format"),
        (request(logprobs=True), "logprobs"),
        (request(top_logprobs=1), "logprobs"),
        (request(n=2), "n"),
        (request(extra={"min_p": 0.1}), "min_p"),
        (parts("text", "image_url"), "messages[0].content"),
        (parts("input_audio"), "messages[0].content"),
        (parts("video_url"), "messages[0].content"),
    ],
)
def test_what_the_endpoint_cannot_do_is_refused_by_name(asked: ChatRequest, param: str) -> None:
    with pytest.raises(InvalidRequest, match="engine up") as error:
        bodies.check(asked, PLAIN, "up")
    assert error.value.param == param


def test_what_it_can_do_passes() -> None:
    able = Capabilities(
        kv="hints",
        tools=True,
        grammar=True,
        logprobs=True,
        choices=True,
        images=True,
        params=frozenset({"min_p"}),
    )
    bodies.check(
        request(
            messages=({"role": "user", "content": [{"type": "text"}, {"type": "image_url"}]},),
            tools=({"type": "function"},),
            response_format={"type": "json_schema"},
            logprobs=True,
            n=2,
            extra={"min_p": 0.1},
        ),
        able,
        "up",
    )
    bodies.check(request(response_format={"type": "text"}), PLAIN, "up")


@pytest.mark.parametrize("name", sorted(RESERVED_PARAMS))
def test_no_client_sets_what_isolates_or_orders_tenants(name: str) -> None:
    able = Capabilities(kv="hints", passes_unknown=True, params=frozenset({name}))
    with pytest.raises(InvalidRequest, match=name):
        bodies.check(request(extra={name: 1}), able, "up")


def test_salts_differ_by_tenant_and_by_secret_and_do_not_tell_the_tenant() -> None:
    salt = bodies.salt_of(TenantId("bank"), b"secret")
    assert salt == bodies.salt_of(TenantId("bank"), b"secret")
    assert salt != bodies.salt_of(TenantId("rival"), b"secret")
    assert salt != bodies.salt_of(TenantId("bank"), b"other")
    assert "bank" not in salt


@pytest.mark.parametrize(
    ("asked", "can"),
    [
        (request(), True),
        (request(response_format={"type": "text"}), True),
        (request(response_format={"type": "json_object"}), False),
        (request(tools=({"type": "function"},)), False),
        (request(n=2), False),
        (request(logprobs=True), False),
        (request(seed=7), False),
        (request(seed=7, temperature=0.0), True),
    ],
)
def test_only_plain_text_is_resumed(asked: ChatRequest, *, can: bool) -> None:
    assert bodies.resumable(asked, Capabilities(kv="hints", resumable=True)) is can
    assert bodies.resumable(asked, PLAIN) is False


def test_the_configuration_corrects_what_the_kind_implies() -> None:
    corrections = CapabilityOverrides(salt=False, images=True, params=("min_p",))
    settings = OpenaiEngine(
        name="up",
        model="m",
        url="http://host/v1",
        server="vllm",
        tokenizer="endpoint",
        capabilities=corrections,
    )
    able = capabilities_of(settings)
    known = SERVERS["vllm"].capabilities
    assert (able.salt, able.images, able.tokenizer, able.params) == (
        False,
        True,
        True,
        frozenset({"min_p"}),
    )
    assert (able.priority, able.tools, able.kv) == (known.priority, known.tools, "hints")


def test_every_kind_of_the_configuration_is_known() -> None:
    kinds = OpenaiEngine.model_fields["server"].annotation
    assert set(SERVERS) == set(kinds.__args__)  # type: ignore[union-attr]

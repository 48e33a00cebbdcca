"""What a path that is no endpoint is answered with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bedplate.gateway.app import Gateway, Route


@pytest.fixture
def gateway() -> Gateway:
    route = Route("models", {})
    parts: Any = SimpleNamespace()
    return Gateway(parts, {"/v1/models": route, "/v1/admin/state": route, "/healthz": route}, {})


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/images/generations"])
def test_an_unknown_path_lists_the_endpoints(gateway: Gateway, path: str) -> None:
    told = gateway._no_endpoint(path)
    assert told == f"There is no endpoint {path!r}. There are /v1/chat/completions, /v1/models."


def test_what_is_below_a_path_is_listed_too() -> None:
    route = Route("sessions", {})
    parts: Any = SimpleNamespace()
    gateway = Gateway(parts, {}, {"/v1/sessions/": route, "/v1/admin/cards/": route})
    told = gateway._no_endpoint("/v1/session")
    assert told.endswith("/v1/sessions/{id}, /v1/sessions/{id}/progress.")
    assert "admin" not in told


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions"])
def test_other_ways_to_ask_name_the_one_that_is_served(gateway: Gateway, path: str) -> None:
    assert gateway._no_endpoint(path) == f"{path} is not served; use /v1/chat/completions."


@pytest.mark.parametrize("path", ["/", "/v2/models", "/v1beta/models"])
def test_elsewhere_the_beginning_of_the_api_is_named(gateway: Gateway, path: str) -> None:
    told = gateway._no_endpoint(path)
    assert told == f"There is no endpoint {path!r}. The API begins with /v1."

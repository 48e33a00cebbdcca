"""What a refusal of the running service looks like on the command line."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from email.message import Message
from typing import NoReturn

import pytest

from bedplate.cli.operator import Operator, call
from bedplate.errors import ConfigError


def test_a_refusal_is_the_services_own_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"error": {"message": "There is no such card."}}).encode()

    def refuse(request: urllib.request.Request, **_: object) -> NoReturn:
        raise urllib.error.HTTPError(request.full_url, 404, "x", Message(), io.BytesIO(body))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(ConfigError, match=r"^There is no such card\.$"):
        call(Operator("http://127.0.0.1:1", "k", None, {}), "POST", "/v1/admin/cards/x/drain")

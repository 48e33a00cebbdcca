"""A caller of recognition for its tests, and the messages of a small conversation."""

from __future__ import annotations

import itertools
from typing import Any

from bedplate.core.ids import ModelId, TenantId, TurnId
from bedplate.engines.base import ChatRequest
from bedplate.gateway.forest import Bounds
from bedplate.gateway.recognition import Placement, Recogniser

BANK, FUND = TenantId("bank"), TenantId("fund")
MODEL = ModelId("m")
SECOND = 10**9
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


class Client:
    """Calls a recogniser as the gateway does, with stable ids."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.ids = itertools.count()
        self.turns = itertools.count()
        self.recogniser = Recogniser(lambda: f"{next(self.ids):04x}", bounds)

    def call(
        self,
        *messages: dict[str, Any],
        tenant: TenantId = BANK,
        name: str | None = None,
        tools: tuple[dict[str, Any], ...] = (),
        model: ModelId = MODEL,
        now: int = 0,
        body: bytes = b"",
    ) -> Placement:
        request = ChatRequest(model=model, messages=messages, tools=tools)
        return self.recogniser.match(
            tenant,
            model,
            request,
            name,
            now,
            turn=TurnId(f"t{next(self.turns)}"),
            body_hash=body,
        )

    def end(
        self, placement: Placement, answer: str | None, *, cut: bool = False, now: int = 0
    ) -> dict[str, Any] | None:
        message = None if answer is None else say("assistant", answer)
        return self.recogniser.turn_ended(placement, message, now, disconnected=cut)

    def told(self, answer: str, *messages: dict[str, Any], **more: Any) -> Placement:
        placement = self.call(*messages, **more)
        self.end(placement, answer)
        return placement


def place(placement: Placement) -> tuple[str, str, int, int]:
    return placement.kind, placement.session, placement.branch, placement.fork_of


HELLO = say("user", "what is my balance?")
ANSWER = say("assistant", "let me look")
RESULT = say("tool", "12 EUR")

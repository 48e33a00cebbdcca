"""Operators' endpoints, behind an admin key: cards out and in, the whole state."""

from __future__ import annotations

from bedplate.core.events import CardDraining
from bedplate.core.ids import CardId
from bedplate.engines.base import JsonObject
from bedplate.gateway.endpoints import durable, respond_json
from bedplate.gateway.errors_http import UnknownPath
from bedplate.gateway.http import Exchange
from bedplate.gateway.parts import Parts

CARDS = "/v1/admin/cards/"
STATE = "/v1/admin/state"
NAME_LENGTH_MAX = 128


class Admin:
    """`POST /v1/admin/cards/{id}/drain` and `/undrain`, `GET /v1/admin/state`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def card(self, exchange: Exchange) -> None:
        """Take a card out (running turns end, sessions move, none are cut), or back in."""
        parts = self._parts
        credential = parts.door.admit_operator(exchange)
        name, _, verb = exchange.path.removeprefix(CARDS).rpartition("/")
        if verb not in ("drain", "undrain"):
            raise UnknownPath("Cards take /drain and /undrain.")
        known = [str(card["card"]) for card in parts.view.cards()]
        if name not in known:
            raise UnknownPath(f"No card {name[:NAME_LENGTH_MAX]!r}; there are: {', '.join(known)}.")
        parts.runtime.check_writable()
        on = verb == "drain"
        seq = parts.runtime.post(CardDraining(CardId(name), on))
        body = {"key": credential.key_id, "verb": verb, "card": name, "event_seq": seq}
        noted = parts.runtime.note("operator", credential.tenant, "", body)
        await durable(parts.runtime, noted)
        shown: JsonObject = {"card": name, "draining": on}
        if on and (model := self._left_without(name)):
            shown["warning"] = (
                f"No card of {model} is in now: calls for it wait, then fail. "
                "Bring this card or another one back in (undrain)."
            )
        await respond_json(exchange, shown)

    def _left_without(self, name: str) -> str:
        """Return the model of a card if no card serves that model now, else an empty string."""
        cards = self._parts.view.cards()
        model = next(str(card["model"]) for card in cards if card["card"] == name)
        serving = (c for c in cards if c["model"] == model and c["up"] and not c["draining"])
        return "" if any(serving) else model

    async def state(self, exchange: Exchange) -> None:
        """Answer with cards, pool, lanes and sessions, and why each turn waits."""
        parts = self._parts
        parts.door.admit_operator(exchange)
        name_of = parts.recogniser.public_id
        found = parts.view.sessions(None)
        sessions = [{**shown, "name": name_of(session)} for session, shown in found]
        await respond_json(exchange, {**parts.view.state(), "sessions": sessions})

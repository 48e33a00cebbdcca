"""Slices over HTTP, behind an admin key: asked for, listed, given back.

They change the policy that the core runs under, so the journal has them in `PolicyChanged`.
"""

from __future__ import annotations

from bedplate.core.events import PolicyChanged
from bedplate.core.ids import ModelId, TenantId
from bedplate.core.limits import LANE_NAMES, Slice
from bedplate.engines.base import JsonObject
from bedplate.errors import InvalidRequest, RequestError
from bedplate.gateway.endpoints import durable, respond_json
from bedplate.gateway.errors_http import UnknownPath
from bedplate.gateway.http import Exchange
from bedplate.gateway.openai.checks import integer, only_keys, refuse, string
from bedplate.gateway.openai.wire import check_content_encoding, check_content_type, decode
from bedplate.gateway.parts import Parts

SLICES = "/v1/admin/slices"
SLICE = SLICES + "/"
KEYS = frozenset(("id", "tenant", "model", "cards", "kv_tokens", "lane", "from_ns", "until_ns"))
BODY_BYTES_MAX = 4_096
NAME_LENGTH_MAX = 128
SLICES_MAX = 1_000
CARDS_MAX = 1 << 20
TOKENS_MAX = 1 << 40
TIME_MAX_NS = (1 << 63) - 1


class SliceRefused(RequestError):
    """What is asked for is not free for the whole time."""

    code = "slice_refused"
    http_status = 409
    action = "Ask for less, for another time, or give another slice back; `bedplate slice list`."


class Slices:
    """`GET` and `POST /v1/admin/slices`, `DELETE /v1/admin/slices/{id}`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def show(self, exchange: Exchange) -> None:
        """Answer with the slices that are not over, and the cards that each has now."""
        parts = self._parts
        parts.door.admit_operator(exchange)
        now_ns = parts.runtime.now_ns()
        held: dict[str, list[str]] = {}
        for card in parts.view.cards():
            held.setdefault(str(card["slice"]), []).append(str(card["card"]))
        data = [shown(part, held.get(part.id, [])) for part in self._alive(now_ns)]
        await respond_json(exchange, {"object": "list", "now_ns": now_ns, "data": data})

    async def add(self, exchange: Exchange) -> None:
        """Put a slice into the policy if it fits. Durable when answered."""
        parts = self._parts
        credential = parts.door.admit_operator(exchange)
        check_content_type(exchange.header(b"content-type"))
        check_content_encoding(exchange.header(b"content-encoding"))
        body = decode(await exchange.body(size_max=BODY_BYTES_MAX))
        now_ns = parts.runtime.now_ns()
        part = read_slice(body, now_ns)
        parts.runtime.engine_for(part.model)  # one that nobody serves is misspelt
        alive = self._alive(now_ns)
        if any(other.id == part.id for other in alive):
            raise InvalidRequest(f"There is a slice {part.id!r} already; give it back first.")
        if len(alive) >= SLICES_MAX:
            raise SliceRefused(f"There are {SLICES_MAX} slices, which is the most.")
        parts.door.check_tenant(part.tenant)
        why = parts.view.slice_refusal(part)
        if why:
            raise SliceRefused(f"The slice does not fit: {why}.")
        kept = sorted([*alive, part], key=lambda one: one.id)
        await self._put(credential.tenant, credential.key_id, "add", part.id, kept)
        await respond_json(exchange, shown(part, self._cards_of(part.id)), status=201)

    async def remove(self, exchange: Exchange) -> None:
        """Give a slice back. Durable when answered."""
        parts = self._parts
        credential = parts.door.admit_operator(exchange)
        name = exchange.path.removeprefix(SLICE)
        alive = self._alive(parts.runtime.now_ns())
        kept = [part for part in alive if part.id != name]
        if len(kept) == len(alive):
            there = ", ".join(part.id for part in alive) or "none"
            raise UnknownPath(f"No slice {name[:NAME_LENGTH_MAX]!r}; there are: {there}.")
        await self._put(credential.tenant, credential.key_id, "remove", name, kept)
        await respond_json(exchange, {"id": name, "object": "slice", "removed": True})

    def _alive(self, now_ns: int) -> list[Slice]:
        return [part for part in self._parts.view.policy().slices if now_ns < part.until_ns]

    def _cards_of(self, name: str) -> list[str]:
        return [str(card["card"]) for card in self._parts.view.cards() if card["slice"] == name]

    async def _put(self, tenant: str, key: str, verb: str, name: str, parts: list[Slice]) -> None:
        runtime = self._parts.runtime
        runtime.check_writable()
        policy = self._parts.view.policy()
        seq = runtime.post(PolicyChanged(policy._replace(slices=tuple(parts))))
        body = {"key": key, "verb": verb, "slice": name, "event_seq": seq}
        await durable(runtime, runtime.note("operator", TenantId(tenant), "", body))


def shown(part: Slice, cards: list[str]) -> JsonObject:
    """Return a slice as the API shows it: its lane by name, and the cards that it has now."""
    lane = LANE_NAMES[part.lane] if part.lane >= 0 else None
    return {**part._asdict(), "object": "slice", "lane": lane, "cards_held": cards}


def read_slice(body: JsonObject, now_ns: int) -> Slice:
    """Return the slice that a body asks for.

    Raises:
        InvalidRequest: a field is missing, unknown or out of range; the message names it.
    """
    only_keys("", body, KEYS)
    names = {}
    for key in ("id", "tenant", "model"):
        names[key] = string(key, body.get(key, ""), length_max=NAME_LENGTH_MAX)
        if not names[key]:
            refuse(key, "is missing.")
    if "/" in names["id"]:
        refuse("id", "must not hold a slash.")
    lane = body.get("lane")
    if lane is not None and lane not in LANE_NAMES:
        refuse("lane", f"must be one of {', '.join(LANE_NAMES)}.")
    cards = integer("cards", body.get("cards", 0), 0, CARDS_MAX)
    kv_tokens = integer("kv_tokens", body.get("kv_tokens", 0), 0, TOKENS_MAX)
    if (cards > 0) == (kv_tokens > 0):
        refuse("cards", "or kv_tokens is required, and one of them only.")
    if lane is not None and not cards:
        refuse("lane", "goes with cards only: a reserve of KV is for all lanes.")
    if "until_ns" not in body:
        refuse("until_ns", "is missing: a slice ends at some time.")
    from_ns = integer("from_ns", body.get("from_ns", now_ns), 0, TIME_MAX_NS)
    until_ns = integer("until_ns", body["until_ns"], 0, TIME_MAX_NS)
    if until_ns <= max(from_ns, now_ns):
        refuse("until_ns", "must be after from_ns, and not be over.")
    return Slice(
        id=names["id"],
        tenant=TenantId(names["tenant"]),
        model=ModelId(names["model"]),
        cards=cards,
        kv_tokens=kv_tokens,
        lane=LANE_NAMES.index(lane) if lane is not None else -1,
        from_ns=from_ns,
        until_ns=until_ns,
    )

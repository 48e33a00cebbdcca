"""What the gateway needs of the runtime, no more: the seam that its tests put a fake behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from prometheus_client.core import Metric

from bedplate.core.events import Event
from bedplate.core.ids import CardId, ModelId, SessionId, TenantId
from bedplate.core.limits import Policy, Slice
from bedplate.engines.base import Embeddings, Engine, JsonObject, Output
from bedplate.journal import Content
from bedplate.runtime.stats import Stats
from bedplate.runtime.turns import Call


class Stream(Protocol):
    """The client's side of a turn; see `bedplate.runtime.turns.TurnStream`."""

    arrival_ns: int
    started_ns: int
    queue_ns: int
    card: CardId

    def __aiter__(self) -> Stream: ...

    async def __anext__(self) -> Sequence[Output]: ...

    def cancel(self, reason: str) -> None:
        """Give the turn up; the iteration ends at once."""
        ...


class Runtime(Protocol):
    """The running service; see `bedplate.runtime.service.Service`."""

    def now_ns(self) -> int:
        """Return the time now; it never falls."""
        ...

    def engine_for(self, model: ModelId) -> Engine:
        """Return the engine that serves `model`; raises UnknownModel."""
        ...

    def models(self) -> Sequence[ModelId]:
        """Return the served names, in the configuration's order."""
        ...

    def submit(self, call: Call) -> Stream:
        """Journal the arrival and let the core decide."""
        ...

    async def embed(
        self, tenant: TenantId, lane: int, model: ModelId, inputs: Sequence[str]
    ) -> Embeddings:
        """Embed texts, metered."""
        ...

    def close_session(self, session: SessionId, reason: str) -> int:
        """End a session: running turns are cancelled, its KV is dropped."""
        ...

    @property
    def ready(self) -> bool:
        """True while a new turn has a chance."""
        ...

    def stats(self) -> Stats:
        """Read the counters."""
        ...

    def post(self, event: Event) -> int:
        """Give the core an event; returns its record's number."""
        ...

    def note(
        self,
        kind: str,
        tenant: str,
        session: str,
        body: dict[str, Any],
        contents: Sequence[Content] = (),
    ) -> int:
        """Journal a note; returns its record's number."""
        ...

    def check_writable(self) -> None:
        """Raise JournalError while the journal cannot be written."""
        ...

    async def committed(self, seq: int) -> None:
        """Return once record `seq` is durable."""
        ...

    def on_session_end(self, callback: Callable[[SessionId], None]) -> None:
        """Call back whenever a session leaves the core's memory."""
        ...


class Bucket(NamedTuple):
    """A tenant's limit a minute: how much it is, how much is left, seconds until it is full."""

    limit: int
    remaining: int
    full_in_s: float


class RateLimits(NamedTuple):
    """What a tenant may still ask for; None where it has no such limit."""

    requests: Bucket | None
    tokens: Bucket | None


class View(Protocol):
    """What the gateway shows of the core's state, as JSON values; see `bedplate.gateway.view`."""

    def policy(self) -> Policy:
        """Return the policy in force."""
        ...

    def slice_refusal(self, part: Slice) -> str:
        """Say why a slice does not fit what is free, "" when it does."""
        ...

    def session(self, session: SessionId) -> JsonObject | None:
        """Return one session, None when core does not hold it."""
        ...

    def sessions(self, tenant: TenantId | None) -> list[tuple[SessionId, JsonObject]]:
        """Return the sessions of a tenant, or of all."""
        ...

    def cards(self) -> list[JsonObject]:
        """Return every card, in order."""
        ...

    def state(self) -> JsonObject:
        """Return cards, what is wrong with those not up, pool, lanes, tenants, counters."""
        ...

    def limits(self, tenant: TenantId) -> RateLimits | None:
        """Return the tenant's rate limits, None when it has none."""
        ...

    def families(self) -> Iterator[Metric]:
        """Yield the core's gauges and counters for one scrape."""
        ...

"""The core's state as JSON values and metric families, for sessions, operators and scrapers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bedplate.core import slices, view
from bedplate.core.base import Base
from bedplate.core.ids import SessionId, TenantId
from bedplate.core.limits import Policy, Slice
from bedplate.core.units import MINUTE_NS, SECOND_NS
from bedplate.engines.base import Engine, JsonObject
from bedplate.gateway.ports import Bucket, RateLimits


class HasCore(Protocol):
    """What owns the core that is shown."""

    @property
    def base(self) -> Base:
        """The core."""
        ...

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines, which know why a card is not up."""
        ...

    def now_ns(self) -> int:
        """Return the time of its clock."""
        ...


class CoreView:
    """Reads the live core; changes nothing."""

    def __init__(self, owner: HasCore) -> None:
        self._owner = owner

    def session(self, session: SessionId) -> JsonObject | None:
        """Return one session, None when core does not hold it."""
        found = view.session(self._owner.base, session)
        return None if found is None else _session(found)

    def sessions(self, tenant: TenantId | None) -> list[tuple[SessionId, JsonObject]]:
        """Return the sessions of a tenant, or of all, oldest first. Cost: O(sessions)."""
        return [
            (SessionId(found.session), _session(found))
            for found in view.sessions(self._owner.base)
            if tenant is None or found.tenant == tenant
        ]

    def cards(self) -> list[JsonObject]:
        """Return every card, in order."""
        return [card._asdict() for card in view.cards(self._owner.base)]

    def policy(self) -> Policy:
        """Return the policy in force."""
        return self._owner.base.state.policy

    def slice_refusal(self, part: Slice) -> str:
        """Say why a slice does not fit what is free, "" when it does."""
        return slices.refusal(self._owner.base.state, part)

    def state(self) -> JsonObject:
        """Return cards, what is wrong with those not up, pool, lanes, tenants, counters."""
        base = self._owner.base
        problems = [engine.problems for engine in self._owner.engines]
        return {
            "now_ns": self._owner.now_ns(),
            "currency": base.state.policy.prices.currency,
            "cards": self.cards(),
            "problems": {card: text for found in problems for card, text in found.items()},
            "pool": view.pool(base)._asdict(),
            "lanes": [lane._asdict() for lane in view.lanes(base)],
            "tenants": [tenant._asdict() for tenant in view.tenants(base)],
            "counters": view.counters(base),
        }

    def limits(self, tenant: TenantId) -> RateLimits | None:
        """Return the tenant's rate limits, None when it has none. Cost: a microsecond."""
        found = self._owner.base.state.tenants.get(tenant)
        if found is None:
            return None
        policy = found.policy
        if not policy.requests_per_minute and not policy.tokens_per_minute:
            return None
        past_ns = max(0, self._owner.now_ns() - found.refilled_ns)
        return RateLimits(
            _bucket(policy.requests_per_minute, found.request_level, past_ns),
            _bucket(policy.tokens_per_minute, found.token_level, past_ns),
        )

    def families(self) -> Iterator[Metric]:
        """Yield the core's gauges and counters for one scrape. Cost: O(turns + sessions)."""
        base = self._owner.base
        yield from _card_families(view.cards(base))
        pool = view.pool(base)
        for name, text, value in (
            ("bedplate_pool_used_bytes", "KV bytes in the pool.", pool.used_bytes),
            ("bedplate_pool_total_bytes", "Cap of the pool.", pool.total_bytes),
            ("bedplate_pool_entries", "Stored copies.", pool.entries),
            ("bedplate_pool_water_level", "Water levels reached, 0 is all clear.", pool.level),
        ):
            yield GaugeMetricFamily(name, text, value)
        yield from _tenant_families(view.tenants(base))
        lanes = view.lanes(base)
        for name, text, values in (
            ("bedplate_lane_waiting", "Turns that wait.", [lane.waiting for lane in lanes]),
            ("bedplate_lane_running", "Turns on cards.", [lane.running for lane in lanes]),
            ("bedplate_lane_sessions", "Live sessions.", [lane.sessions for lane in lanes]),
        ):
            family = GaugeMetricFamily(name, text, labels=("lane",))
            for lane, number in zip(lanes, values, strict=True):
                family.add_metric((lane.lane,), number)
            yield family
        counters = CounterMetricFamily(
            "bedplate_core", "Counters of the core, by name.", labels=("name",)
        )
        for name, number in view.counters(base).items():
            counters.add_metric((name,), number)
        yield counters


def _card_families(cards: list[view.CardView]) -> Iterator[Metric]:
    for name, text, values in (
        ("bedplate_card_up", "1 while the card serves.", [int(c.up) for c in cards]),
        ("bedplate_card_draining", "1 while it is taken out.", [int(c.draining) for c in cards]),
        (
            "bedplate_card_breaker",
            "0 while turns may begin, 1 while one tries it, 2 while it is left alone.",
            [("closed", "half_open", "open").index(c.breaker) for c in cards],
        ),
        ("bedplate_card_running", "Turns that run.", [c.running for c in cards]),
        ("bedplate_card_slots", "Slots.", [c.slots for c in cards]),
        ("bedplate_card_slots_held", "Slots that hold KV.", [c.slots_held for c in cards]),
        ("bedplate_kv_used_tokens", "KV in use, in tokens.", [c.kv_used_tokens for c in cards]),
        ("bedplate_kv_total_tokens", "KV room, in tokens.", [c.kv_total_tokens for c in cards]),
        ("bedplate_card_water_level", "Water levels reached.", [c.level for c in cards]),
    ):
        gauge = GaugeMetricFamily(name, text, labels=("card", "model"))
        for card, number in zip(cards, values, strict=True):
            gauge.add_metric((card.card, card.model), number)
        yield gauge
    tokens = CounterMetricFamily(
        "bedplate_card_tokens",
        "The engine's own count since the card came up: prompt, cached, output.",
        labels=("card", "model", "kind"),
    )
    for card in cards:
        tokens.add_metric((card.card, card.model, "prompt"), card.prompt_tokens_total)
        tokens.add_metric((card.card, card.model, "cached"), card.cached_tokens_total)
        tokens.add_metric((card.card, card.model, "output"), card.out_tokens_total)
    yield tokens


def _tenant_families(tenants: list[view.TenantView]) -> Iterator[Metric]:
    for name, text, values in (
        ("bedplate_tenant_kv_tokens", "KV on cards.", [t.card_tokens for t in tenants]),
        (
            "bedplate_tenant_kv_running_tokens",
            "KV of running turns.",
            [t.running_tokens for t in tenants],
        ),
        ("bedplate_tenant_water_level", "Water levels reached.", [t.level for t in tenants]),
    ):
        gauge = GaugeMetricFamily(name, text, labels=("tenant",))
        for tenant, number in zip(tenants, values, strict=True):
            gauge.add_metric((tenant.tenant,), number)
        yield gauge


def _bucket(limit: int, level: int, past_ns: int) -> Bucket | None:
    """Return a bucket as it is `past_ns` after its level was last brought up to date."""
    if not limit:
        return None
    full = limit * MINUTE_NS
    now = min(full, level + past_ns * limit)
    return Bucket(limit, now // MINUTE_NS, (full - now) / limit / SECOND_NS)


def _session(found: view.SessionView) -> JsonObject:
    shown = found._asdict()
    shown["id"] = shown.pop("session")
    shown["branches"] = [branch._asdict() for branch in found.branches]
    return shown

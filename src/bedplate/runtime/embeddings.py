"""Embeddings: limits of the tenant, the engine's work, metering.

The core takes no part: an embedding keeps no KV and has no next turn, so there is nothing to admit
or to place, and its engine queues what it cannot run at once. The limits are the core's own, with
its own arithmetic, in buckets beside those of the turns: a tenant's embeddings cannot use up what
its turns may, nor the other way round, and replay needs to know of turns only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bedplate.core import tenant as limits
from bedplate.core.actions import Settled
from bedplate.core.ids import ModelId, TenantId
from bedplate.core.limits import Policy
from bedplate.core.states import Tenant
from bedplate.core.units import MINUTE_NS
from bedplate.engines.base import Embeddings, Engine
from bedplate.errors import QuotaExceeded
from bedplate.runtime.outcome import embedding_use, error_of

CHARACTERS_A_TOKEN = 4
"""Tokens are booked by this until the engine has counted them."""


class Embedder:
    """Runs embedding calls within each tenant's limits: in flight, requests and tokens a minute."""

    def __init__(self, policy: Policy, now_ns: Callable[[], int]) -> None:
        self._policies = {each.tenant: each for each in policy.tenants}
        self._default = policy.default_tenant
        self._now_ns = now_ns
        self._tenants: dict[TenantId, Tenant] = {}

    async def run(
        self, tenant: TenantId, lane: int, engine: Engine, inputs: Sequence[str]
    ) -> tuple[Embeddings, Settled]:
        """Embed texts; return the vectors and the use to be metered.

        Raises:
            QuotaExceeded: a limit of the tenant is reached.
        """
        payer = self._payer(tenant)
        began_ns = self._now_ns()
        over = limits.refusal(payer, began_ns)
        if over is not None:
            what, wait_ns = over
            raise error_of(QuotaExceeded.code, what, retry_after_ns=wait_ns, refused=True)
        booked = sum(len(text) // CHARACTERS_A_TOKEN + 1 for text in inputs)
        payer.inflight += 1
        _book(payer, requests=1, tokens=booked)
        used = 0
        try:
            result = await engine.embed(inputs)
            used = result.prompt_tokens
        finally:
            payer.inflight -= 1
            _book(payer, requests=0, tokens=used - booked)
        took_ns = self._now_ns() - began_ns
        model: ModelId = engine.model
        return result, embedding_use(tenant, lane, model, used, took_ns=took_ns)

    def _payer(self, tenant: TenantId) -> Tenant:
        payer = self._tenants.get(tenant)
        if payer is None:
            policy = self._policies.get(tenant, self._default)
            payer = self._tenants[tenant] = Tenant(tenant, policy, self._now_ns())
        return payer


def _book(payer: Tenant, *, requests: int, tokens: int) -> None:
    """Take from the buckets that have a limit; what is given back never overfills one."""
    policy = payer.policy
    if policy.requests_per_minute:
        payer.request_level -= requests * MINUTE_NS
    if policy.tokens_per_minute:
        cap = policy.tokens_per_minute * MINUTE_NS
        payer.token_level = min(cap, payer.token_level - tokens * MINUTE_NS)

"""Embeddings: the core's word, the engine's work, the row.

An embedding keeps no KV and has no next turn, so the core places nothing: it counts the call
against its tenant's limits and meters it, and the engine queues what it cannot run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bedplate.core.events import CallArrived, CallEnded, Event
from bedplate.core.ids import TenantId, TurnId
from bedplate.engines.base import Embeddings, Engine, embedding_tokens_max
from bedplate.runtime.driver import LiveDriver

CHARACTERS_A_TOKEN = 4
"""Tokens are booked by this until the engine has counted them; budgets reserve what is possible."""


class Embedder:
    """Runs embedding calls that the core lets in."""

    def __init__(
        self, driver: LiveDriver, now_ns: Callable[[], int], post: Callable[[Event], int]
    ) -> None:
        self._driver = driver
        self._now_ns = now_ns
        self._post = post
        self._calls = 0

    async def run(
        self, tenant: TenantId, lane: int, engine: Engine, inputs: Sequence[str]
    ) -> tuple[Embeddings, int]:
        """Embed texts; return the vectors and the record that must be durable before they leave.

        Raises:
            QuotaExceeded: a limit of the tenant is reached; other refusals of the core likewise.
        """
        began_ns = self._now_ns()
        self._calls += 1
        call = TurnId(f"e-{began_ns:x}-{self._calls:x}")
        booked = sum(len(text) // CHARACTERS_A_TOKEN + 1 for text in inputs)
        most = embedding_tokens_max(inputs)
        event = CallArrived(call, tenant, lane, engine.model, booked, most)
        refused = self._driver.ask(call, event)
        if refused is not None:
            raise refused
        status, used = "error", 0
        try:
            result = await engine.embed(inputs)
            status, used = "stop", result.prompt_tokens
        finally:
            took_ns = self._now_ns() - began_ns
            seq = self._post(CallEnded(call, status, used, took_ns))
        return result, seq

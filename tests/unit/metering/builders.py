"""Journals as lists of records: events of turns and cards, and their usage rows."""

from __future__ import annotations

from typing import Any

from bedplate.core.actions import Settled
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.journal import Record
from bedplate.metering.rows import usage_body

START_NS = 1_700_000_000_000_000_000


def settled(turn: str = "t-1", **fields: Any) -> Settled:
    values: dict[str, Any] = {
        "turn": TurnId(turn),
        "session": SessionId("s-1"),
        "branch": BranchId(0),
        "tenant": TenantId("fraud"),
        "lane": 0,
        "model": ModelId("m"),
        "card": "card-0",
        "status": "stop",
        "prompt_tokens": 700,
        "cached_tokens": 500,
        "out_tokens": 32,
        "queue_ns": 10,
        "slot_ns": 20,
        "tool_ns": 30,
        "kv_card_token_ns": 40,
        "kv_pool_token_ns": 50,
        "attempts": 1,
        "exact": True,
        **fields,
    }
    return Settled(**values)


class Log:
    """Appends records with seq and time of their own."""

    def __init__(self, *, step_ns: int = 1_000_000) -> None:
        self.records: list[Record] = []
        self._step_ns = step_ns

    def add(self, kind: str, body: dict[str, Any], *, tenant: str = "", session: str = "") -> int:
        seq = len(self.records)
        time_ns = START_NS + seq * self._step_ns
        self.records.append(Record(seq, time_ns, kind, tenant, session, body))
        return seq

    def usage(self, row: Settled, *, price_version: str = "p-1") -> int:
        body = usage_body(row, event_seq=max(0, len(self.records) - 1), price_version=price_version)
        return self.add("usage", body, tenant=row.tenant, session=row.session)

    def prices(self, **prices: Any) -> int:
        body = {
            "version": "p-1",
            "currency": "CNY",
            "uncached_micro": 2_000_000,
            "cached_micro": 200_000,
            "output_micro": 8_000_000,
            "card_kv_micro": 0,
            "pool_kv_micro": 0,
            "card_hour_micro": 0,
            **prices,
        }
        return self.add("core_started", {"core": "1", "prices": body})

    def card_up(self, card: str = "card-0", *, context: int = 4096, **fields: Any) -> int:
        body = {
            "card": card,
            "model": "m",
            "slots": 4,
            "context_tokens": context,
            "kv_bytes_per_token": 1024,
            **fields,
        }
        return self.add("CardUp", body)

    def card_down(self, card: str = "card-0") -> int:
        return self.add("CardDown", {"card": card, "reason": "killed"})

    def report(self, prompt: int, cached: int, out: int, card: str = "card-0") -> int:
        body = {
            "card": card,
            "prompt_tokens_total": prompt,
            "cached_tokens_total": cached,
            "out_tokens_total": out,
        }
        return self.add("CardReport", body)

    def arrived(self, turn: str = "t-1", **fields: Any) -> int:
        body = {
            "turn": turn,
            "session": "s-1",
            "tenant": "fraud",
            "lane": 0,
            "model": "m",
            "prompt_tokens": 700,
            "limit_tokens": 100,
            "exact": 1,
            **fields,
        }
        return self.add("TurnArrived", body)

    def started(self, turn: str = "t-1", attempt: int = 1) -> int:
        return self.add("TurnStarted", {"turn": turn, "attempt": attempt})

    def emitted(self, out: int, turn: str = "t-1", attempt: int = 1) -> int:
        return self.add("TokensEmitted", {"turn": turn, "attempt": attempt, "out_tokens": out})

    def ended(
        self,
        prompt: int = 700,
        cached: int = 500,
        out: int = 32,
        turn: str = "t-1",
        *,
        attempt: int = 1,
        exact: int = 1,
        status: str = "stop",
    ) -> int:
        body = {
            "turn": turn,
            "attempt": attempt,
            "status": status,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "out_tokens": out,
            "exact": exact,
        }
        return self.add("TurnEnded", body)

    def failed(
        self, out: int = 0, turn: str = "t-1", *, attempt: int = 1, retryable: int = 1
    ) -> int:
        body = {"turn": turn, "attempt": attempt, "retryable": retryable, "out_tokens": out}
        return self.add("DispatchFailed", body)

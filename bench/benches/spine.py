"""The base itself: KV against prefill, what the gateway costs, core, journal, memory."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.spine import gateway, kv, memory, rates

BENCH = Bench(
    name="spine",
    summary="load of KV against prefill, what the gateway adds, core and journal rates, memory",
    parts=(kv.PART, gateway.PART, rates.CORE, rates.JOURNAL, memory.PART),
)

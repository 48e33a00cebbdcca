"""Units of the core: integer nanoseconds, tokens, blocks and bytes."""

from __future__ import annotations

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return how many blocks hold `tokens` KV tokens (tokens >= 0, block_tokens >= 1)."""
    assert tokens >= 0
    assert block_tokens >= 1
    return -(-tokens // block_tokens)

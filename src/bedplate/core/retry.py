"""The retry budget: how many tokens of prompts may be sent again, over all cards together.

A card that fails makes its turns' prompts be computed once more elsewhere. When many fail, that
work would drown the cards that are left, so it is bounded over the whole pool, in tokens:

    tokens sent again ≤ retry_tokens + retry_permille ‰ × prompt tokens accepted

`State.retry_owed` counts, in thousandths of a token, what was sent again and is not covered by
calls accepted since; it never passes `retry_tokens` (INV-21). When a prompt would take it there,
its turn ends with `retry_budget_spent` (503). A card that had no room never took the prompt, so
the next one gets it for nothing.

What is not sent again at all: a turn that ran out of time, and one whose connection to an endpoint
broke late and without a token, for its server may still compute it (F10). A card of our own that
is lost is gone with its work. A turn that goes on after what its client has got
(`Turn.resumable`) is sent again with that, and both count.
"""

from __future__ import annotations

from bedplate.core.limits import RESEND_FAST_NS
from bedplate.core.state import State
from bedplate.core.states import Card, Turn

BUSY = ("capacity", "no_engine")
"""Codes with which a card that is up says that it has no room: it did not take the prompt."""


def earn(state: State, prompt_tokens: int) -> None:
    """Count an accepted call: a share of its prompt may be sent again."""
    earned = prompt_tokens * state.policy.retry_permille
    state.retry_owed = max(0, state.retry_owed - earned)


def take(state: State, turn: Turn) -> bool:
    """Count a prompt that is about to be sent again, with what was delivered; False: it may not."""
    tokens = turn.prompt_tokens + turn.out_tokens
    cap = state.policy.retry_tokens
    if cap and state.retry_owed + tokens * 1000 > cap * 1000:
        state.count("retries_refused")
        return False
    state.retry_owed += tokens * 1000
    assert state.retry_owed <= cap * 1000 or not cap
    state.count("resent_tokens", tokens)
    return True


def in_vain(turn: Turn, card: Card, ran_ns: int) -> bool:
    """Tell whether the card may still compute a turn that it lost after `ran_ns`, for nobody."""
    ours = card.kv == "full"
    return not ours and turn.out_tokens == 0 and ran_ns > RESEND_FAST_NS

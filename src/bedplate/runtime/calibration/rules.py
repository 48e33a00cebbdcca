"""What is known of an engine's way to work without measuring it."""

from __future__ import annotations

from typing import NamedTuple

from bedplate.config.engines import LlamacppEngine, OpenaiEngine
from bedplate.perf.profile import Batching


class Rules(NamedTuple):
    """How an engine fills a step, as far as it is known.

    `batching` is None where its budget has to be measured. `sequences_max`: turns that it runs at
    the same time. `stalls`: a move stops its card's steps. `shared_cache`: slots share one cache,
    which each computed token passes over.
    """

    batching: Batching | None
    sequences_max: int
    stalls: bool
    shared_cache: bool


def rules_of(engine: LlamacppEngine | OpenaiEngine, *, batch_tokens: int = 0) -> Rules:
    """Return the rules of a configured engine.

    llama.cpp's server puts a token of each decoding slot into a step of `n_batch` tokens and fills
    the rest with prompts in the order of their slots; it saves and restores slots between steps,
    on the same thread. With a unified cache the attention of each token passes over the cells of
    all slots, masked or not. Source: its `update_slots`, and measured on the embedded cards.

    Args:
        engine: Its section of the configuration.
        batch_tokens: Tokens of one step at an endpoint; 0 to measure them.
    """
    if isinstance(engine, LlamacppEngine):
        batching = Batching(token_budget=engine.batch_tokens, mixed=True, order="slot")
        return Rules(batching, engine.slots, stalls=True, shared_cache=True)
    known = Batching(token_budget=batch_tokens) if batch_tokens else None
    return Rules(known, engine.running_max, stalls=False, shared_cache=False)

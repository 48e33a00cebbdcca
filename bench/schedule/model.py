"""The model that all subjects serve, and texts of exactly so many tokens.

Its answers, like the texts, are whole words that the tokenizer gives one token each. So a history
that comes back as text has the very tokens that were computed, whoever keeps them, and a cache that
works is never missed for a word that is cut otherwise.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from bench.harness.run import Run
from bench.live import base
from tests.fakes.tiny_gguf import WORD, Shape, train_tokenizer

SHAPE = Shape(layers=8, hidden=512, heads=8, kv_heads=8, vocab=4096, whole_words=True)
KV_TOKEN_BYTES = SHAPE.layers * 2 * SHAPE.hidden * 2
"""Keys and values of one token, 16 bits each."""


def model_file(run: Run) -> Path:
    """Return the model, written on first use."""
    return base.model_file(run, SHAPE)


@cache
def words() -> tuple[str, ...]:
    """Return the words of one token, each with the blank before it."""
    names = sorted(name for name in train_tokenizer(SHAPE.vocab).get_vocab())
    return tuple(name.replace("Ġ", " ") for name in names if WORD.fullmatch(name))


def text(seed: str, tokens: int) -> str:
    """Return a text of so many tokens; texts of two seeds differ from their first words on."""
    return "".join(Random(seed).choices(words(), k=tokens))

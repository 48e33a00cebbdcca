"""What one card with one model does in which time: calibration fits it, the twin runs it.

An engine works in steps. One step advances every decoding sequence by one token and computes some
prompt tokens beside them, as its batching rule says. Its time is

    fixed(prompt tokens, sequences)           matrices: launches, weights read, arithmetic
    + pair_ns × pairs                         attention of prompt tokens: (query, key) pairs
    + context_ns × context tokens             attention of decoding sequences: keys read

so that over steps whose batch does not change the time is a quadratic in their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StepCost(Protocol):
    """The time of one step. Implementations are immutable and deterministic."""

    @property
    def pair_ns(self) -> float:
        """Time per (query, key) pair of prompt attention.

        A causal chunk of n tokens behind a context of c has n × c + n × (n + 1) / 2 of them.
        """
        ...

    @property
    def context_ns(self) -> float:
        """Time per token of context that a decoding sequence attends to."""
        ...

    def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
        """Return the time of a step, attention aside.

        Args:
            prompt_tokens: Prompt tokens computed in this step, >= 0.
            sequences: Sequences that decode one token in it, >= 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A step cost with five constants: launch + max(weights, tokens) + attention.

    `launch_ns` is paid by each step; `weights_ns` is reading all weights once, which the arithmetic
    of few tokens hides behind; `prompt_ns` and `sequence_ns` are the arithmetic of one prompt token
    and of one decoding sequence.
    """

    launch_ns: float
    weights_ns: float
    prompt_ns: float
    sequence_ns: float
    pair_ns: float
    context_ns: float

    def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
        """Return the time of a step, attention aside."""
        work_ns = self.prompt_ns * prompt_tokens + self.sequence_ns * sequences
        return self.launch_ns + max(self.weights_ns, work_ns)


@dataclass(frozen=True, slots=True)
class Batching:
    """How an engine fills one step.

    `token_budget`: tokens of one step; decoding sequences take one each, prompts the rest.
    `mixed`: prompts and decoding share a step; if not, a step with prompt tokens has nothing else,
    and goes first. `prompts_max`: prompts that are computed at the same time, 0 for no bound.
    `order`: which prompts fill the budget first, `arrival` or `slot` (lowest slot number).
    """

    token_budget: int
    mixed: bool = True
    prompts_max: int = 0
    order: str = "arrival"


@dataclass(frozen=True, slots=True)
class MoveCost:
    """The time of moving KV between a card and the pool, when nothing else moves.

    base_ns + bytes × byte_ns. `stalls`: the card computes nothing meanwhile (llama.cpp).
    """

    base_ns: float
    byte_ns: float
    stalls: bool


@dataclass(frozen=True, slots=True)
class CardProfile:
    """One card with one model and engine, as the core is told of it and as the twin times it.

    The fields from `kv` to `kv_bytes_per_token`, and the last two, are those of
    `core.events.CardUp`. `begin_ns`
    passes between the dispatch of a turn and its first step (request, tokenising, slot), `end_ns`
    between its last step and the news of its end. `evidence` says what the times rest on: measured
    | fitted | roofline.

    `cell_ns` is time per computed token and per token of KV that the card holds before its step, in
    whichever slot: llama.cpp's slots share one cache, and each computed token passes over all of
    it. 0 where slots have nothing to do with one another.

    `contention` is the share by which a step lasts longer for each other card of the partition that
    computes at the same time, since they share processors or memory; times are of a card alone. 0
    for cards that are machines of their own.
    """

    name: str
    model: str
    evidence: str
    kv: str
    can_cut: bool
    slots: int
    running_max: int
    kv_tokens: int
    context_tokens: int
    kv_bytes_per_token: int
    batching: Batching
    step: StepCost
    store: MoveCost
    load: MoveCost
    begin_ns: float = 0.0
    end_ns: float = 0.0
    cell_ns: float = 0.0
    contention: float = 0.0
    prompt_streams: int = 1
    running_busy: int = 0

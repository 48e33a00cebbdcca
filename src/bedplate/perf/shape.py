"""The shape of a model: what it weighs, what its KV takes, computed from its layers.

Norms, biases and modules that drafts are made with are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed key and value for all heads."""

    kv_rank: int
    rope_dim: int
    q_rank: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: how many, how many a token takes, and their widths."""

    experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model: layers counted by what mixes tokens and by what follows.

    `linear_weights` and `linear_state_bytes` are of one linear-attention layer; `sparse_tokens` is
    the most that a query attends to, 0 for all; `window_tokens` is the sliding window.
    """

    name: str
    aliases: tuple[str, ...]
    hidden: int
    vocab: int
    tied_embeddings: bool
    context_tokens_max: int
    full_layers: int
    heads: int
    source: str
    kv_heads: int = 0
    head_dim: int = 0
    sliding_layers: int = 0
    window_tokens: int = 0
    linear_layers: int = 0
    linear_weights: int = 0
    linear_state_bytes: int = 0
    gated_query: bool = False
    sparse_tokens: int = 0
    dense_layers: int = 0
    intermediate: int = 0
    moe_layers: int = 0
    ffn_matrices: int = 3
    mla: Latent | None = None
    moe: Experts | None = None
    parameters_b_official: float | None = None
    notes: str = ""

    @cached_property
    def mixer_layers(self) -> int:
        """Layers that mix tokens: full, sliding and linear."""
        return self.full_layers + self.sliding_layers + self.linear_layers

    @cached_property
    def attention_weights(self) -> int:
        """Parameters of one attention layer."""
        if self.mla is None:
            queries = self.heads * self.head_dim * (2 if self.gated_query else 1)
            keys = 2 * self.kv_heads * self.head_dim
            return self.hidden * (queries + keys + self.heads * self.head_dim)
        a = self.mla
        down = self.hidden * (a.q_rank + a.kv_rank + a.rope_dim)
        queries = a.q_rank * self.heads * (a.nope_dim + a.rope_dim)
        keys = a.kv_rank * self.heads * (a.nope_dim + a.value_dim)
        return down + queries + keys + self.heads * a.value_dim * self.hidden

    @cached_property
    def mixer_weights(self) -> int:
        """Parameters of all layers that mix tokens."""
        attention = self.attention_weights * (self.full_layers + self.sliding_layers)
        return attention + self.linear_weights * self.linear_layers

    @cached_property
    def dense_weights(self) -> int:
        """Parameters that every token passes outside attention: dense and shared FFN, routers."""
        width = self.ffn_matrices * self.hidden
        total = self.dense_layers * width * self.intermediate
        if self.moe is not None:
            shared = width * self.moe.shared_intermediate + self.hidden * self.moe.experts
            total += self.moe_layers * shared
        return total

    @cached_property
    def expert_weights(self) -> int:
        """Parameters of one expert of one layer, 0 for a dense model."""
        if self.moe is None:
            return 0
        return self.ffn_matrices * self.hidden * self.moe.expert_intermediate

    @cached_property
    def head_weights(self) -> int:
        """Parameters of the output projection, which every step reads."""
        return self.vocab * self.hidden

    @cached_property
    def parameters(self) -> int:
        """All parameters; norms and biases are not counted."""
        embeddings = self.head_weights * (1 if self.tied_embeddings else 2)
        return self.body_weights + embeddings

    @cached_property
    def body_weights(self) -> int:
        """Parameters of all layers, embeddings aside."""
        experts = self.moe.experts if self.moe is not None else 0
        routed = self.moe_layers * experts * self.expert_weights
        return self.mixer_weights + self.dense_weights + routed

    @cached_property
    def kv_values(self) -> int:
        """Values that one token adds to the KV of one attention layer."""
        if self.mla is not None:
            return self.mla.kv_rank + self.mla.rope_dim
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, value_bytes: float) -> float:
        """Return the KV that one more token of a long context takes, at so many bytes a value."""
        return self.full_layers * self.kv_values * value_bytes

    def kv_bytes_per_sequence(self, context: float, value_bytes: float) -> float:
        """Return all KV of a sequence: full layers, windows, and the states of linear layers."""
        full = self.kv_bytes_per_token(value_bytes) * context
        window = min(context, self.window_tokens)
        sliding = self.sliding_layers * self.kv_values * value_bytes * window
        return full + sliding + self.linear_layers * self.linear_state_bytes

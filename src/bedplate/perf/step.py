"""The step-time model: what one forward pass of a model on some cards takes, part by part.

One step computes P prompt tokens and advances B sequences by a token each, on one replica of
tp × pp cards. Its time is

    launch                     a layer and a step: kernels, scheduling, sampling per sequence
    + Σ max(memory, compute)   weights, experts, attention of decoding, attention of prompts
    + communication            two all-reduces a layer (tp), exchanges of experts (dp), hops (pp)

with memory = bytes ÷ (bandwidth × efficiency) and compute = operations ÷ (peak × efficiency). A
mixture of E experts, of which a token takes k, reads E × (1 − (1 − k/E)^T) of them for T tokens.
Efficiencies and launch costs are fitted constants (`perf.fitted`); all else comes from shapes.
A host that starts kernels one by one sets a floor: launch is then what is left of that floor.

Parallelism. tp divides matrices, heads and, up to the number of KV heads, KV; latent KV is not
divided. pp divides layers: a batch goes through as pp parts, so that each token waits for all
stages. dp is attention data parallelism: `batch` is of one replica, and experts are divided among
all tp × dp cards and see the tokens of all replicas. ep says that whole experts are placed: the
fullest card sets the pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from bedplate.errors import InvalidRequest
from bedplate.perf.catalog import Hardware
from bedplate.perf.constants import Constants
from bedplate.perf.network import Network
from bedplate.perf.precision import HALF, Precision, arithmetic_used
from bedplate.perf.shape import ModelShape

ACTIVATION_BYTES = 2
NS = 1e9
ONE_SHOT_CARDS = 8
"""Most cards among which engines reduce in one shot."""


@dataclass(frozen=True)
class Deployment:
    """A model on cards: formats and how it is divided.

    `kv_bytes` is what a value of KV takes. One replica has tp × pp cards, the whole tp × pp × dp.
    """

    model: ModelShape
    card: Hardware
    precision: Precision
    kv_bytes: float
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Check that the division exists.

        Raises:
            InvalidRequest: a degree is below 1, does not divide what it divides, or experts are
                placed on more cards than there are.
        """
        for name in ("tp", "pp", "ep", "dp"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.pp > self.model.mixer_layers:
            raise InvalidRequest(
                f"pp={self.pp} is more than the {self.model.mixer_layers} layers of"
                f" {self.model.name}"
            )
        if self.ep > self.tp * self.dp:
            raise InvalidRequest(
                f"ep={self.ep} places experts on more cards than tp × dp = {self.tp * self.dp}"
            )

    @property
    def cards(self) -> int:
        """All cards."""
        return self.tp * self.pp * self.dp

    @cached_property
    def weight_bytes_per_card(self) -> float:
        """Weights that one card holds: its share of layers, experts and both embeddings."""
        model = self.model
        shared = model.mixer_weights + model.dense_weights
        experts = model.body_weights - shared
        rest = shared + model.parameters - model.body_weights
        per_stage = rest / self.tp + experts / (self.tp * self.dp)
        return per_stage * self.precision.weight_bytes / self.pp

    @cached_property
    def kv_shards(self) -> int:
        """Among how many of the tp cards KV is divided."""
        return 1 if self.model.mla is not None else min(self.tp, self.model.kv_heads)

    def kv_bytes_per_card(self, context: float) -> float:
        """Return what the KV of one sequence takes on each card of its replica."""
        whole = self.model.kv_bytes_per_sequence(context, self.kv_bytes)
        return whole / (self.kv_shards * self.pp)


class Batch(NamedTuple):
    """What one step of one replica computes.

    `sequences` decode `query` tokens each (1, or 1 + the drafted tokens that are verified) behind
    `context` tokens on average; beside them `prompt` tokens of `prompts` prompts are computed,
    whose attention has `pairs` (query, key) pairs (`causal_pairs`).
    """

    sequences: float
    context: float
    prompt: float = 0
    pairs: float = 0
    prompts: float = 0
    query: float = 1

    @property
    def tokens(self) -> float:
        """Tokens that pass the matrices."""
        return self.sequences * self.query + self.prompt

    def divided(self, parts: int) -> Batch:
        """Return one of so many equal parts."""
        return self._replace(
            sequences=self.sequences / parts,
            prompt=self.prompt / parts,
            pairs=self.pairs / parts,
            prompts=self.prompts / parts,
        )


def causal_pairs(tokens: float, behind: float = 0) -> float:
    """Return the (query, key) pairs of a causal chunk of tokens behind so many others."""
    return tokens * behind + tokens * (tokens + 1) / 2


class Parts(NamedTuple):
    """The time of a step by part, in ns. `memory` and `compute` count where each is the larger."""

    launch: float
    memory: float
    compute: float
    communication: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.launch + self.memory + self.compute + self.communication


class StepTime:
    """Times the steps of one deployment. Cost: some microseconds a step."""

    def __init__(self, deployment: Deployment, constants: Constants) -> None:
        """Prepare what does not depend on the batch.

        Raises:
            InvalidRequest: a value of the card that is needed is unknown.
        """
        d, model, c = deployment, deployment.model, constants
        self.deployment, self.constants = d, c
        self._network = Network(d.card) if d.cards > 1 else None
        bandwidth = d.card.need("memory_bytes_per_s")
        bits = d.precision.weight_bytes
        peak = d.card.rate(arithmetic_used(d.card, d.precision.arithmetic))
        half = d.card.rate(arithmetic_used(d.card, HALF))
        read = bandwidth * c.weights_efficiency(d.precision.name) / NS
        reached = c.compute_efficiency(d.precision.name)
        if peak == half:
            # Unpacking weights before they are multiplied never makes a multiplication faster.
            reached = min(reached, c.compute_efficiency(HALF))
        self._matrix_rate = peak * reached / NS
        self._expert_rate = self._matrix_rate * c.expert_compute
        self._kv_read = bandwidth * c.kv / NS
        self._attention_rate = half * c.attention / NS
        stage = d.tp * d.pp
        shared = model.mixer_weights + model.dense_weights
        self._shared_ns = shared * bits / stage / read
        self._shared_work = 2.0 * shared / stage
        self._head_ns = model.head_weights * bits / d.tp / read
        self._head_work = 2.0 * model.head_weights / d.tp
        experts = model.moe_layers * model.expert_weights / d.pp
        self._expert_ns = experts * bits / (read * c.expert_memory)
        self._expert_work = 2.0 * experts
        self._launch_ns = c.launch_ns(model) / d.pp
        self._host_ns = c.host * _kernel_groups(model) / d.pp
        self._prepare_attention()

    def _prepare_attention(self) -> None:
        d, model = self.deployment, self.deployment.model
        stage = d.tp * d.pp
        if model.mla is not None:
            decode = model.heads * 2 * (2 * model.mla.kv_rank + model.mla.rope_dim)
            width = model.mla.nope_dim + model.mla.rope_dim + model.mla.value_dim
            prompt = model.heads * 2 * width
        else:
            decode = prompt = model.heads * 4 * model.head_dim
        self._decode_work = decode / stage
        self._prompt_work = prompt / stage
        self._kv_value_bytes = model.kv_values * d.kv_bytes / (d.kv_shards * d.pp)
        state = model.linear_layers * model.linear_state_bytes / stage
        self._state_ns = 2 * state / self._kv_read

    @property
    def pair_ns(self) -> float:
        """Time per (query, key) pair of prompt attention in full layers."""
        return self.deployment.model.full_layers * self._prompt_work / self._attention_rate

    @property
    def context_ns(self) -> float:
        """Time per token of context of a decoding sequence; 0 where attention is sparse."""
        model = self.deployment.model
        return 0.0 if model.sparse_tokens else self._attend_ns(model.full_layers)

    @property
    def window_ns(self) -> float:
        """Time a decoding sequence costs by what it attends to whatever its length."""
        model = self.deployment.model
        seen = model.sliding_layers * model.window_tokens + model.full_layers * model.sparse_tokens
        return self._attend_ns(seen)

    def _attend_ns(self, tokens: float) -> float:
        read_ns = tokens * self._kv_value_bytes / self._kv_read
        return max(read_ns, tokens * self._decode_work / self._attention_rate)

    def crossings(self) -> tuple[str, ...]:
        """Return in words each exchange of a step that leaves a server; none where all is inside.

        A hop between pipeline stages is timed as inside a server, which is said where it cannot be.
        """
        d, network = self.deployment, self._network
        if network is None:
            return ()
        ranks = d.tp * d.dp if d.model.moe is not None else d.tp
        told = [network.crossing(ranks)]
        if d.pp > 1 and network.crossing(d.tp * d.pp):
            told.append("hops between pipeline stages count as inside a server")
        return tuple(text for text in told if text)

    def step(self, batch: Batch) -> Parts:
        """Return the parts of one step of one replica, in ns."""
        pp = self.deployment.pp
        if pp == 1 or self._network is None:
            return self._stage(batch)
        part = self._stage(batch.divided(pp))
        size = batch.tokens / pp * self.deployment.model.hidden * ACTIVATION_BYTES
        whole = Parts(*(pp * value for value in part))
        hops = (pp - 1) * self._network.hop_ns(size)
        return whole._replace(communication=whole.communication + hops)

    def _stage(self, batch: Batch) -> Parts:
        d = self.deployment
        tokens = batch.tokens
        drafts = 1 + (batch.query - 1) / d.model.mixer_layers
        launch = self._launch_ns * drafts + self.constants.sequence * batch.sequences
        memory = compute = 0.0
        finished = batch.sequences * batch.query + batch.prompts
        pairs = (
            (self._shared_ns, self._shared_work * tokens / self._matrix_rate),
            (self._head_ns / d.pp, self._head_work * finished / d.pp / self._matrix_rate),
            self._experts(tokens),
            self._decode_attention(batch),
            (0.0, self._prompt_attention(batch)),
        )
        for read_ns, work_ns in pairs:
            if read_ns >= work_ns:
                memory += read_ns
            else:
                compute += work_ns
        talk = self._communication(tokens)
        rest = (memory + compute) * drafts + talk
        launch = max(launch, self._host_ns * drafts - rest)
        return Parts(launch, memory * drafts, compute * drafts, talk)

    def _experts(self, tokens: float) -> tuple[float, float]:
        moe = self.deployment.model.moe
        if moe is None or not tokens:
            return 0.0, 0.0
        d = self.deployment
        share = d.tp * d.dp
        everywhere = tokens * d.dp
        active = moe.experts * (1 - (1 - moe.experts_per_token / moe.experts) ** everywhere)
        crowd = _crowding(active, moe.experts, d.ep) if d.ep > 1 else 1.0
        read_ns = self._expert_ns * active * crowd / share
        work = self._expert_work * moe.experts_per_token * everywhere * crowd / share
        return read_ns, work / self._expert_rate

    def _decode_attention(self, batch: Batch) -> tuple[float, float]:
        model, context = self.deployment.model, batch.context
        full = min(context, model.sparse_tokens) if model.sparse_tokens else context
        attended = model.full_layers * full
        attended += model.sliding_layers * min(context, model.window_tokens)
        read_ns = attended * self._kv_value_bytes / self._kv_read + self._state_ns
        work_ns = attended * self._decode_work / self._attention_rate
        return batch.sequences * read_ns, batch.sequences * batch.query * work_ns

    def _prompt_attention(self, batch: Batch) -> float:
        if not batch.prompt:
            return 0.0
        model = self.deployment.model
        full = batch.pairs
        if model.sparse_tokens:
            full = min(full, batch.prompt * float(model.sparse_tokens))
        seen = model.full_layers * full
        seen += model.sliding_layers * min(batch.pairs, batch.prompt * float(model.window_tokens))
        return seen * self._prompt_work / self._attention_rate

    def _communication(self, tokens: float) -> float:
        d, model = self.deployment, self.deployment.model
        if self._network is None:
            return 0.0
        size = tokens * model.hidden * ACTIVATION_BYTES
        layers = _kernel_groups(model)
        total = 0.0
        if d.tp > 1:
            total += layers / d.pp * self._reduce(self._network, size)
        if d.dp > 1 and model.moe is not None:
            sent = size * model.moe.experts_per_token / d.tp
            exchange = self._network.exchange_ns(d.tp * d.dp, sent)
            total += 2 * model.moe_layers / d.pp * exchange * self.constants.communication
        return total

    def _reduce(self, network: Network, size: float) -> float:
        """The faster of a collective and one shot, in which each card reads all others' parts."""
        d, c = self.deployment, self.constants
        collective = network.reduce_ns(d.tp, size) * c.communication
        link = d.card.link_bytes_per_s
        if not link or d.tp > min(ONE_SHOT_CARDS, d.card.link_cards or 1):
            return collective
        return min(collective, c.reduce + (d.tp - 1) * size / link * NS)


def _kernel_groups(model: ModelShape) -> int:
    """Return how many times a step starts a mixer or what follows it; each ends in a reduction."""
    return model.mixer_layers + model.dense_layers + model.moe_layers


def _crowding(active: float, experts: int, ep: int) -> float:
    """Return how many more experts the fullest of ep cards reads than the mean one.

    The active experts fall on cards about binomially; the largest of ep draws lies about
    sqrt(2 ln ep) standard deviations above the mean.
    """
    mean = active / ep
    spread = math.sqrt(2 * math.log(ep) * mean * max(0.0, 1 - active / experts))
    return min((mean + spread) / mean, experts / active)

"""Constants of the step-time model: efficiencies, launch costs, and how engines queue prompts.

They are fitted to published measurements (`data/fitted.toml`, which names the fit's command, its
data and its error) by card family and engine. `PLAIN` is the bare roofline: every peak is reached
and nothing else costs time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bedplate.perf.shape import ModelShape

WIDTHS = {
    "fp64": "wide",
    "fp32": "wide",
    "fp16": "half",
    "bf16": "half",
    "fp8": "byte",
    "int8": "byte",
    "fp4": "nibble",
    "int4": "nibble",
    "w4a8": "nibble",
}
"""Which efficiencies a precision has: by the width of its weights."""


@dataclass(frozen=True, slots=True)
class Constants:
    """One set for a card family and an engine.

    `memory` and `compute` are shares of the peak by width of weights. Times are in ns: `mixer`,
    `latent`, `linear`, `dense`, `experts` a layer of that kind, `step` a step, `sequence` a
    decoding sequence, `reduce` an all-reduce in one shot. `host` is what a host takes that starts
    kernels one by one, for a mixer or for what follows it; 0 where a step runs as one graph.
    `communication` scales collectives. `interference` says how much of the work on others' prompts
    a token waits for, `queue` how much of it the first token does, which also pays `begin` (see
    `perf.load`).
    """

    evidence: str
    memory: Mapping[str, float] = field(hash=False)
    compute: Mapping[str, float] = field(hash=False)
    kv: float = 1.0
    attention: float = 1.0
    expert_memory: float = 1.0
    expert_compute: float = 1.0
    mixer: float = 0.0
    latent: float = 0.0
    linear: float = 0.0
    dense: float = 0.0
    experts: float = 0.0
    step: float = 0.0
    sequence: float = 0.0
    communication: float = 1.0
    interference: float = 1.0
    reduce: float = 0.0
    host: float = 0.0
    begin: float = 0.0
    queue: float = 0.0

    def weights_efficiency(self, precision: str) -> float:
        """Return which share of the bandwidth reading weights reaches."""
        return self.memory[WIDTHS[precision]]

    def compute_efficiency(self, precision: str) -> float:
        """Return which share of the peak matrices reach."""
        return self.compute[WIDTHS[precision]]

    def launch_ns(self, model: ModelShape) -> float:
        """Return what one step of a model costs before any work."""
        attention = self.mixer if model.mla is None else self.latent
        layers = attention * (model.full_layers + model.sliding_layers)
        layers += self.linear * model.linear_layers
        layers += self.dense * model.dense_layers + self.experts * model.moe_layers
        return layers + self.step


_FULL = {"wide": 1.0, "half": 1.0, "byte": 1.0, "nibble": 1.0}
PLAIN = Constants("roofline", _FULL, _FULL)

"""Card profiles from the catalogue: what the twin runs where nothing was measured.

A profile stands for one engine on tp × pp cards. Its times are those of the step-time model, its
evidence `fitted` where the card's family and engine were measured on other models, else `roofline`,
as it is for weights that the card cannot multiply in their own format.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from bedplate.errors import InvalidRequest
from bedplate.perf import fitted
from bedplate.perf.catalog import find_card, find_model
from bedplate.perf.links import link
from bedplate.perf.load import MEMORY_SHARE
from bedplate.perf.precision import find_kv, find_precision, is_unpacked
from bedplate.perf.profile import Batching, CardProfile, MoveCost
from bedplate.perf.step import Batch, Deployment, StepTime

REMEMBERED = 1 << 16
"""Most batches whose step time a profile remembers."""


@dataclass(frozen=True, slots=True)
class ModelledCost:
    """The step cost of a deployment, from the step-time model.

    Windows and the states of linear layers cost what full ones do, in the fixed part.
    """

    time: StepTime

    @property
    def pair_ns(self) -> float:
        """Time per (query, key) pair of prompt attention."""
        return self.time.pair_ns

    @property
    def context_ns(self) -> float:
        """Time per token of context that a decoding sequence attends to."""
        return self.time.context_ns

    def fixed_ns(self, prompt_tokens: int, sequences: int) -> float:
        """Return the time of a step, attention to growing contexts aside."""
        return _fixed_ns(self.time, prompt_tokens, sequences)


@lru_cache(maxsize=REMEMBERED)
def _fixed_ns(time: StepTime, prompt_tokens: int, sequences: int) -> float:
    batch = Batch(sequences, 0.0, prompt_tokens, prompts=1 if prompt_tokens else 0)
    return time.step(batch).total + sequences * time.window_ns


def catalog_profile(
    model: str,
    card: str,
    *,
    tp: int = 1,
    pp: int = 1,
    precision: str = "fp16",
    kv_precision: str = "",
    engine: str = "",
    kv: str = "full",
    move_bytes_per_s: float | None = None,
    name: str = "",
) -> CardProfile:
    """Return the profile of one engine that runs a model on tp × pp cards of a kind.

    Args:
        model: As the catalogue names it, as are `card`, `precision` and `engine` (empty: the usual
            one of the card's maker).
        card: The card.
        tp: Tensor parallelism; with `pp`, pipeline parallelism, the cards of the engine.
        pp: Pipeline parallelism.
        precision: Format of weights.
        kv_precision: Format of KV; empty for what engines have by default (`find_kv`).
        engine: Whose batching rules and constants hold.
        kv: What the engine lets others do with KV: full | hints | none.
        move_bytes_per_s: Rate of one card to the pool; None for its host link.
        name: Of the profile; empty for one made of model and card.

    Raises:
        InvalidRequest: a name is not in the catalogue, a value that is needed is unknown, or
            weights and one session do not fit.
    """
    found = find_card(card)
    form = find_precision(precision)
    value_bytes = find_kv(kv_precision, form).kv_bytes
    deployment = Deployment(find_model(model), found, form, value_bytes, tp=tp, pp=pp)
    engine = engine or fitted.default_engine(found)
    constants = fitted.constants(found, engine)
    rules = _rules(engine)
    tokens, running = _room(deployment, rules["running_max"])
    rate = move_bytes_per_s or found.need("host_bytes_per_s")
    move = MoveCost(link("host_memory").alpha_ns, 1e9 / (rate * tp * pp), stalls=False)
    return CardProfile(
        name=name or f"{deployment.model.name} {form.name} on {tp * pp} {found.name}",
        model=deployment.model.name,
        evidence="roofline" if is_unpacked(found, form) else constants.evidence,
        kv=kv,
        can_cut=not (deployment.model.linear_layers or deployment.model.sliding_layers),
        slots=running,
        running_max=running,
        kv_tokens=tokens,
        context_tokens=min(tokens, deployment.model.context_tokens_max),
        kv_bytes_per_token=round(deployment.model.kv_bytes_per_token(value_bytes)),
        batching=Batching(rules["token_budget"], mixed=rules["mixed"]),
        step=ModelledCost(StepTime(deployment, constants)),
        store=move,
        load=move,
        begin_ns=constants.begin,
    )


def _room(deployment: Deployment, running_max: int) -> tuple[int, int]:
    """Return the tokens of KV that fit, and how many sessions run.

    What a session holds whatever its length (windows, states) is set aside for each that runs.

    Raises:
        InvalidRequest: not even one session of one token fits.
    """
    d = deployment
    free = d.card.need("memory_bytes") * MEMORY_SHARE - d.weight_bytes_per_card
    token = d.model.kv_bytes_per_token(d.kv_bytes) / (d.kv_shards * d.pp)
    constant = d.kv_bytes_per_card(d.model.window_tokens) - token * d.model.window_tokens
    running = running_max
    if constant:
        running = min(running_max, int(free / 2 / constant))
    tokens = int((free - running * constant) / token) if token else 0
    if tokens < 1 or running < 1:
        raise InvalidRequest(
            f"{d.model.name} in {d.precision.name} does not fit {d.tp * d.pp} {d.card.name}:"
            f" {d.weight_bytes_per_card / 1e9:.0f} GB of weights a card, of"
            f" {d.card.need('memory_bytes') / 1e9:.0f} GB; use more cards or fewer bits"
        )
    return tokens, running


def _rules(engine: str) -> dict[str, Any]:
    rules: dict[str, Any] = _engines()[engine]
    return rules


@cache
def _engines() -> dict[str, Any]:
    text = files("bedplate.perf").joinpath("data", "engines.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

"""An estimate: names in, times and what they rest on out. `bedplate estimate` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.errors import InvalidRequest
from bedplate.perf import fitted
from bedplate.perf.catalog import find_card, find_model
from bedplate.perf.constants import PLAIN, Constants
from bedplate.perf.load import MEMORY_SHARE, Latency, Load, latency, room
from bedplate.perf.precision import find_precision
from bedplate.perf.step import Batch, Deployment, StepTime


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: names as the catalogue has them, degrees, and a load of one replica.

    `kv`: format of KV, empty for what goes with `precision`. `engine`: empty for the usual one of
    the card's maker. `plain`: the bare roofline instead of fitted constants.
    """

    model: str
    card: str
    precision: str
    load: Load
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    kv: str = ""
    engine: str = ""
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """The answer. Times in ns; `bound` is the decode step that the hardware's peaks allow.

    `warnings` say what no engine would do: weights that do not fit, heads that are not divisible.
    """

    deployment: Deployment
    load: Load
    engine: str
    latency: Latency
    bound: float
    evidence: str
    errors: dict[str, fitted.Error]
    warnings: tuple[str, ...]

    @property
    def weight_bytes_per_card(self) -> float:
        """Weights that one card holds."""
        return self.deployment.weight_bytes_per_card

    @property
    def kv_bytes_per_session(self) -> float:
        """KV of one session at its end, over all cards of its replica."""
        load, d = self.load, self.deployment
        return d.model.kv_bytes_per_sequence(load.input_tokens + load.output_tokens, d.kv_bytes)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all replicas give a second, sessions in their prefill aside."""
        return self.latency.running * self.deployment.dp / self.latency.tpot * 1e9


def estimate(question: Question) -> Estimate:
    """Return TTFT and TPOT of a model on cards under a load.

    Raises:
        InvalidRequest: a name is not in the catalogue (the message names the nearest), a degree or
            a length is out of range, or a value that is needed is unknown (the message names it).

    Cost: about 0.2 ms.
    """
    load = question.load
    if load.input_tokens < 1 or load.output_tokens < 0 or load.cached_tokens < 0:
        raise InvalidRequest(
            f"input {load.input_tokens:g} must be at least 1, output {load.output_tokens:g} and"
            f" cached {load.cached_tokens:g} at least 0"
        )
    if load.cached_tokens >= load.input_tokens:
        raise InvalidRequest(
            f"cached {load.cached_tokens:g} must be less than the input of {load.input_tokens:g}"
        )
    if load.concurrency < 0 or load.rate < 0 or not (load.concurrency or load.rate):
        raise InvalidRequest("batch or rate must be above 0")
    card = find_card(question.card)
    precision = find_precision(question.precision)
    deployment = Deployment(
        find_model(question.model),
        card,
        precision,
        find_precision(question.kv).kv_bytes if question.kv else precision.kv_bytes,
        tp=question.tp,
        pp=question.pp,
        ep=question.ep,
        dp=question.dp,
    )
    engine = question.engine or fitted.default_engine(card)
    constants = PLAIN if question.plain else fitted.constants(card, engine)
    found = latency(StepTime(deployment, constants), load)
    return Estimate(
        deployment=deployment,
        load=load,
        engine=engine,
        latency=found,
        bound=_bound(deployment, load, found.running),
        evidence=constants.evidence,
        errors=fitted.errors(card) if constants.evidence == "fitted" else {},
        warnings=_warnings(deployment, load, found),
    )


def _bound(deployment: Deployment, load: Load, running: float) -> float:
    context = load.input_tokens + load.output_tokens / 2
    parts = StepTime(deployment, PLAIN).step(Batch(running, context))
    return parts.memory + parts.compute


def _warnings(deployment: Deployment, load: Load, found: Latency) -> tuple[str, ...]:
    d = deployment
    warnings = []
    memory = d.card.need("memory_bytes")
    if d.weight_bytes_per_card > memory * MEMORY_SHARE:
        warnings.append(
            f"{d.weight_bytes_per_card / 1e9:.0f} GB of weights do not fit the"
            f" {memory / 1e9:.0f} GB of a card"
        )
    elif found.room < 1:
        warnings.append("the KV of one session does not fit beside the weights")
    elif load.concurrency > found.room:
        warnings.append(
            f"KV of {int(found.room)} sessions fits beside the weights; the others wait"
        )
    if d.model.heads % d.tp:
        warnings.append(f"tp={d.tp} does not divide the {d.model.heads} heads of {d.model.name}")
    longest = load.input_tokens + load.output_tokens
    if longest > d.model.context_tokens_max:
        warnings.append(
            f"{longest:g} tokens are more than the {d.model.context_tokens_max} of {d.model.name}"
        )
    return tuple(warnings)


def sessions_that_fit(deployment: Deployment, context: float, constants: Constants = PLAIN) -> int:
    """Return how many sessions of a length one replica holds beside the weights.

    Raises:
        InvalidRequest: the card's memory is unknown.
    """
    return int(room(StepTime(deployment, constants), Load(context, 0, 1)))

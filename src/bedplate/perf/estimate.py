"""An estimate: names in, times and what they rest on out. `bedplate estimate` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from bedplate.errors import InvalidRequest
from bedplate.perf import fitted
from bedplate.perf.catalog import find_card, find_model
from bedplate.perf.constants import PLAIN, Constants
from bedplate.perf.load import MEMORY_SHARE, Latency, Load, cycle_ns, latency, room
from bedplate.perf.precision import find_kv, find_precision, is_unpacked
from bedplate.perf.step import Batch, Deployment, StepTime

TOKENS_MAX = 1_000_000_000
LOAD_MAX = 1e9
"""Longest prompt or answer, most sessions and most requests a second that are believed."""
CARDS_MAX = 65_536
"""Most cards of one deployment."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: names as the catalogue has them, degrees, and a load of one replica.

    `kv`: format of KV, empty for what engines have by default: 16 bits, whatever weights have, or
    the weights' own format where that has more. `engine`: empty for the usual one of the card's
    maker. `plain`: the bare roofline instead of fitted constants.
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

    `kv`: format of KV. `engine`: empty for the bare roofline. `notes` say what an answer rests on
    that its numbers do not show: a host that sets the pace, arithmetic that the card lacks, the
    network between servers. `warnings` say what no engine would do: heads that are not divisible,
    more tokens than the model takes.
    """

    deployment: Deployment
    kv: str
    load: Load
    engine: str
    latency: Latency
    bound: float
    evidence: str
    errors: dict[str, fitted.Error]
    notes: tuple[str, ...]
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
    def requests_per_s(self) -> float:
        """Requests that all replicas answer a second; 0 where sessions only decode."""
        load, times = self.load, self.latency
        if load.rate:
            return load.rate * self.deployment.dp
        if not load.output_tokens:
            return 0.0
        cycle = cycle_ns(load, times.ttft, times.tpot)
        return load.concurrency * self.deployment.dp / cycle * 1e9

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers that all replicas give a second, the wait for the first included.

        Without an answer's length sessions only decode: one token each in every TPOT.
        """
        if self.load.output_tokens:
            return self.requests_per_s * self.load.output_tokens
        return self.latency.running * self.deployment.dp / self.latency.tpot * 1e9


def estimate(question: Question) -> Estimate:
    """Return TTFT and TPOT of a model on cards under a load.

    Raises:
        InvalidRequest: a name is not in the catalogue (the message names the nearest), a degree or
            a length is out of range, a value that is needed is unknown (the message names it),
            weights or one session do not fit the memory, or requests come faster than a replica
            answers them (the message says how many it carries).

    Cost: about 0.2 ms.
    """
    load = question.load
    _check(load)
    card = find_card(question.card)
    precision = find_precision(question.precision)
    kv = find_kv(question.kv, precision)
    deployment = Deployment(
        find_model(question.model),
        card,
        precision,
        kv.kv_bytes,
        tp=question.tp,
        pp=question.pp,
        ep=question.ep,
        dp=question.dp,
    )
    if deployment.cards > CARDS_MAX:
        raise InvalidRequest(f"tp × pp × dp = {deployment.cards} cards; at most {CARDS_MAX:,}")
    if question.plain and question.engine:
        raise InvalidRequest(
            f"plain counts nothing of an engine, engine {question.engine} does; leave one out"
        )
    if question.ep > 1 and deployment.model.moe is None:
        raise InvalidRequest(
            f"ep={question.ep}, but {deployment.model.name} has no experts; leave it out"
        )
    engine = "" if question.plain else question.engine or fitted.default_engine(card)
    constants = fitted.constants(card, engine) if engine else PLAIN
    time = StepTime(deployment, constants)
    _check_memory(deployment, load)
    found = latency(time, load)
    _check_rate(load, found)
    # No row that the constants are fitted to had weights unpacked that a card cannot multiply.
    is_fitted = constants.evidence == "fitted" and not is_unpacked(card, precision)
    return Estimate(
        deployment=deployment,
        kv=kv.name,
        load=load,
        engine=engine,
        latency=found,
        bound=_bound(deployment, load, found.running),
        evidence="fitted" if is_fitted else "roofline",
        errors=fitted.errors(card) if is_fitted else {},
        notes=_notes(time, found),
        warnings=_warnings(deployment, load, found),
    )


def _check(load: Load) -> None:
    lengths = (load.output_tokens, load.cached_tokens, load.chunk)
    if not 1 <= load.input_tokens <= TOKENS_MAX or not all(
        0 <= length <= TOKENS_MAX for length in lengths
    ):
        raise InvalidRequest(
            f"input {load.input_tokens:g} must be 1 to {TOKENS_MAX:,} tokens, output"
            f" {load.output_tokens:g}, cached {load.cached_tokens:g} and chunk {load.chunk:g} 0 to"
            f" {TOKENS_MAX:,}"
        )
    if load.cached_tokens >= load.input_tokens:
        raise InvalidRequest(
            f"cached {load.cached_tokens:g} must be less than the input of {load.input_tokens:g}"
        )
    asked = (load.concurrency, load.rate)
    if not all(0 <= value <= LOAD_MAX for value in asked) or not any(asked):
        raise InvalidRequest(
            f"batch or rate must be above 0, and at most {LOAD_MAX:g}; they are"
            f" {load.concurrency:g} and {load.rate:g}"
        )
    if load.rate and load.concurrency:
        raise InvalidRequest("batch and rate exclude each other; leave one out")
    if load.rate and not load.output_tokens:
        raise InvalidRequest("a rate needs the length of the answer: name output, in tokens")


def _check_memory(d: Deployment, load: Load) -> None:
    """Refuse what does not fit.

    Raises:
        InvalidRequest: weights alone, or the KV of one session beside them, do not fit.
    """
    memory, weights = d.card.need("memory_bytes"), d.weight_bytes_per_card
    usable = memory * MEMORY_SHARE
    told = f"{_gb(weights)} of weights a card do not fit"
    if weights <= usable:
        session = d.kv_bytes_per_card(load.input_tokens + load.output_tokens)
        if weights + session <= usable:
            return
        told = f"{_gb(weights)} of weights and {_gb(session)} KV of one session a card do not fit"
    raise InvalidRequest(
        f"{d.model.name} in {d.precision.name} on {d.tp * d.pp} {d.card.name}: {told} the"
        f" {_gb(usable)} that engines use of {_gb(memory)}; use more cards (tp, pp), fewer bits or"
        " a shorter context"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _check_rate(load: Load, found: Latency) -> None:
    """Refuse a rate above what a replica carries.

    Raises:
        InvalidRequest: requests come faster than the most sessions that fit are answered.
    """
    if load.rate > found.carries:
        raise InvalidRequest(
            f"a rate of {load.rate:g} requests/s is more than a replica carries: about"
            f" {found.carries:.3g}, with the {int(found.room):,} sessions that fit; the queue grows"
            " without end. Lower the rate, or divide it among more replicas"
        )


def _bound(deployment: Deployment, load: Load, running: float) -> float:
    context = load.input_tokens + load.output_tokens / 2
    parts = StepTime(deployment, PLAIN).step(Batch(running, context))
    return parts.memory + parts.compute


def _notes(time: StepTime, found: Latency) -> tuple[str, ...]:
    d, c = time.deployment, time.constants
    notes = []
    if is_unpacked(d.card, d.precision):
        notes.append(
            f"{d.card.name} has no {d.precision.arithmetic} arithmetic: weights take fewer bytes,"
            " but are multiplied in 16 bits. That was not measured; check that the engine takes"
            " such weights"
        )
    own = c.launch_ns(d.model) + c.sequence * found.running
    if found.step.launch > own * (1 + 1e-9):
        notes.append(
            "held up by the host, which starts kernels one by one: launch is what that takes beyond"
            " the cards' own work, and more cards or fewer bits gain nothing;"
            " --engine vllm-ascend-graph runs a step as one graph"
        )
    return (*notes, *time.crossings())


def _warnings(deployment: Deployment, load: Load, found: Latency) -> tuple[str, ...]:
    d = deployment
    warnings = []
    if load.concurrency > found.room:
        warnings.append(
            f"of {load.concurrency:g} sessions KV of {int(found.room)} fits beside the weights; the"
            " others wait"
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

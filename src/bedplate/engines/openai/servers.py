"""What each kind of server can do, and what it calls things. Data only: code asks here by kind.

vLLM started with `--enable-prompt-tokens-details` and SGLang with `--enable-cache-report` report
the cached tokens of each answer; without that they count as computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bedplate.config.engines import CapabilityOverrides, OpenaiEngine
from bedplate.core.limits import BATCH
from bedplate.engines.base import Capabilities

RESERVED_PARAMS = frozenset(
    {
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "continue_final_message",
        "add_generation_prompt",
        "data_parallel_rank",
        "extra_key",
        "kv_transfer_params",
        "lora_path",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "priority",
        "request_id",
        "rid",
        "routed_dp_rank",
        "session_params",
        "stream",
        "stream_options",
        "tools",
    }
)
"""Parameters that this service sets; a client's would break isolation, order or accounting."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Prometheus names of a server, in order of preference; the first that it exports is read.

    `kv_used_share` is a share of its KV room between 0 and 1, `kv_used_tokens` a count. With
    `computed_only`, its prompt tokens leave out the cached ones.
    """

    prompt_tokens: tuple[str, ...]
    cached_tokens: tuple[str, ...]
    out_tokens: tuple[str, ...]
    running: tuple[str, ...]
    kv_used_share: tuple[str, ...] = ()
    kv_used_tokens: tuple[str, ...] = ()
    computed_only: bool = False


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server.

    `rising_priority`: a larger `priority` runs first. `keeps_connections` is False for one that
    closes a connection after each stream without saying so.
    """

    capabilities: Capabilities
    rising_priority: bool = False
    keeps_connections: bool = True
    metrics: MetricNames | None = None


SERVERS: Mapping[str, ServerKind] = MappingProxyType(
    {
        "vllm": ServerKind(
            Capabilities(
                kv="hints",
                tools=True,
                grammar=True,
                logprobs=True,
                choices=True,
                priority=True,
                salt=True,
                can_cut=True,
                resumable=True,
                passes_unknown=True,
            ),
            metrics=MetricNames(
                prompt_tokens=("vllm:prompt_tokens_total",),
                cached_tokens=("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
                out_tokens=("vllm:generation_tokens_total",),
                running=("vllm:num_requests_running",),
                kv_used_share=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            ),
        ),
        "sglang": ServerKind(
            Capabilities(
                kv="hints",
                tools=True,
                grammar=True,
                logprobs=True,
                choices=True,
                priority=True,
                can_cut=True,
                resumable=True,
                passes_unknown=True,
            ),
            rising_priority=True,
            metrics=MetricNames(
                prompt_tokens=("sglang:prompt_tokens_total",),
                cached_tokens=("sglang:cached_tokens_total",),
                out_tokens=("sglang:generation_tokens_total",),
                running=("sglang:num_running_reqs",),
                kv_used_share=("sglang:token_usage",),
                kv_used_tokens=("sglang:num_used_tokens",),
            ),
        ),
        "mindie": ServerKind(
            Capabilities(kv="hints", tools=True, logprobs=True, can_cut=True),
            metrics=MetricNames(
                prompt_tokens=("prompt_tokens_total",),
                cached_tokens=(),
                out_tokens=("generation_tokens_total",),
                running=("num_requests_running",),
                kv_used_share=("npu_cache_usage_perc",),
            ),
        ),
        "llamacpp": ServerKind(
            Capabilities(
                kv="hints",
                tools=True,
                grammar=True,
                logprobs=True,
                can_cut=True,
                passes_unknown=True,
            ),
            keeps_connections=False,
            metrics=MetricNames(
                prompt_tokens=("llamacpp:prompt_tokens_total",),
                cached_tokens=("llamacpp:prompt_tokens_cached_total",),
                out_tokens=("llamacpp:tokens_predicted_total",),
                running=("llamacpp:requests_processing",),
                computed_only=True,
            ),
        ),
        "generic": ServerKind(Capabilities(kv="hints", tools=True, can_cut=True)),
    }
)


def capabilities_of(settings: OpenaiEngine) -> Capabilities:
    """Return what the endpoint can do: its kind's capabilities with the operator's corrections."""
    known = SERVERS[settings.server].capabilities
    corrections = settings.capabilities
    changed = {
        name: value
        for name in CapabilityOverrides.model_fields
        if name != "params" and (value := getattr(corrections, name)) is not None
    }
    return replace(
        known,
        tokenizer=settings.tokenizer == "endpoint",
        params=known.params | frozenset(corrections.params),
        **changed,
    )


def priority_of(lane: int, kind: ServerKind) -> int:
    """Return the `priority` that makes the server run lower lanes first."""
    assert 0 <= lane <= BATCH
    return BATCH - lane if kind.rising_priority else lane

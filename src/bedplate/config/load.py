"""Load the configuration: the only place that reads the environment.

Order, the later wins: defaults of the tree, the file, `BEDPLATE_DATA_DIR`, the options of the
command line. The file is the one named, else the one that `BEDPLATE_CONFIG` names, else none.
Secrets of endpoints are read only for who calls them: `secrets=False` is for looking at files.

Every fault is a `ConfigError` that names the file, the whole key path and what to write instead.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr, ValidationError

from bedplate.config.explain import Sources, explain
from bedplate.config.fields import GIB, Section
from bedplate.config.tree import Config, EngineConfig, OpenaiEngine
from bedplate.errors import ConfigError

POOL_BYTES_DEFAULT_MAX = 4 * GIB
NO_FILE = "default configuration"
"""What messages name where there is no file."""

_Raw = dict[str, Any]
_Tree = TypeVar("_Tree", bound=Section)


def load(
    path: Path | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> Config:
    """Return the configuration.

    Args:
        path: The TOML file; None reads the one that `BEDPLATE_CONFIG` names, or none at all.
        overrides: Values by key path ("service.port") that win over the file; None values do not.
        environment: The process's environment unless a test gives another.
        secrets: Whether to read the keys that `api_key_env` names, which must then be set.

    Raises:
        ConfigError: The file cannot be read, a key is unknown or a value is out of its range.
    """
    env = os.environ if environment is None else environment
    path = config_file(path, env)
    raw: _Raw = {} if path is None else read_toml(path)
    source = NO_FILE if path is None else str(path)
    _put_default(raw, "service.data_dir", str(_data_dir(env)))
    cache_dir = _cache_dir(env)
    if cache_dir is not None:
        _put_default(raw, "service.cache_dir", str(cache_dir))
    _put_default(raw, "pool.size_bytes", pool_bytes_default(_free_bytes()))
    if env.get("BEDPLATE_DATA_DIR"):
        _put(raw, "service.data_dir", str(Path(env["BEDPLATE_DATA_DIR"]).absolute()))
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in given.items():
        _put(raw, key, str(value.absolute()) if isinstance(value, Path) else value)
    folder = Path.cwd() if path is None else path.absolute().parent
    config = validated(Config, raw, Sources(source, frozenset(given)), folder=folder)
    return _resolve_keys(config, source=source, env=env) if secrets else config


def config_file(
    path: Path | None = None, environment: Mapping[str, str] | None = None
) -> Path | None:
    """Return the file that `load` reads: the one named, else that of `BEDPLATE_CONFIG`, or none."""
    env = os.environ if environment is None else environment
    if path is None and env.get("BEDPLATE_CONFIG"):
        return Path(env["BEDPLATE_CONFIG"])
    return path


def is_set(variable: str) -> bool:
    """Tell whether the process's environment has a value for this variable."""
    return bool(os.environ.get(variable))


def pool_bytes_default(free_bytes: int) -> int:
    """Return the pool's cap on a host with so much free memory: a quarter, at most 4 GiB."""
    return min(POOL_BYTES_DEFAULT_MAX, free_bytes // 4)


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, numbers or nests too long
        raise ConfigError(f"{path}: is not TOML: {error}") from error


def validated(root: type[_Tree], raw: _Raw, sources: Sources, *, folder: Path) -> _Tree:
    """Return the tree with the values of a file, relative paths counted from `folder`.

    Raises:
        ConfigError: a key is unknown, or a value is of another type or out of its range.
    """
    try:
        # By way of JSON, whose strict mode takes text for paths and lists for tuples, but never
        # text for numbers. Python's own writes integers of any size, for the bounds to refuse.
        return root.model_validate_json(
            json.dumps(raw, default=str),
            strict=True,
            by_alias=True,
            by_name=False,
            context={"folder": folder},
        )
    except ValidationError as error:
        raise ConfigError(explain(error, sources, root)) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{sources.file}: holds a value that cannot be used: {error}") from error


def _resolve_keys(config: Config, *, source: str, env: Mapping[str, str]) -> Config:
    engines: list[EngineConfig] = []
    for index, engine in enumerate(config.engines):
        if isinstance(engine, OpenaiEngine) and engine.api_key_env is not None:
            secret = env.get(engine.api_key_env)
            if not secret:
                raise ConfigError(
                    f"{source}: engine[{index}].api_key_env: the environment variable "
                    f"{engine.api_key_env} is not set; set it to the key of {engine.addresses[0]}"
                )
            engines.append(engine.with_api_key(SecretStr(secret)))
        else:
            engines.append(engine)
    return config.model_copy(update={"engines": tuple(engines)})


def _put(raw: _Raw, key: str, value: object) -> None:
    section, name = key.split(".")
    part: object = raw.setdefault(section, {})
    if isinstance(part, dict):  # else the file is wrong here, and validation says so
        part[name] = value


def _put_default(raw: _Raw, key: str, value: object) -> None:
    section, name = key.split(".")
    part = raw.get(section, {})
    if isinstance(part, dict) and name not in part:
        _put(raw, key, value)


def _data_dir(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_DATA_HOME")
    if base:
        return Path(base, "bedplate")
    return Path(env["HOME"], ".local/share/bedplate") if env.get("HOME") else Path("bedplate-data")


def _cache_dir(env: Mapping[str, str]) -> Path | None:
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"], "bedplate")
    return Path(env["HOME"], ".cache/bedplate") if env.get("HOME") else None


def _free_bytes() -> int:
    """Return the memory that new work can have; 1 GiB where the system does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return GIB
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return GIB

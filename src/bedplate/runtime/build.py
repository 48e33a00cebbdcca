"""A service from a configuration: which class each section means, and where its files lie."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from bedplate.config import Config
from bedplate.config.engines import LlamacppEngine, OpenaiEngine
from bedplate.config.tree import ServiceConfig
from bedplate.engines.base import Engine
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.engines.llamacpp.settings import Settings
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import JournalBusy
from bedplate.journal import Journal
from bedplate.pool import KvPool
from bedplate.runtime.service import Service

SALT_FILE = "engine-salt"
SALT_BYTES = 32


def build_service(config: Config) -> Service:
    """Open journal and pool and make the engines; `Service.start` starts them.

    Raises:
        ConfigError: a section that cannot work.
        JournalBusy: another process serves this data folder.
        JournalError: the journal does not verify at its end.
        PoolError: the pool's folder cannot be used.
    """
    config.service.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        journal = Journal.open(config.journal_dir, origin=f"bedplate/{config.service.cell}")
    except JournalBusy as error:
        raise JournalBusy(
            f"{error.message}, or serve another folder with --data-dir or service.data_dir"
        ) from error
    pool: KvPool | None = None
    try:
        pool = open_pool(config)
        return Service(config, build_engines(config, pool), pool, journal)
    except BaseException:
        if pool is not None:
            pool.close()
        journal.close()
        raise


def open_pool(config: Config) -> KvPool | None:
    """Open the pool, None where it is off or no engine stores KV."""
    stores = any(isinstance(section, LlamacppEngine) for section in config.engines)
    if not config.pool.enabled or not stores:
        return None
    return KvPool.open(
        config.pool.path,
        name=_pool_name(config),
        size_bytes_max=config.pool.size_bytes,
        fallback=config.pool_fallback_dir,
    )


def _pool_name(config: Config) -> str:
    """Return a name for the pool's folder that no other data folder of this host has."""
    where = hashlib.sha256(str(config.service.data_dir.resolve()).encode()).hexdigest()
    return f"{config.service.cell}-{where[:8]}"


def build_engines(config: Config, pool: KvPool | None) -> list[Engine]:
    """Make one engine for each section, in order."""
    data_dir = config.service.data_dir
    engines: list[Engine] = []
    for section in config.engines:
        if isinstance(section, OpenaiEngine):
            engines.append(OpenAIEngine(section, salt_secret=_salt(data_dir / SALT_FILE)))
        else:
            engines.append(LlamaCppEngine(_settings(section, config.service), pool))
    return engines


def _settings(section: LlamacppEngine, service: ServiceConfig) -> Settings:
    return Settings(
        name=section.name,
        model=section.model,
        path=section.path,
        data_dir=service.data_dir,
        cache_dir=service.cache_dir,
        digest=section.digest or "",
        cards=section.cards,
        slots=section.slots,
        running_max=section.running_max,
        prompt_streams=section.prompt_streams,
        running_busy=section.running_busy,
        kv_tokens=section.kv_tokens,
        kv_type=section.kv_type,
        batch_tokens=section.batch_tokens,
        threads=section.threads,
        partition=section.partition,
        chat_template=section.chat_template,
        heartbeat_seconds=section.heartbeat_seconds,
        orphan_seconds=section.orphan_seconds,
    )


def _salt(path: Path) -> bytes:
    """Return the secret that keeps tenants' prefixes apart at endpoints, made on first use."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        salt = path.read_bytes()
        if len(salt) == SALT_BYTES:
            return salt
        path.unlink()  # cut short by a crash; a new one only costs the endpoints' caches
        return _salt(path)
    with os.fdopen(descriptor, "wb") as file:
        salt = secrets.token_bytes(SALT_BYTES)
        file.write(salt)
    return salt

"""The configuration: one frozen tree, with the default and the bound of every key.

The tree only holds values. `config/load.py` reads files and the environment; nobody else does.
`docs/reference/configuration.md` is written from the field descriptions, and a test compares them.

Units stand in the names: `_seconds`, `_tokens`, `_bytes` (an integer, or text such as "4GiB"),
`_percent`, `_micro` (millionths of the currency unit). A limit of 0 means no limit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from bedplate.config.engines import (
    CapabilityOverrides,
    EngineConfig,
    LlamacppEngine,
    OpenaiEngine,
)
from bedplate.config.fields import (
    CURRENCY,
    GIB,
    MIB,
    TOKEN_SECONDS_MAX,
    BlockTokens,
    Bytes,
    Count,
    LocalPath,
    Name,
    Percent,
    Price,
    Seconds,
    Section,
    TokenLimit,
    to_ns,
)
from bedplate.config.lanes import LaneConfig, LanesConfig
from bedplate.config.tenants import TenantConfig, TenantLimits, check_limits
from bedplate.core.limits import Policy
from bedplate.core.prices import DEFAULT_PRICES, Prices

__all__ = [
    "CapabilityOverrides",
    "Config",
    "EngineConfig",
    "JournalConfig",
    "LaneConfig",
    "LanesConfig",
    "LlamacppEngine",
    "LogConfig",
    "OpenaiEngine",
    "PoolConfig",
    "PricesConfig",
    "Section",
    "ServiceConfig",
    "TenantConfig",
    "TenantLimits",
]


class ServiceConfig(Section):
    """The HTTP service."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=8080, ge=0, le=65_535, description="Port; 0 lets the system choose one."
    )
    data_dir: LocalPath = Field(
        default=Path("bedplate-data"),
        description="Folder of journal, keys and the pool's fallback; left out, "
        "`~/.local/share/bedplate`.",
    )
    cache_dir: LocalPath | None = Field(
        default=None,
        description="Folder of model files that data folders share; left out, "
        "`~/.cache/bedplate`. Where it cannot be written, they lie in `data_dir`.",
    )
    cell: Name = Field(
        default="main", description="Name of this cell; part of the journal's origin."
    )
    body_bytes_max: Bytes = Field(
        default=8 * MIB, ge=1, le=GIB, description="Largest request body."
    )
    drain_seconds: Seconds = Field(
        default=30.0, description="How long running turns may go on after SIGTERM."
    )
    tls_cert: LocalPath | None = Field(
        default=None, description="Certificate chain (PEM); TLS needs both files."
    )
    tls_key: LocalPath | None = Field(default=None, description="Private key (PEM) of `tls_cert`.")
    connections_max: Count = Field(default=1024, description="Open client connections.")
    header_wait_seconds: Seconds = Field(
        default=10.0,
        description="A stream's status waits this long for the first token; then 200 and comments.",
    )
    stall_seconds: Seconds = Field(
        default=60.0, description="A client that reads nothing for this long is disconnected."
    )
    sessions_max: Count = Field(default=100_000, description="Live sessions of the cell.")
    run_base_seconds: Seconds = Field(default=60.0, description="Fixed part of a turn's deadline.")
    run_token_seconds: float = Field(
        default=0.25,
        gt=0,
        le=TOKEN_SECONDS_MAX,
        description="Part of a turn's deadline per token of prompt and output limit.",
    )

    retry_percent: Percent = Field(
        default=20.0,
        description="Tokens of prompts that may be sent again when cards fail, by those accepted.",
    )
    retry_tokens: TokenLimit = Field(
        default=1_000_000,
        description="Tokens that may be sent again beyond that; 0 for no limit at all.",
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key need each other; set both or none")
        return self


class PoolConfig(Section):
    """The shared KV pool behind the cards."""

    enabled: bool = Field(
        default=True, description="Without it, KV that leaves a card is computed again."
    )
    path: LocalPath | None = Field(
        default=None,
        description="Folder; left out, one in shared memory (`/dev/shm`), by user and cell.",
    )
    size_bytes: Bytes = Field(
        default=4 * GIB,
        description="Cap of the pool; left out, a quarter of the free memory, at most 4 GiB.",
    )
    fallback_dir: LocalPath | None = Field(
        default=None,
        description="Folder on disk when shared memory cannot be used; left out, in `data_dir`.",
    )
    block_tokens: BlockTokens = Field(
        default=32, description="Tokens of one KV block, a power of two."
    )
    water_percent: tuple[Percent, ...] = Field(
        default=(70.0, 85.0, 95.0), description="Rising alarm levels of card and pool use."
    )

    @model_validator(mode="after")
    def _levels_rise(self) -> Self:
        if list(self.water_percent) != sorted(set(self.water_percent)):
            raise ValueError("water_percent must rise from each level to the next")
        if self.enabled and self.size_bytes == 0:
            raise ValueError("size_bytes is 0; to run without a pool set enabled = false")
        return self


class JournalConfig(Section):
    """The append-only record of everything that was decided."""

    path: LocalPath | None = Field(
        default=None, description="Folder; left out, `journal` in `data_dir`."
    )
    content: bool = Field(
        default=True, description="Keep prompts and answers too; without it only their hashes."
    )


class PricesConfig(Section):
    """What usage costs, in millionths of the currency unit."""

    version: Name = Field(
        default=DEFAULT_PRICES.version, description="Name of this price list; part of every row."
    )
    currency: str = Field(
        default=DEFAULT_PRICES.currency, pattern=CURRENCY, description="Currency code."
    )
    uncached_micro: Price = Field(
        default=DEFAULT_PRICES.uncached_micro, description="A million computed prompt tokens."
    )
    cached_micro: Price = Field(
        default=DEFAULT_PRICES.cached_micro, description="A million reused prompt tokens."
    )
    output_micro: Price = Field(
        default=DEFAULT_PRICES.output_micro, description="A million output tokens."
    )
    card_kv_micro: Price = Field(
        default=DEFAULT_PRICES.card_kv_micro, description="A GiB-hour of KV on a card."
    )
    pool_kv_micro: Price = Field(
        default=DEFAULT_PRICES.pool_kv_micro, description="A GiB-hour of KV in the pool."
    )
    card_hour_micro: Price = Field(
        default=DEFAULT_PRICES.card_hour_micro,
        description="An hour of one card, shared by its slots.",
    )

    def prices(self) -> Prices:
        """Return the list as core and bills want it."""
        return Prices(**self.model_dump())


class LogConfig(Section):
    """The service's log on stderr. It never holds prompt text or secrets."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is written."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="For people or for machines."
    )


class Config(Section):
    """The whole configuration of one cell."""

    service: ServiceConfig = Field(default=ServiceConfig(), description="The HTTP service.")
    engines: tuple[EngineConfig, ...] = Field(
        default=(LlamacppEngine(),),
        alias="engine",
        max_length=64,
        description="Engines; left out, two embedded cards.",
    )
    pool: PoolConfig = Field(default=PoolConfig(), description="The shared KV pool.")
    lanes: LanesConfig = Field(default_factory=LanesConfig, description="Service classes.")
    tenants: tuple[TenantConfig, ...] = Field(
        default=(),
        alias="tenant",
        max_length=100_000,
        description="Tenants with limits of their own.",
    )
    defaults: TenantLimits = Field(
        default=TenantLimits(), description="Limits of all other tenants."
    )
    journal: JournalConfig = Field(default=JournalConfig(), description="The journal.")
    prices: PricesConfig = Field(default=PricesConfig(), description="The price list.")
    log: LogConfig = Field(default=LogConfig(), description="The log.")

    @property
    def journal_dir(self) -> Path:
        """Folder of the journal."""
        return self.journal.path or self.service.data_dir / "journal"

    @property
    def keys_path(self) -> Path:
        """File of the hashed API keys; its folder may not exist yet."""
        return self.service.data_dir / "keys.db"

    @property
    def pool_fallback_dir(self) -> Path:
        """Folder of the pool when shared memory cannot be used."""
        return self.pool.fallback_dir or self.service.data_dir / "pool"

    def policy(self) -> Policy:
        """Return what core is configured with."""
        return Policy(
            block_tokens=self.pool.block_tokens,
            lanes=(
                self.lanes.interactive.policy(),
                self.lanes.shared.policy(),
                self.lanes.batch.policy(),
            ),
            tenants=tuple(
                sorted(
                    (tenant.policy(self.defaults) for tenant in self.tenants),
                    key=lambda policy: policy.tenant,
                )
            ),
            default_tenant=self.defaults.policy(""),
            pool_bytes_max=self.pool.size_bytes if self.pool.enabled else 0,
            water_permille=tuple(round(level * 10) for level in self.pool.water_percent),
            run_base_ns=to_ns(self.service.run_base_seconds),
            run_token_ns=to_ns(self.service.run_token_seconds),
            sessions_max=self.service.sessions_max,
            prices=self.prices.prices(),
            retry_permille=round(self.service.retry_percent * 10),
            retry_tokens=self.service.retry_tokens,
        )

    @model_validator(mode="after")
    def _has_engines(self) -> Self:
        if not self.engines:
            raise ValueError("engine: name at least one, or leave it out for the embedded cards")
        return self

    @model_validator(mode="after")
    def _cards_hold_blocks(self) -> Self:
        for engine in self.engines:
            if engine.kv_tokens < self.pool.block_tokens:
                raise ValueError(
                    f"engine {engine.name}: kv_tokens {engine.kv_tokens} is less than one block; "
                    f"pool.block_tokens is {self.pool.block_tokens}"
                )
        return self

    @model_validator(mode="after")
    def _reserves_fit(self) -> Self:
        limits = [tenant.policy(self.defaults) for tenant in self.tenants]
        check_limits([self.defaults.policy(""), *limits])
        reserved = sum(one.reserve_tokens for one in limits)
        for engine in self.engines:
            room = engine.kv_tokens * len(engine.card_names)
            if reserved > room:
                raise ValueError(
                    f"tenant.reserve_tokens: {reserved} in all, more than the {room} tokens that "
                    f"the cards of engine {engine.name} hold"
                )
        kept = sum(one.pool_reserve_bytes for one in limits)
        if kept and self.pool.enabled and kept > self.pool.size_bytes:
            raise ValueError(
                f"tenant.pool_reserve_bytes: {kept} in all, more than pool.size_bytes "
                f"{self.pool.size_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for key, names in (
            ("engine.name", [engine.name for engine in self.engines]),
            ("engine.model", [engine.model for engine in self.engines]),
            ("card", [card for engine in self.engines for card in engine.card_names]),
            ("tenant.id", [tenant.id for tenant in self.tenants]),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f'{key} "{twice[0]}" is used twice; each must be unique')
        return self

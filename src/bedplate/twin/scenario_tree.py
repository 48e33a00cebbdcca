"""What a scenario file holds: one frozen tree, like the service's configuration and with its parts.

Lanes, tenants and their defaults are the service's own sections, so that a file of the service and
a scenario say the same in the same words. `twin/scenario.py` reads files and builds what runs.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bedplate.config.fields import (
    COUNT_MAX,
    SECONDS_MAX,
    TOKEN_SECONDS_MAX,
    BlockTokens,
    Bytes,
    ContextTokens,
    Count,
    LocalPath,
    ModelName,
    Name,
    Seconds,
    Section,
)
from bedplate.config.lanes import LanesConfig
from bedplate.config.sizes import parse_size
from bedplate.config.tree import Config, PoolConfig, ServiceConfig, TenantConfig, TenantLimits
from bedplate.core.limits import LANE_NAMES, Policy
from bedplate.twin.scenario_clients import ClientsConfig
from bedplate.twin.scenario_faults import FaultConfig, TailConfig
from bedplate.twin.workload.transform import Place

CARDS_MAX = 4_096
PARALLEL_MAX = 4_096
SEED_MAX = (1 << 63) - 1
OPTIONS = ("tp", "pp", "precision", "kv_precision", "engine", "move_bytes_per_second")
"""Keys of a group of cards that say how its model runs, where times are estimated."""
_SERVICE, _POOL = ServiceConfig(), PoolConfig()

Rate = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=1 << 50)]
Lane = Literal["interactive", "shared", "batch"]


class RunConfig(Section):
    """How it is run."""

    seed: int = Field(default=1, ge=0, le=SEED_MAX, description="Seed of everything that is drawn.")
    slo_factor: float = Field(
        default=1.0,
        gt=0,
        le=1_000_000,
        description="Stretches the limits of the SLO classes, for cards that are slow by nature.",
    )
    samples: int = Field(
        default=500, ge=1, le=100_000, description="Instants at which occupancy is looked at."
    )
    progress_tokens: int = Field(
        default=0,
        ge=0,
        le=COUNT_MAX,
        description="Tell the core of a turn's progress every so many tokens, as the service does "
        "every 16; 0 for never, which is faster and changes no decision of a run without faults.",
    )


class CardsConfig(Section):
    """Cards that are alike. Times come from `profile`, or are estimated for `model` on `card`."""

    name: Name = Field(default="card", description="Card ids are this and a number from 0; unique.")
    count: int = Field(
        default=1, ge=1, le=CARDS_MAX, description="How many of them, each of `tp` × `pp` chips."
    )
    partition: str = Field(
        default="", max_length=64, description="Fault domain inside the supernode."
    )
    profile: str | None = Field(
        default=None,
        min_length=1,
        description="A profile file (`bedplate calibrate` writes them), or the name of a built-in "
        "one.",
    )
    model: ModelName | None = Field(default=None, description="A model of the catalogue.")
    card: str | None = Field(default=None, description="A card of the catalogue.")
    tp: int | None = Field(
        default=None,
        ge=1,
        le=PARALLEL_MAX,
        description="Chips that run the model together as one card; left out, 1.",
    )
    pp: int | None = Field(
        default=None, ge=1, le=PARALLEL_MAX, description="Stages of such chips; left out, 1."
    )
    precision: str | None = Field(
        default=None, description="Number format of the weights; left out, `fp16`."
    )
    kv_precision: str | None = Field(
        default=None, description="Number format of KV; left out, 16 bits, as engines keep it."
    )
    engine: str | None = Field(
        default=None,
        description="Whose batching rules hold, such as `vllm`; left out, the usual one of the "
        "card's maker.",
    )
    move_bytes_per_second: Rate | None = Field(
        default=None,
        description="What one chip reaches the pool with, alone; left out, its link to the host "
        "as the catalogue knows it.",
    )

    @property
    def card_names(self) -> tuple[str, ...]:
        """Id of each card."""
        return tuple(f"{self.name}-{at}" for at in range(self.count))

    @model_validator(mode="after")
    def _has_times(self) -> Self:
        named = [key for key in ("model", "card", *OPTIONS) if getattr(self, key) is not None]
        if self.profile is not None and named:
            raise ValueError(f"give profile, or {named[0]} and its like, not both")
        if self.profile is None and None in (self.model, self.card):
            raise ValueError("give profile, or model and card to estimate one")
        return self


class PoolSection(Section):
    """The shared KV pool behind the cards; without a size there is none."""

    size_bytes: Bytes = Field(default=0, description="How much it holds; 0 for no pool.")
    bytes_per_second: Rate | None = Field(
        default=None,
        description='What all moves of all cards share, such as `"200GB"`; or give `link`.',
    )
    link: str | None = Field(
        default=None,
        description="A link of the catalogue, such as `host_memory`, for its bandwidth and "
        "latency.",
    )
    links: int | None = Field(
        default=None,
        ge=1,
        le=CARDS_MAX,
        description="How many such links there are together; left out, one for each card.",
    )
    latency_seconds: float = Field(
        default=0.0, ge=0, le=SECONDS_MAX, description="Added to each move, before its bytes."
    )
    tail: TailConfig | None = Field(default=None, description="Rare long waits of moves.")

    @model_validator(mode="after")
    def _is_reached(self) -> Self:
        if self.bytes_per_second is not None and self.link is not None:
            raise ValueError("give bytes_per_second or link, not both")
        if self.links is not None and self.link is None:
            raise ValueError("links says how many of link there are, which is missing")
        if self.size_bytes and self.bytes_per_second is None and self.link is None:
            raise ValueError("a pool needs bytes_per_second or link")
        if self.model_fields_set and "size_bytes" not in self.model_fields_set:
            raise ValueError("size_bytes is missing, and without it there is no pool; 0 says so")
        return self


class PolicyConfig(Section):
    """Lanes, tenants and limits: the service's own sections, or the file of a service."""

    config: LocalPath | None = Field(
        default=None,
        description="Configuration file of a service, whose policy is taken; then nothing else "
        "stands here.",
    )
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
    block_tokens: BlockTokens = Field(
        default=_POOL.block_tokens, description="Tokens of one KV block, a power of two."
    )
    sessions_max: Count = Field(
        default=_SERVICE.sessions_max, description="Live sessions of the cell."
    )
    run_base_seconds: Seconds = Field(
        default=_SERVICE.run_base_seconds, description="Fixed part of a turn's deadline."
    )
    run_token_seconds: float = Field(
        default=_SERVICE.run_token_seconds,
        gt=0,
        le=TOKEN_SECONDS_MAX,
        description="Part of a turn's deadline per token of prompt and output limit.",
    )

    def policy(self, pool_bytes: int) -> Policy:
        """Return what core is configured with; `config` is not looked at.

        Raises:
            ValidationError: a tenant's id is used twice.
        """
        pool = PoolConfig(block_tokens=self.block_tokens, enabled=False)
        service = ServiceConfig(
            sessions_max=self.sessions_max,
            run_base_seconds=self.run_base_seconds,
            run_token_seconds=self.run_token_seconds,
        )
        whole = Config(
            service=service,
            pool=pool,
            lanes=self.lanes,
            tenant=self.tenants,
            defaults=self.defaults,
        )
        return whole.policy()._replace(pool_bytes_max=pool_bytes)

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        others = self.model_fields_set - {"config"}
        if self.config is not None and others:
            raise ValueError("give config, or the limits themselves, not both")
        return self


class MixConfig(Section):
    """Sessions of personas, begun at the pace of working days."""

    shares: dict[str, Annotated[float, Field(ge=0, le=1_000_000_000)]] = Field(
        min_length=1, description="Weight of each persona."
    )
    sessions_per_hour: float = Field(
        gt=0, le=1_000_000_000, description="Sessions that begin in the busiest hour, all together."
    )
    hours: float = Field(default=1.0, gt=0, le=100_000, description="How long sessions begin.")
    flat: bool = Field(
        default=True, description="The same rate all the time; hours and days do not count."
    )
    start: datetime | None = Field(
        default=None, description="Local time of the beginning; needs `flat = false`."
    )
    month_start_factor: float | None = Field(
        default=None,
        ge=1,
        le=100,
        description="How many times as busy the first working days of a month are; left out, 6. "
        "Needs `flat = false`, as the next two.",
    )
    month_start_days: int | None = Field(
        default=None, ge=0, le=31, description="How many working days that are; left out, 2."
    )
    weekend_factor: float | None = Field(
        default=None, ge=0, le=100, description="How busy days off are; left out, 0.1."
    )

    @model_validator(mode="after")
    def _calendar_counts(self) -> Self:
        calendar = ("start", "month_start_factor", "month_start_days", "weekend_factor")
        given = [key for key in calendar if getattr(self, key) is not None]
        if self.flat and given:
            raise ValueError(f"{given[0]} has no effect at a flat rate; write flat = false")
        return self


class PlaceConfig(Section):
    """Whose some of the sessions are."""

    tenant: str = Field(default="", max_length=64, description="Left out, the session's own.")
    lane: Lane | None = Field(default=None, description="Left out, the session's own.")

    def place(self) -> Place:
        """Return it as the workload's transformations want it."""
        return Place(self.tenant, -1 if self.lane is None else LANE_NAMES.index(self.lane))


class WorkloadConfig(Section):
    """What is asked: `file`, or `mix`. What follows is done in the order of the keys."""

    file: LocalPath | None = Field(
        default=None, description="A trace, a recorded journal or a workload, or a folder of them."
    )
    format: str | None = Field(
        default=None, description="Its format; left out, it is recognised by content."
    )
    mix: MixConfig | None = Field(default=None, description="Sessions of personas.")
    sessions_max: Count | None = Field(
        default=None, description="Take so many sessions, the earliest, and what they spawn."
    )
    repeat_sessions: Count | None = Field(
        default=None,
        description="Draw so many sessions from those there are; needs `starts_per_second`.",
    )
    starts_per_second: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="Draw the starts anew: a Poisson process of so many sessions a second.",
    )
    rate_factor: float = Field(
        default=1.0, gt=0, le=1_000_000, description="Let sessions begin so many times as fast."
    )
    until_seconds: Seconds | None = Field(
        default=None, description="Leave out sessions that begin later, and what they spawn."
    )
    token_factor: float = Field(default=1.0, gt=0, le=1_000, description="Multiply all sizes.")
    context_tokens_max: ContextTokens | None = Field(
        default=None, description="Cut turns so that prompt and answer fit into a context."
    )
    opening_tokens: Count | None = Field(
        default=None,
        description="Let so many tokens at the start of first prompts be the same for a tenant and "
        "kind of session, as system prompts are.",
    )
    places: tuple[PlaceConfig, ...] = Field(
        default=(),
        alias="place",
        max_length=10_000,
        description="Deal sessions out to tenants and lanes in turn.",
    )

    @model_validator(mode="after")
    def _says_what_is_asked(self) -> Self:
        if self.file is not None and self.mix is not None:
            raise ValueError("give file or mix, not both")
        if self.format is not None and self.file is None:
            raise ValueError("format says how to read file, which is missing")
        if self.repeat_sessions is not None and self.starts_per_second is None:
            raise ValueError("repeat_sessions needs starts_per_second, for all start as one else")
        return self


class ScenarioConfig(Section):
    """A whole scenario."""

    name: str = Field(
        default="", max_length=200, description="For reports; left out, the file's name."
    )
    run: RunConfig = Field(default=RunConfig(), description="How it is run.")
    cards: tuple[CardsConfig, ...] = Field(max_length=10_000, description="Groups of cards.")
    pool: PoolSection = Field(default=PoolSection(), description="The shared KV pool.")
    policy: PolicyConfig = Field(
        default_factory=PolicyConfig, description="Lanes, tenants, limits."
    )
    workload: WorkloadConfig = Field(default_factory=WorkloadConfig, description="What is asked.")
    clients: ClientsConfig = Field(default=ClientsConfig(), description="How clients ask again.")
    faults: tuple[FaultConfig, ...] = Field(
        default=(), alias="fault", max_length=10_000, description="What breaks."
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        # Not by min_length, which would blame a missing card after each error inside of one.
        if not self.cards:
            raise ValueError("cards: there are none; write at least one [[cards]]")
        names = Counter(name for group in self.cards for name in group.card_names)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f'card "{twice[0]}" is there twice; give groups of cards names')
        if len(names) > CARDS_MAX:
            raise ValueError(f"{len(names)} cards are more than {CARDS_MAX}")
        return self

    @model_validator(mode="after")
    def _faults_hit_something(self) -> Self:
        cards = {name for group in self.cards for name in group.card_names}
        partitions = {group.partition for group in self.cards}
        for index, fault in enumerate(self.faults):
            card = getattr(fault, "card", None)
            partition = getattr(fault, "partition", None)
            if card is not None and card not in cards:
                raise ValueError(
                    f'fault[{index}].card "{card}" is no card of the scenario; there are '
                    f"{', '.join(map(_ids, self.cards))}"
                )
            if partition is not None and partition not in partitions:
                known = ", ".join(f'"{name}"' for name in sorted(partitions))
                raise ValueError(
                    f'fault[{index}].partition "{partition}" has no cards; the partitions are '
                    f"{known}"
                )
        return self


def _ids(group: CardsConfig) -> str:
    """Return the ids of a group of cards as a range."""
    return group.card_names[0] + (f" to {group.card_names[-1]}" if group.count > 1 else "")

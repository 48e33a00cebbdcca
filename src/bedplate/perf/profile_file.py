"""Card profiles as TOML files, with what they rest on beside them.

A file that `dump` wrote gives the same profile again, to the last bit. The tables `[calibration]`
and `[error.KIND]` say who measured what, on which machine, and how far off the constants were on
points that they were not fitted to; they may be left out of a file that is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from bedplate.config.explain import Sources, explain
from bedplate.config.fields import Section
from bedplate.config.load import read_toml
from bedplate.errors import ConfigError
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost

FORMAT = 1

SLOTS_MAX = 1 << 14
TIME_NS_MAX = 1e12
"""Longest time of anything that a profile counts, 1,000 s: beyond it a run has no end."""

_Time = Annotated[float, Field(ge=0, le=TIME_NS_MAX, allow_inf_nan=False)]
_Slots = Annotated[int, Field(ge=1, le=SLOTS_MAX)]
_Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=1 << 40)]


class FitError(Section):
    """Relative errors |predicted ÷ measured − 1| on points that were held out."""

    points: _Count
    mean: _Share
    median: _Share
    p90: _Share


class Errors(Section):
    """The error of each kind of point; None for a kind that was not measured."""

    prefill: FitError | None = None
    decode: FitError | None = None
    mixed: FitError | None = None
    store: FitError | None = None
    load: FitError | None = None


class Calibration(Section):
    """How a profile came about.

    `made` is a date and time (UTC, ISO 8601); `load` the load average of the machine over one
    minute before the cards started, `cpus` its processors; `timer_ns` the resolution of the clock;
    `rounds` how often each point was measured, of which the median counts; `cards` how many cards
    were measured at the same time.
    """

    made: str
    command: str
    machine: str
    cpus: int
    load: float
    engine: str
    cards: int
    seconds: float
    timer_ns: int
    seed: int
    rounds: int
    points: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """All of a file; None what it does not have."""

    profile: CardProfile
    calibration: Calibration | None
    errors: Errors | None


def load(path: Path) -> CardProfile:
    """Return the profile of a file.

    Raises:
        ConfigError: The file cannot be read, a key is unknown or missing, or a value cannot be.
    """
    return read(path).profile


def read(path: Path) -> ProfileFile:
    """Return all of a file; raises as `load`."""
    raw = read_toml(path)
    try:
        tree = _Tree.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error, Sources(str(path)), _Tree)) from error
    return ProfileFile(tree.profile(str(path)), tree.calibration, tree.error)


def dump(
    profile: CardProfile,
    path: Path,
    *,
    calibration: Calibration | None = None,
    errors: Errors | None = None,
) -> None:
    """Write a profile, and what is known of its making.

    Raises:
        ConfigError: Its step cost is of a kind that no file holds, or the file cannot be written.
    """
    text = to_toml(profile, calibration=calibration, errors=errors)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def to_toml(
    profile: CardProfile,
    *,
    calibration: Calibration | None = None,
    errors: Errors | None = None,
) -> str:
    """Return the text of a profile's file; raises as `dump`."""
    if not isinstance(profile.step, LinearCost):
        raise ConfigError(
            f"profile {profile.name}: a step cost of the kind {type(profile.step).__name__} cannot "
            "be written to a file; only LinearCost can"
        )
    head: dict[str, Any] = {"format": FORMAT, "name": profile.name, "model": profile.model}
    tables: dict[str, Mapping[str, Any]] = {
        "card": {name: getattr(profile, name) for name in _Card.model_fields},
        "batching": asdict(profile.batching),
        "step": {"kind": "linear", **asdict(profile.step)},
        "store": asdict(profile.store),
        "load": asdict(profile.load),
    }
    if profile.kv != "full":
        del tables["store"], tables["load"]
    if calibration is not None:
        tables["calibration"] = calibration.model_dump()
    if errors is not None:
        for kind, error in errors.model_dump(exclude_none=True).items():
            tables[f"error.{kind}"] = error
    lines = _lines(head | {"evidence": profile.evidence})
    for title, table in tables.items():
        lines += ["", f"[{title}]", *_lines(table)]
    return "\n".join(lines) + "\n"


class _Card(Section):
    kv: Literal["full", "hints", "none"]
    can_cut: bool
    slots: _Slots
    running_max: _Slots
    kv_tokens: _Count
    context_tokens: _Count
    kv_bytes_per_token: int = Field(ge=0)
    begin_ns: _Time = 0.0
    end_ns: _Time = 0.0
    cell_ns: _Time = 0.0
    contention: _Share = 0.0
    prompt_streams: int = Field(default=1, ge=0)
    running_busy: int = Field(default=0, ge=0)


class _Batching(Section):
    token_budget: _Count
    mixed: bool = True
    prompts_max: int = Field(default=0, ge=0)
    order: Literal["arrival", "slot"] = "arrival"


class _Step(Section):
    kind: Literal["linear"] = "linear"
    launch_ns: _Time
    weights_ns: _Time
    prompt_ns: _Time
    sequence_ns: _Time
    pair_ns: _Time
    context_ns: _Time


class _Move(Section):
    base_ns: _Time
    byte_ns: _Time
    stalls: bool


class _Tree(Section):
    format: Literal[1]
    name: str
    model: str
    evidence: Literal["measured", "fitted", "roofline"]
    card: _Card
    batching: _Batching
    step: _Step
    store: _Move | None = None
    load: _Move | None = None
    calibration: Calibration | None = None
    error: Errors | None = None

    def profile(self, source: str) -> CardProfile:
        """Return the profile; `source` names the file where it is at fault."""
        moves: list[MoveCost] = []
        for key, move in (("store", self.store), ("load", self.load)):
            if move is None and self.card.kv == "full":
                raise ConfigError(f'{source}: {key}: is missing; card.kv = "full" needs it')
            moves.append(MoveCost(0.0, 0.0, False) if move is None else MoveCost(**dict(move)))
        step = {field.name: getattr(self.step, field.name) for field in fields(LinearCost)}
        return CardProfile(
            name=self.name,
            model=self.model,
            evidence=self.evidence,
            batching=Batching(**dict(self.batching)),
            step=LinearCost(**step),
            store=moves[0],
            load=moves[1],
            **dict(self.card),
        )


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

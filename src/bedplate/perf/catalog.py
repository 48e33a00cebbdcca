"""The catalogue: cards and models as data, found by name, with unknown values kept unknown.

The data files beside this module hold one table for each card and model, with its source. A value
that no source gives is None here, and asking for it (`Hardware.need`) is an error that says which
value of which card is missing: nothing is guessed. Shapes of models are complete; a model whose
shape is not known is not in the catalogue.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar

from bedplate.errors import InvalidRequest
from bedplate.perf.shape import Experts, Latent, ModelShape

GB = 1_000_000_000
UNKNOWN = "unknown"
UNSUPPORTED = "not supported"

VARIANT_ENDINGS = (
    "-instruct",
    "-chat",
    "-it",
    "-hf",
    "-base",
    "-thinking",
    "-fp8",
    "-fp8-dynamic",
    "-fp4",
    "-nvfp4",
    "-bf16",
    "-w8a8",
    "-w4a8",
    "-awq",
    "-gptq",
    "-int4",
    "-int8",
)
"""Endings of published names that say how weights were tuned or stored; the shape is the same."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One card, die or system of cards. None is unknown; 0 in `tflops` is not supported.

    Memory in bytes and bytes/s, `tflops` dense, by precision (fp64 fp32 fp16 bf16 fp8 int8 fp4
    int4; TOPS for integers). `link` is the class of the scale-up link, `link_bytes_per_s` its rate
    per card and direction, `link_cards` how many cards it joins; `network` is what joins those.
    `family`: what shares fitted constants, such as hopper or ascend-a2. `cards`: how many cards a
    system has; its values are sums over them.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    family: str
    level: str
    cards: int
    memory_bytes: float | None
    memory_bytes_per_s: float | None
    tflops: Mapping[str, float | None] = field(hash=False)
    link: str
    link_bytes_per_s: float | None
    link_cards: int | None
    link_topology: str
    network: str
    network_bytes_per_s: float | None
    host_bytes_per_s: float | None
    power_w: float | None
    confidence: str
    notes: str
    source: str

    def need(self, name: str) -> float:
        """Return a value of a field by name.

        Raises:
            InvalidRequest: it is unknown; the message says which value of which card.
        """
        value = getattr(self, name)
        if value is None:
            raise InvalidRequest(
                f"{name} of {self.name} is unknown; no source gives it, so nothing that rests on it"
                " can be estimated",
                code="unknown_value",
            )
        assert isinstance(value, float | int)
        return float(value)

    def rate(self, precision: str) -> float:
        """Return dense operations a second at a precision, 0 where the card does not have it.

        Raises:
            InvalidRequest: it is unknown whether or how fast.
        """
        value = self.tflops[precision]
        if value is None:
            raise InvalidRequest(
                f"{precision} arithmetic (tflops.{precision}) of {self.name} is unknown; no source"
                " gives it, so nothing that rests on it can be estimated",
                code="unknown_value",
            )
        return value * 1e12


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


_Entry = TypeVar("_Entry", bound=_Named)


def hardware() -> tuple[Hardware, ...]:
    """Return every card and system of the catalogue, in the file's order."""
    return _hardware()


def models() -> tuple[ModelShape, ...]:
    """Return every model of the catalogue, by name."""
    return _models()


def find_hardware(name: str) -> Hardware:
    """Return a card by its name or an alias; case, `_` and `-` for a space do not matter.

    Raises:
        InvalidRequest: there is none; the message names the nearest.
    """
    found = _hardware_by_name().get(_plain(name))
    if found is None:
        raise _missing("card", name, _hardware())
    return found


def find_card(name: str) -> Hardware:
    """Return one card or die by its name; a system of many is refused.

    Raises:
        InvalidRequest: there is none, or it is a system; the message names what to ask for.
    """
    found = find_hardware(name)
    if found.cards > 1:
        alike = [one.name for one in hardware() if one.cards == 1 and one.family == found.family]
        raise InvalidRequest(
            f"{found.name} is a system of {found.cards} cards; name one of its cards"
            f" ({', '.join(alike)}) and how they divide the model",
            code="unknown_card",
        )
    return found


def find_model(name: str) -> ModelShape:
    """Return a model by its name or an alias.

    Case and an owner before `/` do not matter, nor do endings that leave the shape as it is
    (`VARIANT_ENDINGS`): `nvidia/Llama-3.1-8B-Instruct-FP8` is Llama-3.1-8B.

    Raises:
        InvalidRequest: there is none; the message names the nearest.
    """
    known = _models_by_name()
    wanted = name.rpartition("/")[2] if name.count("/") == 1 else name
    for candidate in (name, wanted, *_shorter(wanted)):
        found = known.get(_plain(candidate))
        if found is not None:
            return found
    raise _missing("model", name, _models())


def _shorter(name: str) -> Iterable[str]:
    """Yield the name without its last ending, then without the one before, and so on."""
    text = name.lower()
    while True:
        ending = next((e for e in VARIANT_ENDINGS if text.endswith(e)), None)
        if ending is None:
            return
        text = text[: -len(ending)]
        yield text


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


_WITHOUT = {
    "card": "To simulate one that is missing, measure it: `bedplate calibrate` writes a profile",
    "model": "For one that is missing, name a model of the same shape",
}
"""What to do where the catalogue has no entry, by kind."""


def _missing(kind: str, name: str, entries: Iterable[_Named]) -> InvalidRequest:
    names = {_plain(word): entry.name for entry in entries for word in (entry.name, *entry.aliases)}
    wanted = _plain(name)
    several = list(dict.fromkeys(names[word] for word in names if word.startswith(wanted)))
    if wanted and len(several) > 1:
        return InvalidRequest(
            f"{name!r} names no {kind} alone; name one of {', '.join(several)}",
            code=f"unknown_{kind}",
        )
    close = difflib.get_close_matches(wanted, names, n=6, cutoff=0.4)
    near = list(dict.fromkeys(names[word] for word in close))[:3]
    hint = f"the nearest: {', '.join(near)}; " if near else ""
    return InvalidRequest(
        f"there is no {kind} {name!r} in the catalogue; {hint}`bedplate estimate --list` shows all."
        f" {_WITHOUT[kind]}",
        code=f"unknown_{kind}",
    )


def _index(entries: Iterable[_Entry]) -> dict[str, _Entry]:
    """Return entries by plain name and alias.

    Raises:
        ValueError: two entries share a name: the data file is wrong.
    """
    index: dict[str, _Entry] = {}
    for entry in entries:
        for word in dict.fromkeys(_plain(word) for word in (entry.name, *entry.aliases)):
            if word in index:
                raise ValueError(f"{word!r} names both {index[word].name} and {entry.name}")
            index[word] = entry
    return index


@cache
def _hardware_by_name() -> dict[str, Hardware]:
    return _index(_hardware())


@cache
def _models_by_name() -> dict[str, ModelShape]:
    return _index(_models())


@cache
def _hardware() -> tuple[Hardware, ...]:
    return tuple(_card(table) for table in _tables("hardware.toml", "hardware"))


@cache
def _models() -> tuple[ModelShape, ...]:
    return tuple(_model(table) for table in _tables("models.toml", "model"))


def _tables(name: str, key: str) -> list[dict[str, Any]]:
    text = files("bedplate.perf").joinpath("data", name).read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text)[key]
    return tables


def _card(table: dict[str, Any]) -> Hardware:
    values = {
        "memory_bytes": _known(table.pop("memory_gb"), GB),
        "memory_bytes_per_s": _known(table.pop("memory_gb_per_s"), GB),
        "link_bytes_per_s": _known(table.pop("link_gb_per_s"), GB),
        "network_bytes_per_s": _known(table.pop("network_gb_per_s"), GB),
        "host_bytes_per_s": _known(table.pop("host_gb_per_s"), GB),
        "link_cards": _known(table.pop("link_cards"), 1),
        "power_w": _known(table.pop("power_w"), 1),
    }
    rates = {
        precision: 0.0 if value == UNSUPPORTED else _known(value, 1)
        for precision, value in table.pop("tflops").items()
    }
    aliases = tuple(table.pop("aliases"))
    return Hardware(**{"notes": ""} | table, **values, tflops=rates, aliases=aliases)


def _model(table: dict[str, Any]) -> ModelShape:
    mla, moe = table.pop("mla", None), table.pop("moe", None)
    official = _known(table.pop("parameters_b_official"), 1)
    return ModelShape(
        **{**table, "aliases": tuple(table["aliases"])},
        mla=None if mla is None else Latent(**mla),
        moe=None if moe is None else Experts(**moe),
        parameters_b_official=official,
    )


def _known(value: float | str, unit: float) -> Any:
    """Return a value in its unit, None for an unknown one.

    Raises:
        ValueError: a word other than `unknown`: the data file is wrong.
    """
    if isinstance(value, str):
        if value != UNKNOWN:
            raise ValueError(f"{value!r} is neither a number nor {UNKNOWN!r}")
        return None
    return value * unit

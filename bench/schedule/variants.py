"""Subjects by name, with other settings where a colon says so: for benches and ablations."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.run import BenchError
from bench.schedule.probe import ADVANCED, OLDEST, Probe
from bench.schedule.rules import RULES
from bench.schedule.subjects import Bedplate, Pinned, Room, Routed, Subject

BEDPLATE_SLOTS = 2
PEER_SLOTS = 4
PEER_BATCH = 64
ROUTERS = ("sglang-router", "vllm-router")
_ROOM = ("slots", "batch_tokens", "kv_tokens")


def bedplate(name: str, room: Room, **engine: int) -> Bedplate:
    """Return ourselves as we come: the embedded card's own limits; `engine` keys go over them."""
    return Bedplate(name, room, engine)


def subject(text: str, kv_tokens: int) -> Subject:
    """Return the subject that `NAME` or `NAME:KEY=NUMBER,...` names, with so much KV a card.

    `slots`, `batch_tokens` and `kv_tokens` are known to all; what else a bedplate is given goes
    into the configuration of its engine. `bedplate/RULES` runs with other rules of the core.

    Raises:
        BenchError: there is no such subject, rules or setting.
    """
    name, _, given = text.partition(":")
    settings = dict(_setting(part) for part in given.split(",") if part)
    name, _, rules = name.partition("/")
    room = Room(
        settings.pop("slots", BEDPLATE_SLOTS if name == "bedplate" else PEER_SLOTS),
        settings.pop("kv_tokens", kv_tokens),
        settings.pop("batch_tokens", PEER_BATCH),
    )
    if name == "bedplate":
        ours = bedplate(text, room, **settings)
        if not rules:
            return ours
        if rules not in RULES:
            raise BenchError(f"there are no rules {rules!r}; there are: {', '.join(RULES)}")
        return replace(ours, module="bench.schedule.serve", options=(rules,))
    if settings:
        raise BenchError(f"{name} has no setting {', '.join(settings)}; only {', '.join(_ROOM)}")
    if name == "pinned":
        return Pinned(room)
    if name in ROUTERS:
        return Routed(room, name)
    if name in ("probe", "probe-advanced"):
        return Probe(room, OLDEST if name == "probe" else ADVANCED)
    raise BenchError(f"there is no subject {name!r}")


def _setting(part: str) -> tuple[str, int]:
    key, _, value = part.partition("=")
    if not key or not value.isdigit():
        raise BenchError(f"a setting reads KEY=NUMBER, not {part!r}")
    return key, int(value)

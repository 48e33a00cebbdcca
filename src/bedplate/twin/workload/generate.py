"""Generate a workload: sessions of personas, begun at the pace of working days and month starts.

Arrivals are a Poisson process whose rate changes by the hour: the busiest hour's rate times the
persona's share, times the weight of the hour in its curve, times the factor of the day. The same
mix and seed give the same workload anywhere; one persona's sessions do not depend on the others.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError
from bedplate.twin.workload.form import Session, Spawn, Turn, Workload
from bedplate.twin.workload.personas import Cast, Persona, cast
from bedplate.twin.workload.source import Family, Format, Options, assemble, bad

SESSIONS_MAX = 10_000_000
"""Sessions of one mix; more is a mistake in its rates."""
TURNS_MAX = 20_000_000
"""Turns of one mix, some 4 GiB of memory."""
CALLS_MAX = 100_000
"""Calls of one session; more is a mistake in its persona."""
_SHARE_MAX = 1e9
_HOUR_S = 3600.0
_WORKING_DAY = datetime(2026, 9, 16, 9, tzinfo=UTC)
"""A Wednesday in the middle of a month, at nine."""


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions begin when.

    `shares` are weights of personas; `sessions_per_hour` is the rate of all together in the busiest
    hour of a usual working day. The first `month_start_days` working days of a month have
    `month_start_factor` times the rate (field figure: 5 to 10 times), days off `weekend_factor`
    times (assumed). `start` is local time, and its calendar decides about hours and days; with
    `flat` neither counts, and the rate is the same all the time.
    """

    shares: dict[str, Annotated[float, msgspec.Meta(ge=0, le=_SHARE_MAX)]]
    sessions_per_hour: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    hours: Annotated[float, msgspec.Meta(gt=0, le=1e5)] = 1.0
    start: datetime = _WORKING_DAY
    month_start_factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 6.0
    month_start_days: Annotated[int, msgspec.Meta(ge=0, le=31)] = 2
    weekend_factor: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.1
    flat: bool = False


def generate(mix: Mix, *, seed: int, people: Cast | None = None, name: str = "mix") -> Workload:
    """Return the workload of a mix.

    Raises:
        ConfigError: a persona is unknown, no share is above 0, the mix comes to more than ten
            million sessions or twenty million turns, a session has more than 100,000 calls, or the
            calendar ends before the mix does.

    Cost: O(turns).
    """
    people = cast() if people is None else people
    for persona in mix.shares:
        if persona not in people.personas:
            raise ConfigError(
                f"no persona {persona!r}; there are {', '.join(sorted(people.personas))}"
            )
    total = math.fsum(mix.shares.values())  # sum() adds floats differently from Python 3.12 on
    if not total > 0:
        raise ConfigError("no persona has a share above 0")
    busiest = 1.0 if mix.flat else mix.month_start_factor
    if mix.sessions_per_hour * mix.hours * busiest > SESSIONS_MAX:
        raise ConfigError(f"the mix comes to more than {SESSIONS_MAX:,} sessions; lower its rate")
    turns = 0
    families: list[Family] = []
    for persona, share in sorted(mix.shares.items()):
        starts = _starts(
            mix,
            mix.sessions_per_hour * share / total,
            people.curves[people.personas[persona].curve],
            Random(f"{seed}/{persona}/starts"),
        )
        for number, start_s in enumerate(starts, 1):
            random = Random(f"{seed}/{persona}/{number}")
            found = family(people, persona, number, round(start_s * SECOND_NS), random)
            turns += sum(len(session.turns) for session in found)
            if turns > TURNS_MAX:
                raise ConfigError(f"the mix comes to more than {TURNS_MAX:,} turns; lower its rate")
            families.append(found)
    source = (
        f"personas, seed {seed}: {mix.sessions_per_hour:g} sessions in the busiest hour, "
        f"{mix.hours:g} h from {mix.start:%Y-%m-%d %H:%M}{_days(mix)}"
    )
    return assemble(name, source, families)


def family(people: Cast, persona: str, number: int, start_ns: int, random: Random) -> Family:
    """Return one session of a persona and those that follow it."""
    sessions: Family = []
    spawn: Spawn | None = None
    while persona:
        which = people.personas[persona]
        turns = tuple(_turns(which, random))
        key = f"{persona}-{number}"
        lane = LANE_NAMES.index(which.lane)
        begin_ns = start_ns if spawn is None else round(which.tool_s.draw(random) * SECOND_NS)
        sessions.append(Session(key, which.tenant, lane, persona, begin_ns, spawn, turns))
        spawn = Spawn(len(sessions) - 1, len(turns) - 1, joins=False)
        persona = which.next
    return sessions


def _turns(persona: Persona, random: Random) -> Iterator[Turn]:
    """Draw the turns of one session; it ends early where its context would grow too long."""
    context = 0
    calls = max(1, round(persona.calls.draw(random)))
    if calls > CALLS_MAX:
        raise ConfigError(
            f"a session of {persona.tenant} has {calls:,} calls, more than {CALLS_MAX:,}; give the "
            "persona's calls a lower max"
        )
    for number in range(calls):
        size = persona.added if number else persona.first
        new, out = max(1, round(size.draw(random))), max(1, round(persona.answer.draw(random)))
        gap_s, tool = 0.0, ""
        if number:
            if random.random() < persona.tool_share:
                tool = persona.tools[random.randrange(len(persona.tools))]
                gap_s = persona.tool_s.draw(random)
            else:
                gap_s = persona.person_s.draw(random)
        if persona.context and context + new + out > persona.context:
            if number:
                return
            out = max(1, min(out, persona.context // 2))
            new = max(1, persona.context - out)
        context += new + out
        yield Turn(round(gap_s * SECOND_NS), tool, -1, new, out)


def _starts(mix: Mix, per_hour: float, curve: Sequence[float], random: Random) -> list[float]:
    """Return seconds of sessions' starts: a Poisson process, hour by hour."""
    starts: list[float] = []
    top, end_s, at_s = max(curve), mix.hours * _HOUR_S, 0.0
    begin = mix.start.replace(tzinfo=UTC)
    try:
        begin + timedelta(hours=mix.hours + 1)
    except OverflowError as error:
        raise ConfigError(f"{mix.hours:g} h from {mix.start:%Y-%m-%d} end after 9999") from error
    while at_s < end_s:
        now = begin + timedelta(seconds=at_s)
        left_s = _HOUR_S - (now.minute * 60 + now.second + now.microsecond / 1e6)
        until_s = min(end_s, at_s + left_s)
        factor = 1.0 if mix.flat else curve[now.hour] / top * _day_factor(mix, now)
        rate_per_s = per_hour / _HOUR_S * factor
        # What is left of a gap at the end of an hour needs no memory: the process has none.
        while rate_per_s > 0:
            at_s += random.expovariate(rate_per_s)
            if at_s >= until_s:
                break
            starts.append(at_s)
        at_s = until_s
    return starts


def _day_factor(mix: Mix, now: datetime) -> float:
    """Return how busy a day is: weekends are quiet, the first working days of a month are not."""
    if now.weekday() >= 5:
        return mix.weekend_factor
    before = [now.replace(day=day).weekday() for day in range(1, now.day)]
    nth = sum(weekday < 5 for weekday in before)
    return mix.month_start_factor if nth < mix.month_start_days else 1.0


def _days(mix: Mix) -> str:
    """Say in which part of a mix the rate is not that of a usual day."""
    if mix.flat:
        return " at a flat rate"
    begin = mix.start.replace(tzinfo=UTC)
    hours = range(0, int(mix.hours) + 1, 24)
    days = [begin + timedelta(hours=hour) for hour in (*hours, mix.hours)]
    factors = {_day_factor(mix, day) for day in days}
    kinds = (
        (mix.month_start_factor, f"on the first {mix.month_start_days} working days of a month"),
        (mix.weekend_factor, "on days off"),
    )
    found = [f"{factor:g} times that {when}" for factor, when in kinds if factor in factors - {1.0}]
    return f", {' and '.join(found)}" if found else ""


def mix_of(text: str, where: Path) -> tuple[Mix, Cast]:
    """Return what a mix file says: [mix], and [personas] and [curves] where it changes them.

    Raises:
        ConfigError: it is no TOML, or a field is unknown, missing or out of range.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError
        raise ConfigError(f"{where}: is not TOML: {error}") from error
    for key in tables:
        if key not in ("mix", "personas", "curves"):
            raise ConfigError(f"{where}: unknown table [{key}]; it may have mix, personas, curves")
    try:
        mix = msgspec.convert(tables.get("mix", {}), Mix)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: [mix] {error}") from error
    return mix, cast(tables, where=where)


def matches(head: str) -> bool:
    """Tell a mix file by its [mix] table."""
    return any(line.strip() in ("[mix]", "[mix.shares]") for line in head.splitlines())


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one mix file and generate its workload."""
    (path, *others) = paths
    if others:
        raise bad(others[0], 0, "is a second mix file; name one")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad(path, 0, f"cannot be read: {error}") from error
    mix, people = mix_of(text, path)
    return generate(mix, seed=options.seed, people=people, name=path.stem)


FORMAT = Format("personas", "TOML with a table [mix] of personas", matches, read, starts=True)

"""Show what a trace, a journal or a mix of personas asks, or write it to a workload file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bedplate.cli.options import JsonOption
from bedplate.cli.output import (
    counted,
    digits,
    print_json,
    print_table,
    print_text,
    print_wrapped,
    progress,
    written,
)
from bedplate.core.limits import LANE_NAMES
from bedplate.errors import ConfigError, InvalidRequest
from bedplate.twin.workload import native
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.generate import Mix, generate
from bedplate.twin.workload.personas import cast
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.statistics import Group, Spread, Statistics, statistics
from bedplate.twin.workload.transform import (
    Place,
    assign,
    clamp_gaps,
    clamp_tokens,
    repeat,
    restart,
    scale_rate,
    scale_tokens,
)

app = typer.Typer(no_args_is_help=True)

FormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of the source; default: by content.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
LimitOption = Annotated[
    int | None, typer.Option(help="Only the first root sessions, with what they spawn.")
]
StartsOption = Annotated[
    float | None,
    typer.Option("--starts-per-s", help="Draw the starts: so many root sessions a second."),
]
RateOption = Annotated[
    float, typer.Option("--rate-scale", help="Begin sessions so many times as fast.")
]


@app.command()
def show(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="File or folder to read.")],
    *,
    format: FormatOption = None,  # noqa: A002
    seed: SeedOption = 1,
    limit: LimitOption = None,
    starts_per_s: StartsOption = None,
    rate_scale: RateOption = 1.0,
    json: JsonOption = False,
) -> None:
    """Print the statistics of a workload."""
    with progress("Reading the workload"):
        workload = read_workload(
            source,
            format=format,
            seed=seed,
            limit=limit,
            starts_per_s=starts_per_s,
            rate_scale=rate_scale,
        )
        found = statistics(workload)
    if json:
        print_json(_json(found))
    else:
        _print(found)


@app.command()
def make(
    source: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File or folder to read.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="File to write.")],
    persona: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME=SHARE, in place of a source; repeat."),
    ] = None,
    sessions_per_hour: Annotated[
        float, typer.Option(help="With --persona: rate of the busiest hour.")
    ] = 60.0,
    hours: Annotated[float, typer.Option(help="With --persona: how long.")] = 1.0,
    start: Annotated[
        str | None,
        typer.Option(help="With --persona: local time (ISO 8601); default: a flat rate."),
    ] = None,
    format: FormatOption = None,  # noqa: A002
    seed: SeedOption = 1,
    limit: LimitOption = None,
    count: Annotated[
        int | None, typer.Option("--repeat", help="Draw so many root sessions from those there.")
    ] = None,
    starts_per_s: StartsOption = None,
    rate_scale: RateOption = 1.0,
    token_scale: Annotated[float, typer.Option(help="Multiply all sizes.")] = 1.0,
    context: Annotated[
        int | None, typer.Option(help="Shorten turns to a context of so many tokens.")
    ] = None,
    gap_max: Annotated[float | None, typer.Option(help="Longest gap, in seconds.")] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="TENANT, TENANT/LANE or /LANE for sessions in turn; repeat."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a workload file: of personas, or of a source, changed as the options say."""
    if (source is None) == (not persona):
        raise InvalidRequest("name a source to read, or personas with --persona; one of both")
    places = [_place(text) for text in tenant or []]
    with progress("Making the workload"):
        if source is not None:
            workload = read_workload(source, format=format, seed=seed, limit=limit)
        else:
            workload = generate(_mix(persona or [], sessions_per_hour, hours, start), seed=seed)
        changes = _Changes(
            seed=seed,
            count=count,
            starts_per_s=starts_per_s,
            rate_scale=rate_scale,
            token_scale=token_scale,
            context_tokens=context,
            gap_max_s=gap_max,
            places=places,
        )
        workload = changes.of(workload)
        replaced = out.exists()
        native.write(workload, out)
    _print_made(workload, out, replaced=replaced, as_json=json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What options change in a workload, in this order."""

    seed: int
    count: int | None
    starts_per_s: float | None
    rate_scale: float
    token_scale: float
    context_tokens: int | None
    gap_max_s: float | None
    places: list[Place]

    def of(self, workload: Workload) -> Workload:
        if self.count is not None:
            workload = repeat(workload, self.count, seed=self.seed)
        if self.starts_per_s is not None:
            workload = restart(workload, self.starts_per_s, seed=self.seed)
        if self.rate_scale != 1.0:
            workload = scale_rate(workload, self.rate_scale)
        if self.token_scale != 1.0:
            workload = scale_tokens(workload, self.token_scale)
        if self.context_tokens is not None:
            workload = clamp_tokens(workload, self.context_tokens)
        if self.gap_max_s is not None:
            workload = clamp_gaps(workload, self.gap_max_s)
        return assign(workload, self.places) if self.places else workload


def _print_made(workload: Workload, out: Path, *, replaced: bool, as_json: bool) -> None:
    turns = sum(len(session.turns) for session in workload.sessions)
    if as_json:
        print_json(
            {
                "file": str(out),
                "name": workload.name,
                "source": workload.source,
                "sessions": len(workload.sessions),
                "turns": turns,
            }
        )
    else:
        sessions = counted(len(workload.sessions), "session")
        print_text(written(f"{sessions} with {counted(turns, 'turn')}", out, replaced=replaced))


def _mix(names: list[str], sessions_per_hour: float, hours: float, start: str | None) -> Mix:
    shares: dict[str, float] = {}
    for text in names:
        name, equals, share = text.partition("=")
        try:
            shares[name] = float(share) if equals else 1.0
        except ValueError as error:
            raise InvalidRequest(f"--persona {text}: {share!r} is no number") from error
    fields: dict[str, object] = {
        "shares": shares,
        "sessions_per_hour": sessions_per_hour,
        "hours": hours,
        "flat": start is None,
    }
    if start is not None:
        try:
            fields["start"] = datetime.fromisoformat(start)
        except ValueError as error:
            raise InvalidRequest(f"{start!r} is no time; write 2026-12-01T08:00") from error
    try:
        return msgspec.convert(fields, Mix)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}; personas are {', '.join(cast().heads())}") from error


def _place(text: str) -> Place:
    tenant, slash, lane = text.partition("/")
    if slash and lane not in LANE_NAMES:
        raise InvalidRequest(f"--tenant {text}: {lane!r} is none of {', '.join(LANE_NAMES)}")
    return Place(tenant, LANE_NAMES.index(lane) if slash else -1)


def _json(found: Statistics) -> dict[str, object]:
    document: dict[str, object] = {}
    for name, value in found._asdict().items():
        if isinstance(value, Spread):
            document[name] = value._asdict()
        elif isinstance(value, tuple):
            document[name] = [group._asdict() for group in value if isinstance(group, Group)]
        else:
            document[name] = value
    return document


def _print(found: Statistics) -> None:
    print_wrapped(f"{found.name}: {found.source}", hang=2)
    children = found.sessions - found.roots
    spawned = f", {children:,} of them spawned" if children else ""
    print_text(f"sessions         {found.sessions:,}{spawned}")
    print_text(f"turns            {found.turns:,}")
    print_text(f"starts           {found.starts_per_s:.3f} a second over {found.span_s:,.0f} s")
    print_text(f"CV of starts     {found.starts_cv:.2f}")
    print_text(f"at once          {found.sessions_at_once} sessions or more")
    print_text(f"reusable         {found.reusable_share:.1%} of prompt tokens")
    rows = [
        ["turns a session", found.turns_per_session],
        ["prompt tokens", found.prompt_tokens],
        ["new tokens", found.new_tokens],
        ["output tokens", found.out_tokens],
        ["final context", found.context_tokens],
        ["tool gap, s", found.tool_gap_s],
        ["other gap, s", found.other_gap_s],
        ["floor, s", found.least_s],
    ]
    columns = ["", "n", "mean", "p50", "p90", "p99", "max"]
    print_table(
        columns,
        [
            [label, f"{spread.n:,}", *map(digits, spread[1:])]
            for label, spread in rows
            if isinstance(spread, Spread)
        ],
        numbers=columns[1:],
    )
    print_wrapped(
        "floor: how long a session that nothing spawned lasts, with all that it spawns, if answers "
        "take no time",
        hang=2,
    )
    for title, groups in (("kind", found.kinds), ("tenant", found.tenants), ("lane", found.lanes)):
        print_table(
            [title, "sessions", "turns"],
            [[group.name, f"{group.sessions:,}", f"{group.turns:,}"] for group in groups],
            numbers=["sessions", "turns"],
        )

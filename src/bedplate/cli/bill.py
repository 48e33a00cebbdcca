"""Sum what was used and what it costs, and check it against the engines' own counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from bedplate.cli.audit import DataOption, journal_folder
from bedplate.cli.options import ConfigOption, JsonOption
from bedplate.cli.output import (
    amount,
    counted,
    print_json,
    print_notice,
    print_table,
    print_text,
    progress,
)
from bedplate.config import load
from bedplate.errors import InvalidRequest
from bedplate.journal import Reader, Record
from bedplate.metering.balance import CardBalance
from bedplate.metering.bill import BILL_KINDS, Bill, Line, Period, make_bill
from bedplate.metering.check import CHECK_KINDS, Report, reconcile
from bedplate.metering.names import NAMES_KIND, Named, session_names

app = typer.Typer()

UNEXPLAINED = 1
"""Exit status when rows, events and counters do not agree."""
NAMES_SHOWN = 5
_SECOND_NS = 1_000_000_000


class Group(StrEnum):
    """What lines can be grouped by, as the command line spells it."""

    TENANT = "tenant"
    LANE = "lane"
    MODEL = "model"
    SESSION = "session"
    DAY = "day"
    MONTH = "month"


@app.command()
def bill(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    by: Annotated[
        list[Group] | None, typer.Option(help="One line for each; repeat. Default: tenant.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="First day or instant (ISO 8601).")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="First day or instant no longer counted.")
    ] = None,
    zone: Annotated[str, typer.Option(help="Time zone of days, such as Asia/Shanghai.")] = "UTC",
    check: Annotated[
        bool, typer.Option("--check", help="Compare rows with events and engines' counters.")
    ] = False,
    data_dir: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Print use and cost, from the journal's usage rows."""
    folder = journal_folder(config, data_dir)
    configured = load(config, secrets=False).prices.prices() if data_dir is None else None
    period = _period(start, end, zone)
    with Reader(folder) as reader, progress("Reading the journal", reader.size) as advance:
        found = make_bill(
            _advancing(reader, BILL_KINDS, advance),
            by=[group.value for group in by or [Group.TENANT]],
            tenant=tenant,
            period=period,
            configured=configured,
        )
        report = reconcile(_advancing(reader, CHECK_KINDS, advance)) if check else None
        named = "session" in found.by
        names = session_names(_advancing(reader, (NAMES_KIND,), advance)) if named else {}
    if json:
        print_json(
            {**_bill_json(found, names), "check": None if report is None else _check_json(report)}
        )
    else:
        _print_bill(found, names, tenant)
        if report is not None:
            _print_check(report)
    if report is not None and report.unexplained_tokens:
        raise typer.Exit(UNEXPLAINED)


def _advancing(
    reader: Reader, kinds: tuple[str, ...], advance: Callable[[int], None]
) -> Iterator[Record]:
    for record in reader.read(kinds=kinds):
        if record.seq % 1024 == 0:
            advance(record.seq)
        yield record


def _period(start: str | None, end: str | None, zone: str) -> Period:
    try:
        info = UTC if zone == "UTC" else ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidRequest(
            f"{zone!r} is no time zone; write for example Asia/Shanghai"
        ) from error

    def instant(text: str) -> int:
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidRequest(
                f"{text!r} is no time; write 2026-11-30 or 2026-11-30T08:00"
            ) from error
        when = when if when.tzinfo else when.replace(tzinfo=info)
        return round(when.timestamp() * 1_000) * 1_000_000

    whole = Period()
    return Period(
        whole.start_ns if start is None else instant(start),
        whole.end_ns if end is None else instant(end),
        info,
    )


def _print_bill(found: Bill, names: Mapping[str, Named], tenant: str | None) -> None:
    if not found.lines:
        whose = "" if tenant is None else f" of tenant {tenant!r}"
        print_notice(f"No usage{whose} in this period.")
        return
    at = found.by.index("session") if names else -1
    columns = [
        *found.by,
        *(["name"] if names else []),
        "turns",
        "calls",
        "uncached",
        "cached",
        "out",
        "card s",
        "KV token-s",
        "amount",
        "currency",
    ]
    rows = [
        [*line.key, *([_name(names, line.key[at])] if names else []), *_cells(line)]
        for line in found.lines
    ]
    for total in found.totals:
        label = ["total", *[""] * (len(found.by) - 1 + bool(names))] if found.by else []
        rows.append([*label, *_cells(total)])
    print_table(columns, rows)


def _name(names: Mapping[str, Named], session: str) -> str:
    named = names.get(session)
    return "" if named is None else named.name


def _cells(line: Line) -> list[object]:
    return [
        line.turns,
        line.calls,
        line.uncached_tokens,
        line.cached_tokens,
        line.out_tokens,
        round(line.slot_ns / _SECOND_NS, 1),
        round((line.kv_card_token_ns + line.kv_pool_token_ns) / _SECOND_NS),
        amount(line.cost.total),
        line.currency,
    ]


def _print_check(report: Report) -> None:
    metered = counted(report.metered_tokens, "token")
    print_text(f"checked {counted(report.turns, 'turn')}: {metered} metered")
    for issue in report.issues:
        print_text(f"  {issue.kind} row of turn {issue.turn or '-'}: {issue.detail}")
    for card in report.cards:
        difference = _difference(card, report.in_flight)
        if difference:
            plain = (card.life, card.state) == (1, "up")
            life = "" if plain else f" (life {card.life}, {card.state})"
            print_text(f"  {card.card}{life} {difference}")
    if report.in_flight:
        still = "still runs" if len(report.in_flight) == 1 else "still run"
        print_text(f"{counted(len(report.in_flight), 'turn')} {still}")
    print_text(f"unexplained tokens: {report.unexplained_tokens}")


def _difference(card: CardBalance, in_flight: frozenset[str]) -> str:
    """Return what is to be said about a card, empty when all of it agrees."""
    if card.state == "silent":
        return f"reports no counters; {card.metered} were metered on it"
    if not any(card.difference):
        return ""
    parts = list(zip(("prompt", "cached", "output"), card.difference, strict=True))
    more = [counted(number, f"{name} token") for name, number in parts if number > 0]
    less = [counted(-number, f"{name} token") for name, number in parts if number < 0]
    told = [f"{', '.join(some)} {word}" for some, word in ((more, "more"), (less, "less")) if some]
    text = f"counted {' and '.join(told)} than are billed"
    running = [turn for turn in card.explained_by if turn in in_flight]
    others = [turn for turn in card.explained_by if turn not in in_flight]
    if running:
        verb = "turn {} still runs" if len(running) == 1 else "turns {} still run"
        text += ": " + verb.format(_names(running))
    if others:
        text += f"; may be of {_names(others)}"
    if card.unexplained_tokens:
        text += f"; unexplained: {card.unexplained_tokens}"
    return text


def _names(turns: Sequence[str]) -> str:
    return ", ".join(turns[:NAMES_SHOWN]) + (" and others" if len(turns) > NAMES_SHOWN else "")


def _bill_json(found: Bill, names: Mapping[str, Named]) -> dict[str, object]:
    return {
        "by": list(found.by),
        "lines": [_line_json(line, found.by, names) for line in found.lines],
        "totals": [_line_json(line, (), names) for line in found.totals],
    }


def _line_json(line: Line, by: tuple[str, ...], names: Mapping[str, Named]) -> dict[str, object]:
    key = dict(zip(by, line.key, strict=True))
    if "session" in key:
        key["session_name"] = _name(names, key["session"])
    return {
        **key,
        **{name: getattr(line, name) for name in line._fields[1:-1]},
        "cost_micro": {**line.cost._asdict(), "total": line.cost.total},
    }


def _check_json(report: Report) -> dict[str, object]:
    return {
        "rows": report.rows,
        "turns": report.turns,
        "metered_tokens": report.metered_tokens,
        "in_flight_turns": report.in_flight_turns,
        "unexplained_tokens": report.unexplained_tokens,
        "issues": [issue._asdict() for issue in report.issues],
        "cards": [
            {
                **card._asdict(),
                "counted": card.counted._asdict(),
                "metered": card.metered._asdict(),
                "difference": card.difference._asdict(),
            }
            for card in report.cards
        ],
    }

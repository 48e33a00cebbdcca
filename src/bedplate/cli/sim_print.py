"""How `bedplate sim` shows a report and a comparison to people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from bedplate.cli.output import counted, digits, print_table, print_text, print_wrapped
from bedplate.config.sizes import format_size
from bedplate.twin.against import HIT_SHARE, Comparison
from bedplate.twin.curves import Panel
from bedplate.twin.plots import draw_text
from bedplate.twin.report import CardUse, LaneReport, Report, Speed
from bedplate.twin.seeds import GOOD, binds, measures
from bedplate.twin.spread import Spread

CARDS_SHOWN_MAX = 16
"""More cards than this are shown as the least, middle and most busy one."""
LABEL = 14
"""Columns of the words that a line begins with."""
MILLI = 1_000


def print_report(report: Report, curves: Sequence[Panel], *, changes: Sequence[str]) -> None:
    """Print everything that a run says; `changes` are keys in place of the scenario's."""
    cards = counted(len(report.cards), "card")
    print_wrapped(f"{report.name}: {report.workload} on {cards}, seed {report.seed}", hang=2)
    _print_changes(changes)
    print_text(f"{report.duration_s:,.1f} s of virtual time")
    print_text(f"digest        {report.digest}")
    _print_said("load", report.workload_source)
    for each in report.evidence:
        _print_said("times", each.words())
    for note in report.notes:
        _print_said("note", note)
    _print_goodput(report)
    _print_times([*report.lanes, *([report.overall] if len(report.lanes) != 1 else [])])
    for cost in report.faults:
        _print_said("fault", cost.words())
    _print_memory(report)
    _print_cards(report.cards)
    _print_bottleneck(report)
    print_speed(report.speed)
    if curves:
        print_text("")
        print_text(draw_text(curves, columns=min(100, shutil.get_terminal_size().columns)))


def print_seeds(reports: Sequence[Report], *, changes: Sequence[str]) -> None:
    """Print each measure's median and spread over runs that differ by their seed."""
    first, last = reports[0], reports[-1]
    cards = counted(len(first.cards), "card")
    seeds = f"{counted(len(reports), 'seed')}, {first.seed} to {last.seed}"
    print_wrapped(f"{first.name}: {first.workload} on {cards}, {seeds}", hang=2)
    _print_changes(changes)
    print_text("")
    rows = []
    for each in measures(reports):
        shown = _share if each.measure == GOOD else digits
        unit = "" if each.measure in (GOOD, "sessions/s") else ", s"
        values = (shown(value) for value in (each.median, each.least, each.most))
        spread = "" if each.spread is None else f"{each.spread:.0%}"
        rows.append([each.lane, each.measure + unit, str(each.n), *values, spread])
    columns = ["lane", "measure", "runs", "median", "least", "most", "spread"]
    print_table(columns, rows, numbers=columns[2:])
    found = ", ".join(
        f"{name} in {count} of {len(reports)}" for name, count in binds(reports).items()
    )
    _print_said("binds first", found)
    print_wrapped("spread: (most − least) ÷ median. --json has every run.", hang=2)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _print_changes(changes: Sequence[str]) -> None:
    for change in changes:
        print_wrapped(f"with {change}", hang=2)


def print_speed(speed: Speed) -> None:
    """Print how fast the simulator was."""
    print_text(
        f"simulated {speed.requests:,} requests in {speed.wall_s:.2f} s: "
        f"{speed.requests_per_s:,.0f} requests/s, {speed.times_real:,.0f} × real time"
    )
    print_text(
        f"core events {speed.events:,}: {speed.events_per_request:.2f} a request, "
        f"{speed.events_per_s:,.0f} a second"
    )


def _print_goodput(report: Report) -> None:
    rows = [
        [
            lane.lane,
            f"{lane.sessions:,}",
            f"{lane.sessions_done:,}",
            f"{lane.turns_offered:,}",
            f"{lane.turns_done:,}",
            f"{lane.goodput.share:.1%}",
            digits(lane.goodput.per_s) if lane.goodput.unit == "turns" else "",
            digits(lane.goodput.sessions_per_s),
        ]
        for lane in (*report.lanes, report.overall)
    ]
    columns = ["lane", "sessions", "done", "turns", "done", "good", "turns/s", "sessions/s"]
    factor = "" if report.slo_factor == 1.0 else f", their times × {report.slo_factor:g}"
    print_text("")
    print_table(
        columns, rows, title=f"goodput: within the lane's SLO class{factor}", numbers=columns[1:]
    )
    listed = ", ".join(f"{count:,} {name}" for name, count in report.statuses.items())
    never = report.overall.turns_offered - report.overall.turns
    left_out = f"; {never:,} never asked, their session was given up" if never else ""
    print_wrapped(f"turns ended with: {listed or 'nothing'}{left_out}", hang=2)
    if report.too_long:
        print_wrapped(
            f"{report.too_long:,} turns were refused for a longer prompt than any card takes "
            f"({report.context_tokens:,} tokens)",
            hang=2,
        )


def _print_times(lanes: Sequence[LaneReport]) -> None:
    rows = [row for lane in lanes for row in _time_rows(lane)]
    columns = ["lane", "n", "mean", "p50", "p90", "p95", "p99", "most"]
    print_table(columns, rows, numbers=columns[1:])


def _time_rows(lane: LaneReport) -> Iterator[list[str]]:
    """Yield the lane's name, then its times: a column less, so that all fit into 80."""
    yield [lane.lane, *[""] * len(Spread._fields)]
    names = {
        "ttft": ("TTFT, s", 1),
        "tpot": ("TPOT, ms", MILLI),
        "queue": ("queue, s", 1),
        "turn": ("turn, s", 1),
        "session": ("session, s", 1),
    }
    for name, (shown, factor) in names.items():
        found: Spread | None = getattr(lane.times, name)
        if found is not None:
            values = (digits(value * factor) for value in found[1:])
            if name == "session" and lane.sessions_done < lane.sessions:
                shown += f", of {lane.sessions_done_share:.0%}"
            yield [f"  {shown}", f"{found.n:,}", *values]


def _print_memory(report: Report) -> None:
    tokens, moves = report.overall.tokens, report.moves
    _print_said(
        "KV on cards",
        f"{report.kv_used.mean:.0%} full, {report.kv_used.peak:.0%} at most, of "
        f"{report.kv_used.total:,} tokens; running turns {report.kv_running.mean:.0%}, "
        f"{report.kv_running.peak:.0%} at most",
    )
    if report.pool.total:
        _print_said(
            "pool",
            f"{report.pool.mean:.0%} full, {report.pool.peak:.0%} at most, of "
            f"{format_size(report.pool.total)}",
        )
    _print_said(
        "hits", f"{tokens.hit_share:.1%} of {tokens.prompt:,} prompt tokens were not computed"
    )
    _print_said(
        "moves",
        f"{moves.stores:,} stores, {moves.loads:,} loads, {format_size(moves.moved_bytes)}",
    )


def _print_said(label: str, text: str) -> None:
    print_wrapped(f"{label:<{LABEL}}{text}", hang=LABEL)


def _print_cards(cards: Sequence[CardUse]) -> None:
    ordered, title = list(cards), ""
    if len(ordered) > CARDS_SHOWN_MAX:
        ordered.sort(key=lambda card: card.busy)
        ordered = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
        title = f"least, middle and most busy of {len(cards):,} cards"
    rows = [
        [
            card.card,
            f"{card.busy:.1%}",
            f"{card.stalled:.1%}",
            f"{card.prompt_tokens:,}",
            f"{card.out_tokens:,}",
            f"{card.stores:,}",
            f"{card.loads:,}",
        ]
        for card in ordered
    ]
    columns = ["card", "busy", "stalled", "prefilled", "decoded", "stores", "loads"]
    print_table(columns, rows, title=title, numbers=columns[1:])


def _print_bottleneck(report: Report) -> None:
    found = report.bottleneck
    _print_said("binds first", f"{found.binds}: {found.why}")
    for pressure in found.pressures:
        _print_said(f"  {pressure.resource}", pressure.evidence)
    parts = found.parts
    print_wrapped(
        f"  sessions' time: tools {parts.tools:.0%}, queues {parts.queue:.0%}, "
        f"retries {parts.retries:.0%}, "
        f"prefill {parts.prefill:.0%}, decoding {parts.decode:.0%}",
        hang=LABEL,
    )


def print_comparison(found: Comparison) -> None:
    """Print live against twin."""
    sessions, turns = counted(found.sessions, "session"), counted(found.turns, "turn")
    print_wrapped(f"{sessions}, {turns} of {found.journal}", hang=2)
    where = f"{found.evidence}; {found.profile_file}"
    print_wrapped(f"twin: profile {found.profile} ({where})", hang=2)
    print_text(f"digest        {found.digest}")
    rows = [
        [
            line.lane,
            line.measure if line.measure == HIT_SHARE else f"{line.measure}, s",
            f"{line.n_live:,}",
            f"{line.n_twin:,}",
            digits(line.live),
            digits(line.twin),
            "" if line.error is None else f"{line.error:+.1%}",
        ]
        for line in found.lines
    ]
    columns = ["lane", "measure", "n live", "n twin", "live", "twin", "error"]
    print_table(columns, rows, numbers=columns[2:])
    for note in found.notes:
        print_wrapped(f"note: {note}", hang=6)

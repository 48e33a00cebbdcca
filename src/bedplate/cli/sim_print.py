"""How `bedplate sim` shows a report and a comparison to people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from bedplate.cli.output import print_table, print_text
from bedplate.config.sizes import format_size
from bedplate.twin.against import Comparison
from bedplate.twin.curves import Panel
from bedplate.twin.plots import draw_text
from bedplate.twin.report import CardUse, LaneReport, Report, Speed
from bedplate.twin.spread import Spread

CARDS_SHOWN_MAX = 16
"""More cards than this are shown as the least, middle and most busy one."""


def print_report(report: Report, curves: Sequence[Panel]) -> None:
    """Print everything that a run says."""
    print_text(f"{report.name}: {report.workload} on {len(report.cards)} cards, seed {report.seed}")
    print_text(f"{report.duration_s:,.1f} s of virtual time, digest {report.digest}")
    _print_goodput(report)
    _print_times([*report.lanes, *([report.overall] if len(report.lanes) != 1 else [])])
    _print_memory(report)
    _print_cards(report.cards)
    _print_bottleneck(report)
    print_speed(report.speed)
    if curves:
        print_text("")
        print_text(draw_text(curves, columns=min(100, shutil.get_terminal_size().columns)))


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
            lane.sessions,
            lane.sessions_done,
            lane.turns,
            lane.turns_done,
            _short(lane.goodput.per_s),
            f"{lane.goodput.unit}/s",
            f"{lane.goodput.share:.1%}",
            _short(lane.goodput.sessions_per_s),
        ]
        for lane in (*report.lanes, report.overall)
    ]
    columns = ["lane", "sessions", "done", "turns", "done", "goodput", "in", "of all", "sessions/s"]
    factor = "" if report.slo_factor == 1.0 else f", their times × {report.slo_factor:g}"
    print_text("")
    print_table(columns, rows, title=f"goodput: within the lane's SLO class{factor}")
    listed = ", ".join(f"{count:,} {name}" for name, count in report.statuses.items())
    print_text(f"turns ended with: {listed or 'nothing'}")
    if report.too_long:
        print_text(
            f"{report.too_long:,} turns were refused for a longer prompt than any card takes "
            f"({report.context_tokens:,} tokens)"
        )


def _short(value: float) -> float:
    """Return a value with four digits that count."""
    return float(f"{value:.4g}")


def _print_times(lanes: Sequence[LaneReport]) -> None:
    rows = [row for lane in lanes for row in _time_rows(lane)]
    columns = ["lane", "seconds", "n", "mean", "p50", "p90", "p95", "p99", "most"]
    print_table(columns, rows)


def _time_rows(lane: LaneReport) -> Iterator[list[object]]:
    names = {"ttft": "TTFT", "tpot": "TPOT", "queue": "queue", "turn": "turn", "session": "session"}
    for name, shown in names.items():
        found: Spread | None = getattr(lane.times, name)
        if found is not None:
            yield [lane.lane, shown, found.n, *(_short(value) for value in found[1:])]


def _print_memory(report: Report) -> None:
    tokens, moves = report.overall.tokens, report.moves
    print_text(
        f"KV on cards   {report.kv_used.mean:.0%} full, {report.kv_used.peak:.0%} at most, of "
        f"{report.kv_used.total:,} tokens; running turns {report.kv_running.mean:.0%}, "
        f"{report.kv_running.peak:.0%} at most"
    )
    if report.pool.total:
        print_text(
            f"pool          {report.pool.mean:.0%} full, {report.pool.peak:.0%} at most, of "
            f"{format_size(report.pool.total)}"
        )
    print_text(
        f"hits          {tokens.hit_share:.1%} of {tokens.prompt:,} prompt tokens were not computed"
    )
    print_text(
        f"moves         {moves.stores:,} stores, {moves.loads:,} loads, "
        f"{format_size(moves.moved_bytes)}"
    )


def _print_cards(cards: Sequence[CardUse]) -> None:
    ordered = sorted(cards, key=lambda card: card.busy)
    if len(ordered) > CARDS_SHOWN_MAX:
        ordered = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
        shown = "least, middle and most busy card"
    else:
        ordered, shown = list(cards), "cards"
    rows = [
        [
            card.card,
            f"{card.busy:.1%}",
            f"{card.stalled:.1%}",
            card.prompt_tokens,
            card.out_tokens,
            card.stores,
            card.loads,
        ]
        for card in ordered
    ]
    columns = [shown, "busy", "stalled", "prefilled", "decoded", "stores", "loads"]
    print_table(columns, rows)


def _print_bottleneck(report: Report) -> None:
    found = report.bottleneck
    print_text(f"binds first   {found.binds}: {found.why}")
    for pressure in found.pressures:
        print_text(f"  {pressure.resource:<11} {pressure.evidence}")
    parts = found.parts
    print_text(
        f"  sessions' time: tools {parts.tools:.0%}, queues {parts.queue:.0%}, "
        f"prefill {parts.prefill:.0%}, decoding {parts.decode:.0%}"
    )


def print_comparison(found: Comparison) -> None:
    """Print live against twin."""
    print_text(f"{found.sessions:,} sessions, {found.turns:,} turns of {found.journal}")
    print_text(f"twin: profile {found.profile} ({found.evidence}), digest {found.digest}")
    rows = [
        [
            line.lane,
            line.measure,
            line.n_live,
            line.n_twin,
            _short(line.live),
            _short(line.twin),
            "" if line.error is None else f"{line.error:+.1%}",
        ]
        for line in found.lines
    ]
    print_table(["lane", "measure", "n live", "n twin", "live", "twin", "error"], rows)
    for note in found.notes:
        print_text(f"note: {note}")

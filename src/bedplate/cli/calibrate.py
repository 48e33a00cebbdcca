"""Measure a running engine and fit the profile of its cards."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple

import orjson
import typer

from bedplate.cli.options import ConfigOption, JsonOption
from bedplate.cli.output import (
    print_json,
    print_notice,
    print_table,
    print_text,
    program,
    progress,
    written,
)
from bedplate.config import Config, load
from bedplate.config.engines import (
    EMBEDDED_MODEL,
    EMBEDDED_PACKAGE,
    PACKAGE_PREFIX,
    LlamacppEngine,
)
from bedplate.errors import InvalidRequest
from bedplate.perf.profile import LinearCost
from bedplate.perf.profile_file import dump
from bedplate.runtime.build import build_engines, open_pool
from bedplate.runtime.calibration import (
    QUICK_SECONDS,
    SECONDS,
    Calibrated,
    Settings,
    rules_of,
)
from bedplate.runtime.calibration import calibrate as measure_and_fit

app = typer.Typer()

BUSY_SHARE = 0.25
"""Load average per processor from which on a machine is called busy."""
PERCENT = 100
INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as shells have it."""
CONFIG_FILE = "calibrate.toml"
EMBEDDED = """\
[[engine]]
kind = "llamacpp"
name = "embedded"
model = {model}
path = {path}
"""
ENDPOINT = """\
[[engine]]
kind = "openai"
name = "endpoint"
model = {model}
url = {url}
server = {server}
"""


class _Endpoint(NamedTuple):
    server: str
    key_env: str | None


@app.command()
def calibrate(
    *,
    model: Annotated[
        str | None,
        typer.Option(help="A GGUF file or package:NAME; with --url, the endpoint's model."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Base address of an endpoint to measure.")] = None,
    server: Annotated[str, typer.Option(help="Kind of the endpoint's server.")] = "generic",
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the endpoint's key.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Name of the engine in the configuration; default: first.")
    ] = None,
    cards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cards to measure at the same time; default: all embedded ones, one endpoint.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of one step at an endpoint; default: measured.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the profile to this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Within a minute, fewer points.")] = False,
    seed: Annotated[int, typer.Option(help="Of texts, order and held-out points.")] = 0,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Measure an engine's cards as they serve, and fit the profile that the twin runs."""
    _warn_if_busy()
    folder = Path(tempfile.mkdtemp(prefix="bedplate-calibrate-"))
    try:
        loaded = _config(config, model, url, _Endpoint(server, key_env), folder=folder)
        chosen = _only(loaded, engine, cards, folder)
        with progress("Measuring", PERCENT) as advance:
            settings = Settings(
                cards=len(chosen.engines[0].card_names),
                seconds=QUICK_SECONDS if quick else SECONDS,
                seed=seed,
                command=_command(),
            )
            result = asyncio.run(_measure(chosen, settings, batch_tokens, advance))
    except asyncio.CancelledError:
        print_notice("stopped before the end; nothing was written, what it had started has ended")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    replaced = out is not None and out.exists()
    if out is not None:
        dump(result.profile, out, calibration=result.calibration, errors=result.errors)
    if json:
        print_json(as_json(result))
    else:
        _print(result)
        if out is not None:
            print_text(written("profile", out, replaced=replaced))


def _warn_if_busy() -> None:
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        print_notice(
            f"this machine is busy: load average {load:.2f} on {cpus} processors. What runs beside "
            "slows the cards and becomes part of the profile; measure again when it is quiet"
        )


def _config(
    file: Path | None, model: str | None, url: str | None, options: _Endpoint, *, folder: Path
) -> Config:
    """Return the configuration that the options name, or make one of them."""
    if model is None and url is None:
        return load(file)
    if file is not None:
        raise InvalidRequest("give --config, or --model with or without --url; not both")
    if model is None:
        raise InvalidRequest("--url needs --model: the name that the endpoint serves")
    if url is not None:
        text = ENDPOINT.format(
            model=_quoted(model), url=_quoted(url), server=_quoted(options.server)
        )
        if options.key_env is not None:
            text += f"api_key_env = {_quoted(options.key_env)}\n"
    else:
        packaged = model.startswith(PACKAGE_PREFIX)
        path = model if packaged else str(Path(model).absolute())
        name = EMBEDDED_MODEL if model == PACKAGE_PREFIX + EMBEDDED_PACKAGE else Path(model).stem
        text = EMBEDDED.format(model=_quoted(name), path=_quoted(path))
    made = folder / CONFIG_FILE
    made.write_text(text, encoding="utf-8")
    return load(made)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _only(config: Config, engine: str | None, cards: int | None, folder: Path) -> Config:
    """Return a configuration of the one engine, with folders that no running service has.

    All embedded cards are measured, as they share the processors of this machine; endpoints share
    nothing, so one of them stands for all.
    """
    names = [section.name for section in config.engines]
    if engine is not None and engine not in names:
        raise InvalidRequest(f"there is no engine {engine!r}; known: {', '.join(names)}")
    section = config.engines[names.index(engine) if engine is not None else 0]
    if isinstance(section, LlamacppEngine):
        section = section.model_copy(update={"cards": cards or section.cards})
    elif cards is not None and cards > len(section.addresses):
        raise InvalidRequest(
            f"engine {section.name} has {len(section.addresses)} cards, not {cards}"
        )
    elif section.url is None:
        section = section.model_copy(update={"urls": section.urls[: cards or 1]})
    return config.model_copy(
        update={
            "engines": (section,),
            "service": config.service.model_copy(update={"data_dir": folder / "data"}),
            "pool": config.pool.model_copy(update={"path": None, "fallback_dir": None}),
        }
    )


async def _measure(
    config: Config, settings: Settings, batch_tokens: int, advance: Callable[[int], None]
) -> Calibrated:
    _stop_at_signal()
    section = config.engines[0]
    config.service.data_dir.mkdir(mode=0o700)
    pool = open_pool(config)
    try:
        (engine,) = build_engines(config, pool)
        return await measure_and_fit(
            engine,
            pool,
            rules_of(section, batch_tokens=batch_tokens),
            settings,
            progress=lambda share: advance(int(share * PERCENT)),
        )
    finally:
        if pool is not None:
            pool.close()
            await asyncio.to_thread(shutil.rmtree, pool.folder)


def _stop_at_signal() -> None:
    """Let the first signal cancel the running task; later ones find it stopping already."""
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _command() -> str:
    """Return the command line that this process was called with."""
    return " ".join([program(), *map(shlex.quote, sys.argv[1:])])


def _print(result: Calibrated) -> None:
    profile, made = result.profile, result.calibration
    step = profile.step
    assert isinstance(step, LinearCost)
    print_table(
        ["constant", "value", "unit"],
        [
            ["launch of a step", _ms(step.launch_ns), "ms"],
            ["weights read in a step", _ms(step.weights_ns), "ms"],
            ["prompt token", _us(step.prompt_ns), "µs"],
            ["decoding sequence", _us(step.sequence_ns), "µs"],
            ["1,000 pairs of prompt attention", _us(1_000 * step.pair_ns), "µs"],
            ["1,000 tokens of decoding context", _us(1_000 * step.context_ns), "µs"],
            ["begin of a turn", _ms(profile.begin_ns), "ms"],
            ["end of a turn", _ms(profile.end_ns), "ms"],
            *_move_rows(result),
        ],
        title=f"{profile.model} on {profile.name}, {profile.batching.token_budget} tokens a step",
    )
    errors = result.errors.model_dump(exclude_none=True)
    print_table(
        ["points", "held out", "mean error", "median", "p90"],
        [
            [kind, error["points"], *(f"{error[name]:.1%}" for name in ("mean", "median", "p90"))]
            for kind, error in errors.items()
        ],
        title="Error on points that a fit had not seen",
    )
    print_text(
        f"{made.points} points, each the median of {made.rounds} rounds on {made.cards} card(s); "
        f"{made.seconds:.0f} s; load {made.load:.2f} on {made.cpus} processors"
    )
    for note in made.notes:
        print_text(note)


def _move_rows(result: Calibrated) -> list[list[object]]:
    profile = result.profile
    if profile.kv != "full":
        return []
    rows: list[list[object]] = []
    for name, move in (("store", profile.store), ("load", profile.load)):
        rows.append([f"{name}, base", _ms(move.base_ns), "ms"])
        token_ns = move.byte_ns * profile.kv_bytes_per_token
        rows.append([f"{name}, 1,000 tokens", _ms(1_000 * token_ns), "ms"])
    return rows


def _ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 3)


def _us(time_ns: float) -> float:
    return round(time_ns / 1e3, 3)


def as_json(result: Calibrated) -> dict[str, object]:
    """Return a calibration as JSON values, by the keys of the profile's file."""
    return {
        "profile": asdict(result.profile),
        "calibration": result.calibration.model_dump(),
        "error": result.errors.model_dump(exclude_none=True),
    }

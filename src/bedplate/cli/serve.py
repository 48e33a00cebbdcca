"""Serve agents: OpenAI's API in front of the configured engines; with no file, two embedded cards.

On the very first start a key is made and shown once, as soon as the service listens: a start that
fails uses no key up. SIGTERM or Ctrl-C drains: new calls are refused, running ones end. A second
one cuts what still runs.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
import uvloop

from bedplate.cli import operator
from bedplate.cli.logs import set_up_logs
from bedplate.cli.options import ConfigOption, JsonOption
from bedplate.cli.output import (
    counted,
    options_again,
    print_json,
    print_notice,
    print_text,
    program,
    progress,
    source_of,
)
from bedplate.cli.preflight import preflight
from bedplate.cli.serving import Stack, base_url, running
from bedplate.config import Config, load
from bedplate.engines.llamacpp.engine import LlamaCppEngine
from bedplate.errors import BedplateError
from bedplate.gateway.keys import KeyStore
from bedplate.gateway.server import serve as serve_until_signal

app = typer.Typer()

FIRST_TENANT = "default"


@app.command()
def serve(
    config: ConfigOption = None,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 lets the system choose.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of journal and keys.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    json: JsonOption = False,
) -> None:
    """Serve agents until SIGTERM."""
    overrides = {
        "service.host": host,
        "service.port": port,
        "service.data_dir": data_dir,
        "service.tls_cert": tls_cert,
        "service.tls_key": tls_key,
    }
    loaded = load(config, overrides=overrides)
    preflight(loaded, config, data_dir)
    set_up_logs(loaded.log)
    hints = Hints(source_of(config), options_again(config, data_dir))
    uvloop.run(_serve(loaded, hints, as_json=json))
    print_notice("stopped")


class Hints(NamedTuple):
    """What is told beside the address: the configuration's source, and options to type again."""

    source: str
    options: str


def first_key(keys: KeyStore) -> str | None:
    """Make a key where there is none yet, so that the first start can be used at once."""
    if any(info.label != operator.OPERATOR for info in keys.list()):
        return None
    return keys.add(FIRST_TENANT, now_ns=time.time_ns(), label="first").secret


def drain_notice(turns: int, drain_s: float) -> str:
    """Say what a drain waits for, and how to end it sooner."""
    return f"draining {counted(turns, 'turn')}, at most {drain_s:g} s; again to cut"


async def _serve(config: Config, hints: Hints, *, as_json: bool) -> None:
    registered: list[str] = []
    with ExitStack() as starting:
        advance = starting.enter_context(progress("Starting the cards"))
        async with running(config, progress=advance) as stack:
            starting.close()

            def started(port: int) -> None:
                url = base_url(config, port)
                registered.append(operator.register(config, stack.keys, url))
                _announce(config, stack, url, None if as_json else hints)

            def draining() -> None:
                turns = stack.service.stats().turns_live
                print_notice(drain_notice(turns, config.service.drain_seconds))

            try:
                await serve_until_signal(
                    stack.server,
                    stack.gateway,
                    stack.service,
                    drain_s=config.service.drain_seconds,
                    started=started,
                    draining=draining,
                )
            except AssertionError as error:
                raise BedplateError(
                    f"The core met a bug in itself and halted: {error!r}. The journal names "
                    "the record. `bedplate replay` shows it; with --skip SEQ it is left out."
                ) from error
            finally:
                for key_id in registered:
                    operator.unregister(config.service.data_dir, stack.keys, key_id)


def _announce(config: Config, parts: Stack, url: str, hints: Hints | None) -> None:
    """Say where the service is, what it serves, and what to do next; without hints as JSON."""
    models = list(parts.service.models())
    pool = parts.service.pool
    key = first_key(parts.keys)
    if hints is None:
        document = {"url": url, "models": models, "data_dir": str(config.service.data_dir)}
        print_json(document if key is None else {**document, "key": key})
        sys.stdout.flush()
        return
    print_text(f"Bedplate serves {', '.join(models)} at {url}/v1")
    print_text(f"Read: {hints.source}. Journal and keys: {config.service.data_dir}")
    if pool is not None and pool.warning:
        print_notice(f"pool: {pool.warning}")
    for engine in parts.service.engines:
        if isinstance(engine, LlamaCppEngine) and engine.licence is not None:
            print_text(
                f"The weights of {engine.model}: {engine.licence.name}, {engine.licence.url}"
            )
    if key is not None:
        print_text("")
        print_text("A first key, shown this once. Give it to your agent:")
        print_text(f"  export OPENAI_BASE_URL={url}/v1")
        print_text(f"  export OPENAI_API_KEY={key}")
        print_text(f"More keys: {program()} key add --tenant NAME{hints.options}")
    print_text("")
    print_text(
        f"Ctrl-C drains and stops. What runs and what waits: {program()} sessions{hints.options}"
    )
    sys.stdout.flush()

"""The embedded base as a process of its own: a random model on cards, a pool, keys.

The model's content is noise and its costs are real: with it a card computes some hundred to a
thousand prompt tokens a second on one core, slow enough that the engine and not the gateway is what
is measured, fast enough that hundreds of sessions end in minutes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bedplate.core.limits import BATCH, INTERACTIVE, SHARED
from bedplate.gateway.keys import KeyStore
from bench.harness.processes import Process, free_port
from bench.harness.run import Run
from tests.fakes.tiny_gguf import Shape, write

MODEL = "random"
LANES = (INTERACTIVE, SHARED, BATCH)
"""Lanes that a key may use where nothing else is said."""
CONFIG = """\
[service]
host = "127.0.0.1"
port = {port}
data_dir = "{folder}/data"

[pool]
path = "{pool}/pool"
size_bytes = "{pool_bytes}"

[[engine]]
kind = "llamacpp"
name = "card"
model = "{model}"
path = "{path}"
cards = {cards}
{engine}

[log]
level = "warning"
{more}
"""


def model_file(run: Run, shape: Shape) -> Path:
    """Return a random model, written on first use; the same shape gives the same bytes."""
    kind = "words" if shape.whole_words else "random"
    path = run.cache / "live" / f"{kind}-{shape.layers}x{shape.hidden}x{shape.vocab}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".part")
        write(half, shape)
        half.replace(path)
    return path


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a base is. `engine`: keys of its engine beside these; `more`: TOML at the end.

    `pool`: the folder of its pool; None: its own folder. `command`: the module and its arguments
    that take the options of `bedplate serve`.
    """

    model: Path
    engine: Mapping[str, int | float]
    cards: int = 2
    pool_bytes: str = "1GiB"
    pool: Path | None = None
    more: str = ""
    command: Sequence[str] = ("bedplate.cli.main",)

    def config_text(self, folder: Path, port: int) -> str:
        """Return the configuration of such a base on `folder`."""
        return CONFIG.format(
            port=port,
            folder=folder,
            pool=self.pool or folder,
            pool_bytes=self.pool_bytes,
            model=MODEL,
            path=self.model,
            cards=self.cards,
            engine="\n".join(f"{key} = {value}" for key, value in self.engine.items()),
            more=self.more,
        )


@dataclass(frozen=True, slots=True)
class LiveBase:
    """A base that serves; `keys` by tenant."""

    url: str
    folder: Path
    keys: Mapping[str, str] = field(repr=False)

    @property
    def journal(self) -> Path:
        """The folder of its journal."""
        return self.folder / "data" / "journal"

    def card_pids(self) -> list[int]:
        """Return the process of each card, in the cards' order."""
        paths = sorted((self.folder / "data").rglob("card-?.json"))
        return [int(json.loads(path.read_text())["pid"]) for path in paths]

    def pull_card(self, number: int) -> None:
        """Kill a card's process at once, as a card that is pulled out."""
        os.kill(self.card_pids()[number], signal.SIGKILL)


@contextmanager
def live_base(
    folder: Path, base: Embedded, tenants: Mapping[str, Sequence[int]]
) -> Iterator[LiveBase]:
    """Serve from a new folder, with a key for each tenant; ends with SIGTERM, its cards too.

    `tenants`: the lanes that each may use.
    """
    data = folder / "data"
    data.mkdir(mode=0o700, parents=True)
    port = free_port()
    config = folder / "bedplate.toml"
    config.write_text(base.config_text(folder, port))
    with KeyStore(data / "keys.db") as store:
        keys = {
            tenant: store.add(tenant, now_ns=time.time_ns(), lanes=lanes).secret
            for tenant, lanes in tenants.items()
        }
    command = [sys.executable, "-m", *base.command, "serve", "--config", str(config)]
    with Process(command, core=None, log=folder / "serve.log") as process:
        url = f"http://127.0.0.1:{port}"
        process.await_ready(f"{url}/readyz")
        yield LiveBase(url, folder, keys)

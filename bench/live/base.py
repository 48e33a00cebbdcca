"""The embedded base as a process of its own: a random model on two cards, a pool, one key.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bedplate.gateway.keys import KeyStore
from bench.harness.processes import Process, free_port
from bench.harness.run import Run
from tests.fakes.tiny_gguf import Shape, write

MODEL = "random"
SHAPE = Shape(layers=4, hidden=512, heads=8, kv_heads=8, vocab=4096)
CARDS = 2
CONFIG = """\
[service]
host = "127.0.0.1"
port = {port}
data_dir = "{folder}/data"

[pool]
path = "{folder}/pool"
size_bytes = "{pool_bytes}"

[[engine]]
kind = "llamacpp"
name = "card"
model = "{model}"
path = "{path}"
cards = {cards}
slots = {slots}
running_max = {running_max}
kv_tokens = {kv_tokens}
heartbeat_seconds = 0.5

[log]
level = "warning"
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the base is. KV in tokens of one card."""

    slots: int = 16
    running_max: int = 2
    kv_tokens: int = 16_384
    pool_bytes: str = "1GiB"


def model_file(run: Run) -> Path:
    """Return the random model, written on first use; the same shape gives the same bytes."""
    shape = f"{SHAPE.layers}x{SHAPE.hidden}x{SHAPE.vocab}"
    path = run.cache / "live" / f"random-{shape}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".part")
        write(half, SHAPE)
        half.replace(path)
    return path


def config_text(run: Run, folder: Path, port: int, size: Size) -> str:
    """Return the configuration of a base on `folder`."""
    return CONFIG.format(
        port=port,
        folder=folder,
        model=MODEL,
        path=model_file(run),
        cards=CARDS,
        slots=size.slots,
        running_max=size.running_max,
        kv_tokens=size.kv_tokens,
        pool_bytes=size.pool_bytes,
    )


@dataclass(frozen=True, slots=True)
class LiveBase:
    """A base that serves."""

    url: str
    key: str
    folder: Path

    @property
    def journal(self) -> Path:
        """The folder of its journal."""
        return self.folder / "data" / "journal"

    def pull_card(self, number: int) -> None:
        """Kill a card's process at once, as a card that is pulled out."""
        (path,) = (self.folder / "data").rglob(f"card-{number}.json")
        os.kill(int(json.loads(path.read_text())["pid"]), signal.SIGKILL)


@contextmanager
def live_base(run: Run, name: str, size: Size) -> Iterator[LiveBase]:
    """Serve from a fresh folder below the run's scratch; ends with SIGTERM, its cards too."""
    folder = run.scratch / name
    data = folder / "data"
    data.mkdir(mode=0o700, parents=True)
    port = free_port()
    config = folder / "bedplate.toml"
    config.write_text(config_text(run, folder, port, size))
    with KeyStore(data / "keys.db") as keys:
        key = keys.add("bench", now_ns=time.time_ns()).secret
    command = [sys.executable, "-m", "bedplate.cli.main", "serve", "--config", str(config)]
    with Process(command, core=None, log=folder / "serve.log") as process:
        url = f"http://127.0.0.1:{port}"
        process.await_ready(f"{url}/readyz")
        yield LiveBase(url, key, folder)

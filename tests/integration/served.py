"""`bedplate serve` as a process of its own, as its users run it: started, stopped, killed, asked.

    with Served(folder, tiny_cards(model)) as served:
        served.client().chat.completions.create(...)
        served.stop()                 # SIGTERM; the exit status
        served.kill(); served.start() # on the same data folder

Three keys are made beforehand: of tenant `acme`, of tenant `rival` (batch lane only), and of an
operator. At the end every process that was started is gone, cards of killed services too.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import openai
import requests

from bedplate.core.limits import BATCH
from bedplate.engines.llamacpp.child import start_ticks
from bedplate.gateway.keys import KeyStore
from bedplate.journal import Reader, Record, verify
from bedplate.metering.check import reconcile
from bedplate.replay import replay

START_S = 90.0
STOP_S = 60.0
WAIT_S = 30.0
"""Bounds for a machine that others use too; nothing here takes a tenth of them on a quiet one."""
CLI = (sys.executable, "-m", "bedplate.cli.main")
CHAT = "/v1/chat/completions"


def tiny_cards(
    model: Path, *, name: str = "emb", served: str = "tiny", cards: int = 2, **more: int
) -> str:
    """Return the configuration of embedded cards on a GGUF file."""
    keys = {"slots": 16, "running_max": 1, "kv_tokens": 16_384, **more}
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return (
        f'[[engine]]\nkind = "llamacpp"\nname = "{name}"\nmodel = "{served}"\npath = "{model}"\n'
        f"cards = {cards}\nheartbeat_seconds = 0.5\norphan_seconds = 20.0\n{lines}"
    )


def endpoint(url: str, *, name: str = "up", served: str = "fake", **more: int) -> str:
    """Return the configuration of an endpoint over HTTP."""
    lines = "".join(f"{key} = {value}\n" for key, value in more.items())
    return (
        f'[[engine]]\nkind = "openai"\nname = "{name}"\nmodel = "{served}"\n'
        f'upstream_model = "fake"\nurl = "{url}"\n{lines}'
    )


Found = TypeVar("Found")


def until(true: Callable[[], Found | None], *, within_s: float = WAIT_S) -> Found:
    """Return what `true` gives as soon as that is true."""
    end = time.monotonic() + within_s
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


class Served:
    """One data folder and the service on it. `url` is the address of the run that goes on."""

    def __init__(self, folder: Path, engines: str, *, service: str = "", more: str = "") -> None:
        self.folder = folder
        self.data = folder / "data"
        self.config = folder / "bedplate.toml"
        self.log = folder / "log"
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._pids: dict[int, int] = {}
        self.data.mkdir(mode=0o700, parents=True)
        self.configure(engines, service=service, more=more)
        now = time.time_ns()
        with KeyStore(self.data / "keys.db") as keys:
            self.acme = keys.add("acme", now_ns=now).secret
            self.rival = keys.add("rival", now_ns=now, lanes=(BATCH,)).secret
            self.operator = keys.add("ops", now_ns=now, admin=True).secret

    def configure(self, engines: str, *, service: str = "", more: str = "") -> None:
        """Write the configuration of the next start."""
        self.config.write_text(
            f'[service]\nport = 0\ndata_dir = "{self.data}"\n{service}\n'
            f'[pool]\npath = "{self.folder / "pool"}"\nsize_bytes = "512MiB"\n{more}\n{engines}'
        )

    # Life.

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._process is not None:
                self.stop()
        finally:
            self.end_all()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> dict[str, Any]:
        """Start the service and return what it says about itself, once it serves."""
        assert self._process is None
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*CLI, "serve", "--config", str(self.config), "--json"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        said: dict[str, Any] = json.loads(self._said())
        self.url = said["url"]
        self._pids |= {pid: start_ticks(pid) for pid in [self.pid, *self.cards().values()]}
        return said

    def send_signal(self, number: int) -> None:
        """Send a signal to the service."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = STOP_S) -> int:
        """Ask the service to end, and return its exit status."""
        self.send_signal(number)
        return self.ended(within_s=within_s)

    def ended(self, *, within_s: float = STOP_S) -> int:
        """Wait for the end of the service; return its exit status."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        try:
            return process.wait(within_s)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def kill(self) -> None:
        """End the service as a fault would; its cards live on."""
        self._pids |= {pid: start_ticks(pid) for pid in self.cards().values()}
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    def kill_card(self, name: str) -> int:
        """End one card as a fault would; return the pid that it had."""
        pid = self.cards()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def end_all(self) -> None:
        """End what is left of every run: processes whose pid and start time are those we saw."""
        self._pids |= {pid: start_ticks(pid) for pid in self.cards().values()}
        for pid, ticks in self._pids.items():
            if ticks and start_ticks(pid) == ticks:
                os.kill(pid, signal.SIGKILL)
        for pid, ticks in self._pids.items():
            until(partial(_gone, pid, ticks))

    def _said(self) -> str:
        """Return the document that is printed, in one write, once the service listens."""
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            ready = selector.select(START_S)
        lines = [stdout.readline()] if ready else [""]
        assert lines[0] == "{\n", f"the service did not start: {lines}{self.log.read_text()}"
        while lines[-1] != "}\n":
            lines.append(stdout.readline())
            assert lines[-1], "the service ended while it spoke"
        return "".join(lines)

    # Calling it.

    def client(self, key: str | None = None, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self.to(key), max_retries=0, timeout=60.0, **options)

    def aclient(self, key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self.to(key), max_retries=0, timeout=60.0, **options)

    def to(self, key: str | None = None) -> dict[str, Any]:
        """Return what every client of OpenAI's API is told."""
        return {"base_url": self.url + "/v1", "api_key": key or self.acme}

    def http(self, method: str, path: str, key: str | None = None, **options: Any) -> Any:
        """Call any endpoint with requests."""
        headers = {"authorization": f"Bearer {key or self.acme}", **options.pop("headers", {})}
        return requests.request(method, self.url + path, headers=headers, timeout=60, **options)

    def state(self) -> dict[str, Any]:
        """Return what operators see."""
        answer = self.http("GET", "/v1/admin/state", self.operator)
        assert answer.status_code == 200, answer.text
        state: dict[str, Any] = answer.json()
        return state

    def session(self, name: str) -> dict[str, Any]:
        """Return a session of tenant acme."""
        answer = self.http("GET", f"/v1/sessions/{name}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def at_rest(self) -> bool:
        """Tell whether no turn is open or runs (F08), by the service's own gauges."""
        state = self.state()
        lanes = sum(lane["waiting"] + lane["running"] for lane in state["lanes"])
        cards = sum(card["running"] + card["kv_running_tokens"] for card in state["cards"])
        return not (lanes or cards or any(one["open_turns"] for one in state["sessions"]))

    def drain(self, card: str, *, on: bool) -> None:
        """Take a card out, or back in."""
        verb = "drain" if on else "undrain"
        answer = self.http("POST", f"/v1/admin/cards/{card}/{verb}", self.operator)
        assert answer.status_code == 200, answer.text

    # Looking at what it leaves.

    def cards(self) -> dict[str, int]:
        """Return the pid of each embedded card, by its name."""
        files = sorted((self.data / "cards").glob("*.json"))
        named = [file for file in files if not file.name.endswith(".params.json")]
        return {file.stem: int(json.loads(file.read_text())["pid"]) for file in named}

    def records(self, *kinds: str) -> list[Record]:
        """Return the committed records of these kinds."""
        with Reader(self.data / "journal") as reader:
            return list(reader.read(kinds=kinds))

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the usage row of each turn, by its id. There is never a second one."""
        bodies = [record.body for record in self.records("usage") if record.body["turn"]]
        rows = {body["turn"]: body for body in bodies}
        assert len(rows) == len(bodies), "a turn has two usage rows"
        return rows

    def cli(self, *arguments: str) -> dict[str, Any]:
        """Run a command on this data folder; return its JSON. It must succeed."""
        done = subprocess.run(
            [*CLI, *arguments, "--data-dir", str(self.data), "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def check_books(self) -> None:
        """Verify the journal, recompute its decisions, and compare the bill with the engines."""
        verify(self.data / "journal")
        with Reader(self.data / "journal") as reader:
            replayed = replay(reader)
            bill = reconcile(reader.read())
        assert replayed.same
        assert replayed.digest_live == replayed.digest_replay
        assert bill.issues == ()
        assert bill.unexplained_tokens == 0


def _gone(pid: int, ticks: int) -> bool:
    return not ticks or start_ticks(pid) != ticks


def events_of(raw: bytes) -> list[str]:
    """Return the payloads of a stream of server-sent events."""
    return [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]


def text_of(payloads: Sequence[str]) -> str:
    """Return the content of a stream, put together."""
    chunks = [json.loads(payload) for payload in payloads if payload != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)

"""`bedplate serve` as its user meets it: the first key, a port in use, the way out."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.cli.serve import drain_notice
from bedplate.config import load
from bedplate.gateway.keys import KeyStore

FILE = """
[service]
port = 0
data_dir = "data"
[[engine]]
kind = "openai"
name = "nobody"
model = "m"
url = "http://127.0.0.1:1/v1"
[log]
level = "error"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bedplate.toml"
    path.write_text(FILE)
    return path


def serve(file: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bedplate.cli.main", "serve", "--config", str(file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def keys(file: Path) -> list[str]:
    with KeyStore(load(file).keys_path) as store:
        return [info.label for info in store.list()]


def test_a_start_that_fails_uses_no_key_up_and_the_next_one_shows_it(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = serve(file, "--port", str(taken.getsockname()[1]))
        out, err = failed.communicate(timeout=60)
    assert (failed.returncode, out) == (2, "")
    assert "Another program listens on 127.0.0.1:" in err
    assert keys(file) == []

    running = serve(file)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Ctrl-C"):
            break
        out += line
    assert re.search(r"OPENAI_API_KEY=bp_\w+$", out, re.MULTILINE)
    asked = subprocess.run(
        [sys.executable, "-m", "bedplate.cli.main", "sessions", "-c", str(file), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    problem = "takes no connection: Connection refused"
    shown = json.loads(asked.stdout)
    assert shown["never_up"] == [{"card": "nobody", "model": "m", "problem": problem}]
    assert shown["problems"] == {"nobody": problem}
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert err.splitlines()[-2:] == [drain_notice(0, 30.0), "stopped"]
    assert keys(file).count("first") == 1


def test_a_drain_says_what_it_waits_for() -> None:
    assert drain_notice(1, 0.5) == "draining 1 turn, at most 0.5 s; again to cut"
    assert drain_notice(3, 30.0) == "draining 3 turns, at most 30 s; again to cut"

"""`bedplate demo`, whole, on two real cards with a tiny random model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bedplate.cli.demo import DURATION
from tests.fakes import tiny_gguf

KEYS = {
    "sessions_completed", "sessions_failed", "turns", "repeated_calls", "kv_loads",
    "kv_load_verified", "prefill_tokens", "prefill_tokens_saved", "unexplained_tokens",
    "audit_verified", "digest_live", "digest_replay", "wall_seconds",
}  # fmt: skip


def bedplate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "bedplate.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_demo_loses_nothing_and_adds_up(tmp_path: Path) -> None:
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    out = tmp_path / "figures.json"
    folder = tmp_path / "run"
    ran = bedplate("demo", "--model", str(model), "--data-dir", str(folder), "--json", str(out))
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(out.read_text())
    assert figures.keys() >= KEYS
    assert figures["sessions_completed"] == 12
    assert figures["sessions_failed"] == 0
    assert figures["turns"] == 60
    assert figures["kv_loads"] == figures["kv_load_verified"] > 0
    assert figures["prefill_tokens_saved"] > 0
    assert figures["unexplained_tokens"] == 0
    assert figures["audit_verified"] is True
    assert figures["digest_live"] == figures["digest_replay"] != ""
    assert "is taken out; its sessions move" in ran.stdout
    assert "All sessions have ended." in ran.stdout
    assert "unexplained tokens  0" in ran.stdout

    # What it says to type next works as it stands there; the last one serves.
    commands = ran.stdout.partition("What next:\n")[2].splitlines()[:-1]
    assert len(commands) == 3
    for command in commands:
        after = subprocess.run(
            shlex.split(command), capture_output=True, text=True, timeout=60, check=False
        )
        assert after.returncode == 0, (command, after.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_pool(tmp_path: Path, number: int) -> None:
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "bedplate.cli.main", "demo"),
            *("--model", str(model), "--data-dir", str(tmp_path / "run")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"},
    ) as demo:
        assert demo.stdout is not None
        assert DURATION in next(iter(demo.stdout)), "it says at once how long it takes"
        line = next(line for line in demo.stdout if line.startswith("The KV pool is in"))
        pool = Path(line.rpartition(": ")[2].strip())
        assert pool.is_dir()
        demo.send_signal(number)
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert err.startswith("stopped before the end; the journal so far is in ")
    assert not pool.exists()

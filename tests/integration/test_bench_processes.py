"""What a bench starts ends with it, whether it is told to end or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.harness.processes import ROOT, environment

SECONDS = 15.0
CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {CHILD}"
BENCH = """
import sys, time
from pathlib import Path
from bench.harness import processes

processes.STOP_SECONDS = 0.5
if sys.argv[1] == "told":
    processes.end_on_sigterm()
folder = Path(sys.argv[2])
with processes.Process([sys.executable, "-c", sys.argv[3]], core=None, log=folder / "log"):
    try:
        time.sleep(600)
    finally:
        (folder / "left").touch()
"""
ASKS = """
import os, sys
from bench.harness import processes

processes.environment = lambda: {**os.environ, "PYTHONPATH": sys.argv[1]}
processes.end_on_sigterm()
processes.ask("answers_never", None, core=min(os.sched_getaffinity(0)), within_s=600)
"""
POOL = """
import os, sys, time
from pathlib import Path
from bench.harness import processes

def work(number):
    with (Path(sys.argv[2]) / f"log{number or ''}").open("w") as log:
        print(os.getpid(), file=log)
    time.sleep(600)

if sys.argv[1] == "told":
    processes.end_on_sigterm()
with processes.workers(2) as pool:
    list(pool.map(work, range(20)))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(path: Path) -> int:
    """Return the pid that a child writes into a file."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"nothing in {path}")


def gone(pid: int) -> bool:
    """Tell whether a process ends in time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


@contextmanager
def bench(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, env=environment(), cwd=ROOT) as parent:
        try:
            yield parent
        finally:
            parent.kill()


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """End the child even where the test fails, so that none stays on the machine."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("child", [CHILD, STUBBORN], ids=["polite", "stubborn"])
def test_told_to_end_it_leaves_its_contexts_and_no_child(tmp_path: Path, child: str) -> None:
    with bench(BENCH, "told", str(tmp_path), child) as parent:
        pid = soon(tmp_path / "log")
        with ended(pid):
            parent.terminate()
            parent.terminate()
            assert parent.wait(SECONDS) == 128 + signal.SIGTERM
            assert gone(pid)
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_cut_off_without_a_word_it_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    with bench(BENCH, "untold", str(tmp_path), CHILD) as parent:
        pid = soon(tmp_path / "log")
        with ended(pid):
            parent.send_signal(number)
            assert parent.wait(SECONDS) == -number
            assert gone(pid)
    assert not (tmp_path / "left").exists()


def test_one_that_is_asked_ends_with_who_asks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "answers_never.py").write_text(
        f"import os, time; print(os.getpid(), file=open({str(log)!r}, 'w'), flush=True)\n"
        "time.sleep(600)\n"
    )
    with bench(ASKS, str(tmp_path)) as parent:
        pid = soon(log)
        with ended(pid):
            parent.terminate()
            assert parent.wait(SECONDS) == 128 + signal.SIGTERM
            assert gone(pid)


@pytest.mark.parametrize(
    ("how", "number", "status"),
    [
        ("told", signal.SIGTERM, 128 + signal.SIGTERM),
        ("untold", signal.SIGTERM, -signal.SIGTERM),
        ("untold", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_workers_end_in_the_midst_of_their_work(
    tmp_path: Path, how: str, number: signal.Signals, status: int
) -> None:
    with bench(POOL, how, str(tmp_path)) as parent:
        pids = [soon(tmp_path / name) for name in ("log", "log1")]
        with ended(pids[0]), ended(pids[1]):
            parent.send_signal(number)
            assert parent.wait(SECONDS) == status
            assert all(gone(pid) for pid in pids)
    assert not (tmp_path / "log2").exists()

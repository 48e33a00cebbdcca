"""Processes under measurement: pinned to a core, logged, waited for, and ended by their own id.

None outlives the bench. A bench that is told to end (`end_on_sigterm`) leaves its contexts, which
end what they started and remove their folders. Where it cannot, because it was killed, the kernel
sends SIGTERM to each child at its parent's end.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType

import orjson

from bench.harness.run import BenchError, Json

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 90.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 2_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2): the signal that a process gets when the thread that started it ends."""
LIBC = ctypes.CDLL(None, use_errno=True)


def end_on_sigterm() -> None:
    """Let SIGTERM leave every context of this process, then end it; a second one is ignored.

    Only for the main thread of a command.
    """

    def leave(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def tied_to(parent: int) -> Callable[[], None]:
    """Return what a child of `parent` does before its program starts: it will not outlive it."""

    def tie() -> None:
        if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return tie


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Run a pool of processes that ends at once, work or not, where its context or we end badly."""
    with ProcessPoolExecutor(count, initializer=_tie_worker, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _tie_worker(parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the handler of its parent
    tied_to(parent)()


def cores() -> tuple[int, int]:
    """Return the two cores that benches use: one for what is measured, one for all the rest.

    Raises:
        BenchError: this process may use only one.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchError("the gateway's figures need two cores: one for it, one for the load")
    return usable[0], usable[1]


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run what is inside, and the processes that it starts, on one core; None: wherever it may."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: this one's, with the repository's code in its path."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(extra or {}),
    }


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Process:
    """A child, on one core or free, its output in a log. A context manager; SIGTERM ends it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        core: int | None,
        log: Path,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._command = list(command)
        with pinned(core), log.open("wb") as out:
            self._child = subprocess.Popen(
                self._command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment(extra),
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=tied_to(os.getpid()),  # safe: the harness has one thread
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def await_ready(self, url: str, *, within_s: float = READY_SECONDS) -> None:
        """Return once `url` answers with 200.

        Raises:
            BenchError: the process ended, or did not get there in time; with the end of its log.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                raise BenchError(f"{self._what()} ended: {self.tail()}")
            if _answers(url):
                return
            time.sleep(POLL_SECONDS)
        raise BenchError(f"{self._what()} is not ready after {within_s:.0f} s: {self.tail()}")

    def await_json(self, *, within_s: float = READY_SECONDS) -> dict[str, Json]:
        """Return the first line of output, a JSON object.

        Raises:
            BenchError: the process ended, or printed none in time.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            line, end, _ = self.log.read_bytes().partition(b"\n")
            if end:
                found: dict[str, Json] = orjson.loads(line)
                return found
            if self._child.poll() is not None:
                raise BenchError(f"{self._what()} ended: {self.tail()}")
            time.sleep(POLL_SECONDS)
        raise BenchError(f"{self._what()} printed nothing in {within_s:.0f} s")

    def stop(self) -> None:
        """End the process and all that it started, politely first."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its own group: nobody else is in it
        self._child.wait()

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used, all threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Return the resident memory of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()

    def _what(self) -> str:
        return " ".join(self._command[:3])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def ask(module: str, question: Json, *, core: int, within_s: float) -> dict[str, Json]:
    """Run a module of ours on a core, give it JSON on stdin, return the JSON of its stdout.

    Raises:
        BenchError: it failed or took too long; with the end of what it said.
    """
    with pinned(core):
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=ROOT,
            preexec_fn=tied_to(os.getpid()),
        )
    try:
        out, err = child.communicate(orjson.dumps(question), timeout=within_s)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{module} did not end in {within_s:.0f} s") from error
    finally:
        child.kill()  # nothing where it has ended
        child.wait()
    if child.returncode != 0:
        raise BenchError(f"{module} failed: {err.decode('utf-8', 'replace')[-LOG_TAIL_BYTES:]}")
    answer: dict[str, Json] = orjson.loads(out)
    return answer

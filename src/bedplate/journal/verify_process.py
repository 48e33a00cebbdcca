"""Processes that verify runs of records beside the one that was asked to.

Each is a fresh interpreter: a fork would take over threads and open databases of whoever calls.
It reads a `Job`, then one run after another from its standard input, answers each on its standard
output, and ends when its input does. A message is its length in four bytes, then MessagePack.
Whatever ends such a process early is an error of the run it had.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import msgspec

from bedplate import errors
from bedplate.errors import BedplateError, JournalError
from bedplate.journal.storage import Storage
from bedplate.journal.verify_run import Citation, Job, Run, Walked, Walker


class Asked(NamedTuple):
    """A run to verify; `cites` asks for what its records cite."""

    run: Run
    cites: bool


class Holds(msgspec.Struct, tag="holds"):
    """Answer of a run that holds, with what its records cite if that was asked."""

    walked: Walked
    cited: list[Citation]


class Refused(msgspec.Struct, tag="refused"):
    """Answer of a run that does not hold, or could not be read: an error to raise again."""

    kind: str
    message: str
    code: str


_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import serve; serve()"
"""Nothing is imported from the current folder: the path is that of the process that starts it."""
_encode = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_asked = msgspec.msgpack.Decoder(Asked).decode
_decode_answer = msgspec.msgpack.Decoder(Holds | Refused).decode


class VerifyProcess:
    """One process, seen from the one that started it. Not for two threads at once."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            JournalError: the system starts no more processes.
        """
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *filter(None, sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for the process that was asked; it ends this one
            )
        except OSError as error:
            raise JournalError(f"cannot start a process to verify records: {error}") from error
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def begin(self, job: Job) -> None:
        """Say what is to be verified; once, before the first `walk`."""
        self._send(job)

    def walk(self, run: Run, *, cites: bool) -> tuple[Walked, list[Citation]]:
        """Have one run verified, and wait for it.

        Raises:
            ChainBroken: something in it was changed.
            JournalError: it cannot be read, or the process ended: nothing is known of the run.
        """
        self._send(Asked(run, cites))
        data = _receive(self._output)
        if data is None:
            raise JournalError(
                f"process {self.pid}, which verified records {run.start} to {run.end - 1}, ended "
                f"early ({_ending(self._process.wait())}); nothing was shown of them: verify again"
            )
        answer = _decode_answer(data)
        if isinstance(answer, Refused):
            kind: type[BedplateError] = getattr(errors, answer.kind)
            raise kind(answer.message, code=answer.code)
        assert answer.walked.run == run, f"asked for {run}, answered {answer.walked}"
        return answer.walked, answer.cited

    def __enter__(self) -> VerifyProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._output.close()
        try:
            self._input.close()
        except BrokenPipeError:
            pass  # what was still to be sent has nobody to read it

    def end(self) -> None:
        """End it, whatever it does; a `walk` under way in another thread raises."""
        self._process.kill()
        self._process.wait()

    def _send(self, message: Job | Asked) -> None:
        try:
            _write(self._input, message)
        except BrokenPipeError:
            return  # `walk` finds out, and says how it ended


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _write(stream: IO[bytes], message: object) -> None:
    data = _encode(message)
    stream.write(len(data).to_bytes(4) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Return the next message, None where the stream ends, also in the middle of one."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head)
    data = stream.read(size)
    return data if len(data) == size else None


def serve() -> None:
    """Answer each run, in the process that was started, until there are no more."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    data, walker = _receive(requests), None
    if data is None:
        return
    job = _decode_job(data)
    while (data := _receive(requests)) is not None:
        asked = _decode_asked(data)
        try:
            if walker is None:
                walker = Walker(Storage.read_only(Path(os.fsdecode(job.folder))), job)
            answer: Holds | Refused = Holds(*walker.walk(asked.run, cites=asked.cites))
        except BedplateError as error:
            answer = Refused(type(error).__name__, error.message, error.code)
        _write(answers, answer)

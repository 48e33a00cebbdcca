"""Closed and open loops over connections.

Closed: so many clients, each asks again as soon as it has its answer; gives requests a second.
Open: requests leave at times drawn beforehand, whether or not earlier ones have come back, and are
timed from when they were due, so that a stalled server cannot hide its queue.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.load.client import Answer, Connection, Lost, fault
from bench.load.workload import Workload


@dataclass(slots=True, kw_only=True)
class Job:
    """What `python -m bench.load` is told.

    Each session has `turns` turns, the first of them with number `first_turn`. Closed:
    `connections` clients until `warm_s + measure_s` are over, or until `sessions` sessions are done
    where that is not 0. Open: `rate` a second for that time, `arrivals` poisson or even, drawn from
    `seed`. `keys` are credentials, in turn.
    """

    host: str
    port: int
    keys: list[str]
    label: str
    mode: str = "closed"
    connections: int = 32
    turns: int = 1
    first_turn: int = 0
    sessions: int = 0
    first_session: int = 0
    warm_s: float = 1.0
    measure_s: float = 5.0
    rate: float = 200.0
    arrivals: str = "poisson"
    seed: int = 1
    path: str = "/v1/chat/completions"


@dataclass(slots=True)
class Outcome:
    """What happened. `asked` counts every request, warm-up too; times are of the measured ones."""

    asked: int = 0
    measured: int = 0
    seconds: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    last_ms: list[float] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    def took(self, answer: Answer, since_s: float, *, measured: bool) -> None:
        """Count an answer."""
        self.asked += 1
        wrong = fault(answer.raw)
        if wrong is not None:
            self.fault(wrong)
        elif measured:
            self.measured += 1
            self.first_ms.append(round((answer.first_s - since_s) * 1e3, 3))
            self.last_ms.append(round((answer.last_s - since_s) * 1e3, 3))

    def fault(self, what: str) -> None:
        """Count what went wrong."""
        self.faults[what] = self.faults.get(what, 0) + 1


class Driver:
    """Runs one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._workload = Workload(job.label)
        self._heads = [
            (
                f"POST {job.path} HTTP/1.1\r\nhost: {job.host}:{job.port}\r\n"
                f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
            ).encode()
            + b"content-length: %d\r\n\r\n"
            for key in job.keys
        ]
        self._outcome = Outcome()
        self._idle: list[Connection] = []

    async def run(self) -> Outcome:
        """Return what happened."""
        if self._job.mode == "closed":
            await self._closed()
        else:
            await self._open()
        return self._outcome

    def _request(self, session: int, turn: int) -> bytes:
        body = self._workload.body(session, turn)
        return self._heads[session % len(self._heads)] % len(body) + body

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._job.host, self._job.port)
        return connection

    async def _closed(self) -> None:
        job = self._job
        began = time.perf_counter()
        numbers = iter(range(job.first_session, job.first_session + (job.sessions or 1 << 62)))
        window = (began + job.warm_s, began + job.warm_s + job.measure_s)
        if job.sessions:
            window = (began, float("inf"))
        clients = [self._client(numbers, window) for _ in range(job.connections)]
        await asyncio.gather(*clients)
        end = time.perf_counter()
        self._outcome.seconds = end - began if job.sessions else job.measure_s

    async def _client(self, numbers: Iterator[int], window: tuple[float, float]) -> None:
        connection = await self._connect()
        begin, end = window
        try:
            for session in numbers:
                for turn in range(self._job.first_turn, self._job.first_turn + self._job.turns):
                    sent = time.perf_counter()
                    if sent >= end:
                        return
                    answer = await connection.ask(self._request(session, turn))
                    inside = begin <= answer.last_s < end
                    self._outcome.took(answer, sent, measured=inside)
        except Lost as error:
            self._outcome.fault(f"connection lost {error}")
        finally:
            connection.close()

    async def _open(self) -> None:
        job = self._job
        dues = arrivals(job)
        self._idle = [await self._connect() for _ in range(job.connections)]
        began = time.perf_counter() + 0.05
        running: set[asyncio.Task[None]] = set()
        for number, due in enumerate(dues):
            wait = began + due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            measured = due >= job.warm_s
            task = asyncio.create_task(
                self._one(job.first_session + number, began + due, measured=measured)
            )
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        self._outcome.seconds = time.perf_counter() - began - job.warm_s
        for connection in self._idle:
            connection.close()

    async def _one(self, session: int, due_s: float, *, measured: bool) -> None:
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            answer = await connection.ask(self._request(session, 0))
        except Lost as error:
            self._outcome.fault(f"connection lost {error}")
            return
        self._outcome.took(answer, due_s, measured=measured)
        if connection.open:
            self._idle.append(connection)


def arrivals(job: Job) -> Sequence[float]:
    """Return when the requests of an open job are due, in seconds from its start, rising."""
    total_s = job.warm_s + job.measure_s
    if job.arrivals == "even":
        return [number / job.rate for number in range(int(total_s * job.rate))]
    rng = random.Random(job.seed)
    dues: list[float] = []
    at = rng.expovariate(job.rate)
    while at < total_s:
        dues.append(at)
        at += rng.expovariate(job.rate)
    return dues

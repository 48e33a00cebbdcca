"""How fast the journal appends durably and verifies, beside bare SQLite in the same run.

Records are those of a service under load: for each turn its arrival, start, progress, end, usage
row and a digest, with bodies as the core and the metering write them. They are appended in groups
of 500, one durable transaction each (WAL, synchronous=FULL), on a disk. `verify` runs in a fresh
process, as an auditor's would: once with two cores to use, by the clock on the wall, the start of
its second process included; once on one core, by that core's time.

Bare SQLite is the least that one could do in Python: orjson, one SHA-256 a record over its
predecessor's hash, one row, no tree, no signatures; its verification reads and hashes again, on
one core.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from bedplate.core.actions import Settled
from bedplate.core.codec import body_of
from bedplate.core.events import Event, TokensEmitted, TurnArrived, TurnEnded, TurnStarted
from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId, TurnId
from bedplate.journal import Journal, Record, verify
from bedplate.metering.rows import usage_body

GROUP = 500
TENANTS = ("wealth", "fraud", "compliance", "service")
START_NS = 1_760_000_000_000_000_000
STEP_NS = 20_000
"""Between records: the pace of the target, so that checkpoints fall as they would."""


def turn_records(turn: int, seq: int) -> Iterator[Record]:
    """Yield the nine records of one turn."""
    tenant, session = TenantId(TENANTS[turn % 4]), SessionId(f"s-{turn // 5:08d}")
    name, model = TurnId(f"t-{turn:010d}"), ModelId("gemma-3-270m")
    prompt = 700 + 200 * (turn % 5)
    events: list[Event] = [
        TurnArrived(name, session, BranchId(0), -1, tenant, turn % 3, model, prompt, prompt - 200,
                    0, True, True),
        TurnStarted(name, 1, prompt, prompt - 200),
        *(TokensEmitted(name, 1, 8 * part) for part in range(1, 5)),
        TurnEnded(name, 1, "tool_calls", prompt, prompt - 200, 32, prompt + 32, "lookup", True),
    ]  # fmt: skip
    for event in events:
        yield _record(seq, type(event).__name__, tenant, session, body_of(event))
        seq += 1
    settled = Settled(
        name, session, BranchId(0), tenant, turn % 3, model, "card-0", "tool_calls", prompt,
        prompt - 200, 32, 1_204_991, 812_334_001, 4_120_332_114, 9_124_334_004_113, 0, 1, True,
    )  # fmt: skip
    row = usage_body(settled, event_seq=seq - 1, price_version="default-1")
    yield _record(seq, "usage", tenant, session, row)
    digest = hashlib.sha256(name.encode()).hexdigest()
    yield _record(seq + 1, "digest", "", "", {"event_seq": seq, "digest": digest})


def _record(seq: int, kind: str, tenant: str, session: str, body: dict[str, object]) -> Record:
    return Record(seq, START_NS + seq * STEP_NS, kind, tenant, session, body)


def batches(records: int) -> list[list[Record]]:
    """Return whole groups of records, at least `records` in all."""
    made: list[Record] = []
    turn = 0
    while len(made) < records or len(made) % GROUP:
        made.extend(turn_records(turn, len(made)))
        turn += 1
        if len(made) >= records:
            del made[len(made) - len(made) % GROUP :]
            break
    return [made[at : at + GROUP] for at in range(0, len(made), GROUP)]


def append_rate(folder: Path, groups: Sequence[Sequence[Record]]) -> float:
    """Return records a second, all of them durable."""
    with Journal.open(folder, origin="bench") as journal:
        began = time.perf_counter()
        for group in groups:
            journal.append(group)
        took = time.perf_counter() - began
    return sum(map(len, groups)) / took


def verify_rate(folder: Path, *, cores: int) -> float:
    """Return records a second on so many cores, measured in a fresh process."""
    return _child(f"verify-{cores}", folder)


def bare_append_rate(folder: Path, groups: Sequence[Sequence[Record]]) -> float:
    """Return records a second of bare SQLite."""
    folder.mkdir()
    database = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB, hash BLOB)")
    last = b""
    began = time.perf_counter()
    for group in groups:
        rows = []
        for record in group:
            body = orjson.dumps(record._asdict(), option=orjson.OPT_SORT_KEYS)
            last = hashlib.sha256(last + body).digest()
            rows.append((record.seq, body, last))
        database.execute("BEGIN")
        database.executemany("INSERT INTO record VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")
    took = time.perf_counter() - began
    database.close()
    return sum(map(len, groups)) / took


def bare_verify_rate(folder: Path) -> float:
    """Return records a second of bare SQLite on one core, measured in a fresh process."""
    return _child("bare", folder)


def measure(
    *, records: int = 200_000, rounds: int = 3, folder: Path | None = None
) -> dict[str, object]:
    """Return the rates of each round and their medians, journal and bare SQLite in turn.

    Args:
        records: Of each round.
        rounds: Of journal and bare SQLite each.
        folder: On the disk to measure; by default the current one.
    """
    groups = batches(records)
    count = sum(map(len, groups))
    gc.collect()
    gc.freeze()  # the made records are the bench's, not the journal's
    rates: dict[str, list[float]] = {
        name: [] for name in ("append", "bare_append", "verify", "verify_one_core", "bare_verify")
    }
    size_bytes = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder or Path.cwd(), prefix=".bench-") as place:
            ours, bare = Path(place, "journal"), Path(place, "bare")
            rates["append"].append(append_rate(ours, groups))
            rates["bare_append"].append(bare_append_rate(bare, groups))
            rates["verify"].append(verify_rate(ours, cores=2))
            rates["verify_one_core"].append(verify_rate(ours, cores=1))
            rates["bare_verify"].append(bare_verify_rate(bare))
            size_bytes = sum(path.stat().st_size for path in ours.iterdir())
    gc.unfreeze()
    return {
        "records": count,
        "group": GROUP,
        "rounds": rounds,
        "bytes_per_record": round(size_bytes / count),
        **{
            f"{name}_records_per_second": {
                "median": round(statistics.median(values)),
                "all": [round(value) for value in values],
            }
            for name, values in rates.items()
        },
    }


def _child(what: str, folder: Path) -> float:
    """Measure in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "bench.micro.journal", what, str(folder)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return float(result.stdout)


def _time_child(what: str, folder: Path) -> float:
    if what == "verify-2":
        _use_cores(2)
        began = time.perf_counter()
        count = verify(folder).size
        return count / (time.perf_counter() - began)
    _use_cores(1)
    began = time.process_time()
    count = verify(folder).size if what == "verify-1" else _verify_bare(folder)
    return count / (time.process_time() - began)


def _use_cores(count: int) -> None:
    """Pin this process, and those that it starts, to so many cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])


def _verify_bare(folder: Path) -> int:
    database = sqlite3.connect(folder / "bare.sqlite")
    count, last = 0, b""
    for _, body, stored in database.execute("SELECT seq, body, hash FROM record ORDER BY seq"):
        last = hashlib.sha256(last + body).digest()
        if last != stored:
            raise AssertionError(f"record {count} differs")
        count += 1
    return count


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(_time_child(sys.argv[1], Path(sys.argv[2])))
    else:
        print(json.dumps(measure(), indent=2))

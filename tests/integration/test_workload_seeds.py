"""The same source and seed give the same workload in any process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.twin_workload import samples
from tests.unit.twin_workload.samples import write

PROGRAM = """
import hashlib, sys
from bedplate.twin.workload.native import dump
from bedplate.twin.workload.read import read_workload
digest = hashlib.sha256()
for name in sys.argv[1:]:
    for line in dump(read_workload(name, seed=11, limit=300, rate_scale=1.5)):
        digest.update(line)
print(digest.hexdigest())
"""


def test_workloads_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    write(tmp_path, "c-dataset.json", samples.SERVEGEN_DATASET)
    sources = [
        write(tmp_path, "c-trace.csv", samples.SERVEGEN_TRACE),
        write(tmp_path, "a.csv", samples.AZURE),
        write(tmp_path, "b.csv", samples.BURST_2),
        write(tmp_path, "m.jsonl", samples.MOONCAKE),
        write(tmp_path, "t.json", samples.claude_text()),
        write(tmp_path, "l.jsonl", samples.lmcache_text()),
        write(tmp_path, "tau.json", samples.TAU),
        write(tmp_path, "mix.toml", samples.MIX),
    ]
    digests = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, sources)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        digests.add(done.stdout)
    assert len(digests) == 1

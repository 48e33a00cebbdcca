"""Run one job: JSON in, JSON out."""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict

import orjson
import uvloop

from bench.load.drive import Driver, Job


def main() -> None:
    """Read the job from stdin, print its outcome."""
    job = Job(**orjson.loads(sys.stdin.buffer.read()))
    gc.freeze()
    outcome = uvloop.run(Driver(job).run())
    sys.stdout.buffer.write(orjson.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()

"""`bedplate serve`, and on SIGUSR1: collect garbage and write the resident size to a file.

Run: `python -m bench.subjects.serve RSS_FILE [options of bedplate serve]`
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

import orjson

from bedplate.cli.main import main

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def collect_on_signal(path: Path) -> None:
    """Answer SIGUSR1 in `path`: what is free goes back to the system, then the size is read."""
    libc = ctypes.CDLL(None)

    def collect(_number: int, _frame: object) -> None:
        gc.collect()
        libc.malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        new = path.with_suffix(".new")
        new.write_bytes(orjson.dumps({"rss_bytes": pages * PAGE_BYTES}))
        new.replace(path)

    signal.signal(signal.SIGUSR1, collect)


if __name__ == "__main__":
    collect_on_signal(Path(sys.argv[1]))
    sys.argv = ["bedplate", "serve", *sys.argv[2:]]
    main()

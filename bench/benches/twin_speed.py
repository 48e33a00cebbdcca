"""The twin's speed: requests and core events a second, a whole supernode, growth with turns."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.twin import speed

BENCH = Bench(
    name="twin-speed",
    summary="simulated requests and core events a second, a supernode of 384 cards, growth",
    parts=(speed.AZURE, speed.SUPERNODE),
)

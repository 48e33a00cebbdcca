"""How true the twin is to the embedded base."""

from __future__ import annotations

from bench.harness.run import Bench
from bench.live import fidelity

BENCH = Bench(
    name="twin-fidelity",
    summary="agents from two traces on two real cards, and the same in the twin",
    parts=(fidelity.PART,),
)

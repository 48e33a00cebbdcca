"""Times vllm-sr-sim on an Azure trace; run by the interpreter of its own environment.

    python peer_srsim.py TRACE.csv CARDS

One pool of cards of one kind, least queue first, as close to our scenario as it can be set. Reading
the trace is not timed. Prints JSON: requests, completed, seconds.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from datetime import datetime
from pathlib import Path

from fleet_sim.core.fleet import Fleet, FleetConfig, PoolConfig
from fleet_sim.core.request import Request
from fleet_sim.gpu_profiles.profiles import A100_80GB


def _arrivals(path: Path) -> list[tuple[float, Request]]:
    """Its own reader takes seconds as numbers only, the trace has dates."""
    found: list[tuple[float, Request]] = []
    began_s = -1.0
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            began_s = at_s if began_s < 0 else began_s
            request = Request(
                req_id=number,
                arrival_time=at_s - began_s,
                l_in=max(1, int(row["ContextTokens"])),
                l_out=max(1, int(row["GeneratedTokens"])),
                category="prose",
            )
            found.append((request.arrival_time, request))
    return found


def main() -> None:
    """Run once and print what was measured."""
    path, cards = sys.argv[1], int(sys.argv[2])
    arrivals = _arrivals(Path(path))
    pool = PoolConfig(pool_id="all", gpu=A100_80GB, n_gpus=cards, max_ctx=16_384)
    fleet = Fleet(
        FleetConfig(pools=[pool], router_type="LengthRouter", router_kwargs={"threshold": 16_384})
    )
    began = time.process_time()
    result = fleet.run(arrivals)
    seconds = time.process_time() - began
    found = {"requests": len(arrivals), "completed": len(result.completed), "seconds": seconds}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

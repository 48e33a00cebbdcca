"""Memory of an idle session in the whole service, by the slope of its resident size.

Real requests through a running gateway make sessions of three messages (system, user, answer),
which then wait for their tool. The resident size is read at two counts, after a collection; the
slope leaves out what the service needs with no session at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Part, Run
from bench.harness.stats import spread
from bench.spine.site import check_books, drive, engine_site
from bench.subjects.base import Site, Target
from bench.subjects.bedplate import Bedplate

CONNECTIONS = 32
STEP = 2_000
AWAKENED = 100
"""Sessions that go on at the end, to show that they were remembered."""
FULL, QUICK = 20_000, 6_000


def measure(run: Run) -> Mapping[str, Measured]:
    """Repeat with fresh gateways; each gives one slope."""
    repeats, most = (1, QUICK) if run.quick else (3, FULL)
    slopes: list[float] = []
    curves: list[dict[str, int]] = []
    for number in range(repeats):
        with engine_site(run, f"memory-{number}") as site:
            curve = _grow(site, most, label=f"memory.{number}")
        slopes.append((curve[most] - curve[STEP]) / (most - STEP) / 1024)
        curves.append({str(count): size for count, size in curve.items()})
        run.say(f"idle sessions, repeat {number + 1}: {slopes[-1]:.2f} KB each")
    run.rounds["memory"] = {"rss_bytes_by_sessions": [dict(curve) for curve in curves]}
    run.config["memory"] = {"from_sessions": STEP, "to_sessions": most, "turns": 1}
    found = spread(slopes)
    run.figure("idle session KB, repeats", found.text(2))
    against = f"resident size at {STEP:,} and {most:,} sessions of one gateway"
    return {"idle_session_kb": Measured(found.median, found.n, against)}


def _grow(site: Site, most: int, *, label: str) -> dict[int, int]:
    """Return the resident bytes by sessions, in steps."""
    ours = Bedplate()
    curve: dict[int, int] = {}
    with ours.running(site) as target:
        assert target.process is not None
        for done in range(0, most, STEP):
            drive(target, label=label, connections=CONNECTIONS, sessions=STEP, first_session=done)
            count = done + STEP
            if count in (STEP, most) or count == most // 2 // STEP * STEP:
                curve[count] = ours.collected_rss(target.process)
                _check_held(target, count)
        drive(target, label=label, connections=CONNECTIONS, sessions=AWAKENED, first_turn=1)
    books = check_books(ours.data_dir, most + AWAKENED)
    if books["placed"] != {"new": most, "extend": AWAKENED}:
        raise BenchError(f"sessions were not remembered: {books['placed']}")
    return curve


def _check_held(target: Target, count: int) -> None:
    """Make sure that the sessions are held, not forgotten.

    Raises:
        BenchError: the gateway holds another number.
    """
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("bedplate_lane_sessions{")]
    held = sum(int(float(line.rpartition(" ")[2])) for line in lines)
    if held != count:
        raise BenchError(f"the gateway holds {held} sessions of {count}")


PART = Part(
    "memory",
    (
        Spec(
            "idle_session_kb",
            "KB",
            "<= 12",
            "resident memory of the whole service for one more session that waits for its tool",
        ),
    ),
    measure,
)

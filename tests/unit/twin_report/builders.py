"""Small outcomes that tests write by hand, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from bedplate.core.limits import BATCH, INTERACTIVE, default_policy
from bedplate.perf.profile import Batching, CardProfile, LinearCost, MoveCost
from bedplate.twin.outcome import CardRow, Outcome, Sample, SessionRow, TurnRow
from bedplate.twin.site import CardSpec, PoolSpec, Site
from bedplate.twin.workload.form import Session, Turn, Workload

MS = 1_000_000
GIB = 1 << 30


def profile(
    *, running_max: int = 4, weights_ns: float = 8 * MS, token_ns: float = 0.0
) -> CardProfile:
    return CardProfile(
        name="test",
        model="m",
        evidence="measured",
        kv="full",
        can_cut=True,
        slots=8,
        running_max=running_max,
        kv_tokens=10_000,
        context_tokens=8_000,
        kv_bytes_per_token=1_000,
        batching=Batching(token_budget=100),
        step=LinearCost(0.0, weights_ns, token_ns, token_ns, 0.0, 0.0),
        store=MoveCost(0.0, 1.0, stalls=False),
        load=MoveCost(0.0, 1.0, stalls=False),
    )


def site(
    cards: int = 1, *, pool_bytes: int = GIB, weights_ns: float = 8 * MS, token_ns: float = 0.0
) -> Site:
    one = profile(weights_ns=weights_ns, token_ns=token_ns)
    specs = tuple(CardSpec(f"c-{at}", "", one) for at in range(cards))
    pool = PoolSpec(pool_bytes, 1e6, 0.0)
    return Site("test", specs, default_policy(pool_bytes_max=pool_bytes), pool)


def workload(lanes: Sequence[int] = (INTERACTIVE, BATCH), turns: int = 2) -> Workload:
    each = tuple(Turn(0, "", -1, 100, 10) for _ in range(turns))
    sessions = (Session(f"s-{at}", "t", lane, "", 0, None, each) for at, lane in enumerate(lanes))
    return Workload("made", "by hand", tuple(sessions))


def turn(
    session: int,
    number: int,
    arrival: int,
    first: int,
    end: int,
    *,
    queue: int = 0,
    out: int = 11,
    status: str = "stop",
) -> TurnRow:
    """A turn with times in milliseconds; 100 prompt tokens, 40 of them cached."""

    def at(value: int) -> int:
        return value * MS if value >= 0 else -1

    return TurnRow(
        session=session,
        turn=number,
        card="c-0",
        arrival_ns=at(arrival),
        first_ns=at(first),
        end_ns=at(end),
        queue_ns=queue * MS,
        prompt_tokens=100,
        cached_tokens=40,
        out_tokens=out,
        status=status,
    )


def outcome(
    turns: Sequence[TurnRow],
    sessions: Sequence[SessionRow],
    *,
    samples: Sequence[Sample] = (),
    duration: int = 10_000,
) -> Outcome:
    return Outcome(
        name="test",
        seed=7,
        digest="ab" * 32,
        events=60,
        duration_ns=duration * MS,
        wall_s=0.5,
        kv_total_tokens=10_000,
        pool_total_bytes=GIB,
        turns=list(turns),
        sessions=list(sessions),
        cards=[CardRow("c-0", 6_000 * MS, 1_000 * MS, 10_000 * MS, 400, 44, 3, 2, 5_000)],
        samples=list(samples),
        counters={"stores": 3},
    )


def sample(
    at: int,
    *,
    used: int = 0,
    running_kv: int = 0,
    waiting: int = 0,
    running: int = 0,
    moves: int = 0,
) -> Sample:
    return Sample(at * MS, used, running_kv, GIB // 4, waiting, running, waiting + running, moves)

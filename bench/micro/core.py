"""How many events a second one core handles with its digest, and what an idle session costs it.

A seeded load of agents is recorded once against the core: cards that carry out every action after
a delay, sessions that come back after a tool gap. Then the record alone is handed to restored cores
and timed, so that nothing but `Base.handle` is measured; each run must end in the recorded digest.
The mix is counted from the record and reported with the figure.

Run: `python -m bench.micro.core` (prints JSON).
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import statistics
import sys
import time
import tracemalloc
from collections import Counter
from typing import Any

from bedplate.core import actions as act
from bedplate.core import events as ev
from bedplate.core.base import Base
from bedplate.core.ids import BranchId, CardId, ModelId, SessionId, TenantId, TurnId
from bedplate.core.limits import LanePolicy, default_policy
from bedplate.core.snapshot import restore, snapshot
from bedplate.core.units import MILLISECOND_NS, MINUTE_NS, SECOND_NS

START_NS = 1_000_000 * SECOND_NS
BYTES_PER_TOKEN = 5_000
SLOTS, RUNNING_MAX, CARD_TOKENS, CONTEXT_TOKENS = 16, 8, 65_536, 32_768
TENANTS = 16
OUT_MIN, OUT_MAX = 32, 256
"""Output tokens of a turn; its progress is reported every 16. First turns are shorter: warm-up."""
GAP_NS = 100 * SECOND_NS
"""Mean tool gap: with 20,000 sessions about 200 turns arrive a second."""

Record = list[tuple[int, ev.Event]]


class Load:
    """Agents and cards around one core; everything it is told is recorded."""

    def __init__(self, *, cards: int, sessions: int, seed: int, again: bool = True) -> None:
        self.base = Base()
        self.again = again
        self.rng = random.Random(seed)
        self.record: Record = []
        self.heap: list[tuple[int, int, ev.Event]] = []
        self.serial = 0
        self.now = START_NS
        self.context = dict.fromkeys(range(sessions), 0)
        self.turns = 0
        self.orders: dict[TurnId, tuple[int, int]] = {}
        self.actions: Counter[str] = Counter()
        self.stored: dict[int, int] = {}
        self._tell(ev.PolicyChanged(policy()))
        for number in range(cards):
            self._tell(card(number))
        for number in range(sessions):
            self._arrive(number, self.rng.randrange(GAP_NS))

    def run(self, events: int) -> None:
        """Go on until so many events are recorded."""
        while len(self.record) < events:
            self.now, _, event = heapq.heappop(self.heap)
            if isinstance(event, ev.TurnArrived):
                number = int(event.session)
                context = self.context[number]
                self.turns += 1
                prompt = context + 200 if context else 700
                event = event._replace(
                    turn=TurnId(f"{number}.{self.turns}"),
                    prompt_tokens=prompt,
                    reuse_tokens=context,
                )
                self.orders[event.turn] = (number, prompt)
            self._tell(event)

    def waits(self) -> bool:
        """Something other than the timer is still to come."""
        return any(not isinstance(event, ev.TimerFired) for _, _, event in self.heap)

    def _tell(self, event: ev.Event) -> None:
        self.record.append((self.now, event))
        for action in self.base.handle(self.now, event):
            self.actions[type(action).__name__] += 1
            self._do(action)

    def _do(self, action: act.Action) -> None:
        if isinstance(action, act.Dispatch):
            self._dispatch(action)
        elif isinstance(action, act.DropKv):
            self._later(MILLISECOND_NS, ev.KvDropped(action.card, action.slot))
        elif isinstance(action, act.StoreKv):
            tokens = self.context[int(action.session)]
            self.stored[action.entry] = tokens
            size = tokens * BYTES_PER_TOKEN
            stored = ev.KvStored(action.card, action.slot, action.entry, tokens, size)
            self._later(30 * MILLISECOND_NS, stored)
        elif isinstance(action, act.LoadKv):
            tokens = self.stored[action.entry]
            loaded = ev.KvLoaded(action.card, action.slot, action.entry, tokens)
            self._later(12 * MILLISECOND_NS, loaded)
        elif isinstance(action, act.DropEntry):
            self._later(MILLISECOND_NS, ev.EntryDropped(action.entry))
        elif isinstance(action, act.SetTimer):
            self._later(max(0, action.at_ns - self.now), ev.TimerFired())
        elif isinstance(action, act.Settled) and action.turn and self.again:
            self._arrive(int(action.session), self.rng.randrange(2 * GAP_NS))
        elif isinstance(action, (act.Refuse, act.FailTurn)):
            raise AssertionError(f"the load is within the cards' means: {action}")

    def _dispatch(self, order: act.Dispatch) -> None:
        number, prompt = self.orders.pop(order.turn)
        started = MILLISECOND_NS * (prompt - order.expect_cached_tokens) // 4
        self._later(
            started, ev.TurnStarted(order.turn, order.attempt, prompt, order.expect_cached_tokens)
        )
        first = self.context[number] == 0
        out = 16 if first else self.rng.randint(OUT_MIN, OUT_MAX)
        for done in range(16, out, 16):
            at = started + done * 20 * MILLISECOND_NS
            self._later(at, ev.TokensEmitted(order.turn, order.attempt, done))
        kept = prompt + out if prompt + out < CONTEXT_TOKENS // 16 else 0
        self.context[number] = kept
        ended = ev.TurnEnded(
            order.turn,
            order.attempt,
            "stop",
            prompt,
            order.expect_cached_tokens,
            out,
            kept,
            "",
            True,
        )
        self._later(started + out * 20 * MILLISECOND_NS, ended)

    def _arrive(self, number: int, delay_ns: int) -> None:
        event = ev.TurnArrived(
            turn=TurnId(""),
            session=SessionId(str(number)),
            branch=BranchId(0),
            fork_of=-1,
            tenant=TenantId(f"tenant-{number % TENANTS}"),
            lane=number % 3,
            model=ModelId("model"),
            prompt_tokens=1,
            reuse_tokens=0,
            limit_tokens=OUT_MAX,
            resumable=True,
            exact=True,
        )
        self._later(delay_ns, event)

    def _later(self, delay_ns: int, event: ev.Event) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (self.now + delay_ns, self.serial, event))


def policy() -> Any:
    """Lanes whose queues and idle times never bind in this load."""
    lane = LanePolicy(950, 10_000, 60 * MINUTE_NS, 128, 30 * SECOND_NS, 600 * MINUTE_NS)
    return default_policy(pool_bytes_max=10**15)._replace(lanes=(lane, lane, lane))


def card(number: int) -> ev.CardUp:
    """One of many equal cards."""
    return ev.CardUp(
        card=CardId(f"card-{number:03}"),
        model=ModelId("model"),
        partition=f"partition-{number // 8}",
        kv="full",
        can_cut=True,
        slots=SLOTS,
        running_max=RUNNING_MAX,
        kv_tokens=CARD_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        kv_bytes_per_token=BYTES_PER_TOKEN,
    )


def replay(saved: dict[str, Any], rest: Record) -> tuple[float, str]:
    """Hand the rest of a record to a restored core; return CPU seconds and the digest."""
    base = restore(saved)
    gc.collect()
    began = time.process_time()
    for now_ns, event in rest:
        base.handle(now_ns, event)
    return time.process_time() - began, base.digest.hex()


def measure(
    cards: int = 384, sessions: int = 20_000, *, events: int = 150_000, runs: int = 3, seed: int = 1
) -> dict[str, Any]:
    """Return events per CPU second over several runs, the mix, and the digest they agree on.

    The warm-up lasts until the sessions have had their first turns; it is not timed. CPU time,
    since the core is one thread that waits for nothing and other processes may share the machine.
    """
    warm = cards + 7 * sessions
    load = Load(cards=cards, sessions=sessions, seed=seed)
    load.run(warm)
    saved = snapshot(load.base)
    load.run(warm + events)
    timed = load.record[warm:]
    mix = Counter(type(event).__name__ for _, event in timed)
    rates = []
    for _ in range(runs):
        seconds, digest = replay(saved, timed)
        assert digest == load.base.digest.hex(), "the core decides otherwise on the same events"
        rates.append(len(timed) / seconds)
    return {
        "cards": cards,
        "sessions": len(load.base.state.sessions),
        "events": len(timed),
        "runs": runs,
        "events_per_second": round(statistics.median(rates)),
        "events_per_second_min": round(min(rates)),
        "events_per_second_max": round(max(rates)),
        "mix_permille": {k: round(1000 * n / len(timed)) for k, n in mix.most_common()},
        "actions": dict(load.actions.most_common()),
        "digest": load.base.digest.hex(),
    }


def measure_memory(few: int = 2_000, many: int = 20_000, *, cards: int = 384) -> dict[str, Any]:
    """Return bytes that one more idle session costs the core, as the slope between two sizes.

    Every session ran one turn of 700 tokens, its KV is in the pool, and it waits for its tool.
    """
    sizes = {count: _idle_bytes(count, cards) for count in (few, many)}
    slope = (sizes[many] - sizes[few]) / (many - few)
    return {"few": few, "many": many, "bytes": sizes, "bytes_per_idle_session": round(slope)}


def _idle_bytes(sessions: int, cards: int) -> int:
    gc.collect()
    tracemalloc.start()
    base = _idle_base(sessions, cards)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(base.state.sessions) == sessions
    assert not base.state.turns
    return used


def _idle_base(sessions: int, cards: int) -> Base:
    """Let every session run one turn and come to rest."""
    load = Load(cards=cards, sessions=sessions, seed=1, again=False)
    while load.waits():
        load.run(len(load.record) + 1)
        load.record.clear()
    return load.base


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.core", description=__doc__)
    parser.add_argument("--cards", type=int, default=384)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=150_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    result = measure(args.cards, args.sessions, events=args.events, runs=args.runs)
    result["memory"] = measure_memory(many=args.sessions)
    json.dump(result, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())

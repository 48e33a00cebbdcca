"""The virtual card in closed form equals one that goes token by token."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bedplate.core.actions import Dispatch
from bedplate.core.events import Event, TokensEmitted, TurnEnded, TurnStarted
from bedplate.core.ids import BranchId, CardId, SessionId, SlotId, TurnId
from bedplate.perf.profile import Batching, CardProfile, LinearCost
from bedplate.twin.call import Call
from bedplate.twin.card import VirtualCard
from bedplate.twin.heap import CLIENT, FAULT, Heap
from tests.unit.twin.naive_card import Fate, Job, run_naively
from tests.unit.twin.sites import MS, card_profile

SLOTS = 8


class Bench:
    """One virtual card, its heap, and all that it says."""

    def __init__(self, profile: CardProfile, *, progress_tokens: int = 0) -> None:
        self.heap = Heap(0)
        self.said: list[tuple[int, Event]] = []
        self.card = VirtualCard(
            "c0",
            "p0",
            profile,
            memo={},
            heap=self.heap,
            tell=lambda event: self.said.append((self.heap.now_ns, event)),
            start_move=lambda move: None,
            progress_tokens=progress_tokens,
        )
        self.card.start(heard=False)

    def at(self, at_ns: int, what: object) -> None:
        self.heap.at(at_ns, CLIENT, lambda _: what(), None)  # type: ignore[operator]

    def dispatch(self, job: Job, *, limit: int | None = None) -> Call:
        call = Call(0, 0, SessionId(job.name), 0)
        call.turn = TurnId(job.name)
        call.prompt_tokens = job.prompt_tokens
        call.reuse_tokens = job.cached_tokens
        call.out_tokens = job.out_tokens
        order = Dispatch(
            call.turn,
            1,
            call.session,
            BranchId(0),
            CardId("c0"),
            SlotId(job.slot),
            job.cached_tokens,
            False,
            limit or job.out_tokens,
            0,
        )
        self.at(job.at_ns, lambda: self.card.dispatch(order, call))
        if job.cancel_ns >= 0:
            self.at(max(job.cancel_ns, job.at_ns), lambda: self.card.cancel(call.turn, 1))
        return call

    def run(self) -> int:
        """Run until nothing is left to happen; return how often something did."""
        count = 0
        while self.heap.entries:
            at_ns, _, _, fire, argument = heapq.heappop(self.heap.entries)
            self.heap.now_ns = at_ns
            fire(argument)
            count += 1
        return count

    def fates(self) -> dict[str, Fate]:
        fates: dict[str, Fate] = {}
        for at_ns, event in self.said:
            if isinstance(event, TurnStarted):
                fates[event.turn] = Fate(started_ns=at_ns)
            elif isinstance(event, TurnEnded):
                fate = fates.setdefault(event.turn, Fate())
                fate.ended_ns, fate.status = at_ns, event.status
                fate.out_tokens = event.out_tokens
        return fates


sixty_fourths = st.integers(0, 64 * 5_000).map(lambda n: n / 64)
costs = st.builds(
    LinearCost,
    launch_ns=st.integers(128, 64 * 100_000).map(lambda n: n / 64),
    weights_ns=sixty_fourths,
    prompt_ns=sixty_fourths,
    sequence_ns=sixty_fourths,
    pair_ns=st.sampled_from((0.0, 1 / 64, 0.5, 3.0)),
    context_ns=st.sampled_from((0.0, 1 / 64, 0.75, 40.0)),
)
batchings = st.builds(
    Batching,
    token_budget=st.integers(SLOTS, 40),
    mixed=st.booleans(),
    prompts_max=st.integers(0, 3),
    order=st.sampled_from(("arrival", "slot")),
)
profiles = st.builds(
    lambda batching, step, begin, end, cell: replace(
        card_profile(), batching=batching, step=step, begin_ns=begin, end_ns=end, cell_ns=cell
    ),
    batchings,
    costs,
    sixty_fourths,
    sixty_fourths,
    st.sampled_from((0.0, 1 / 64, 0.5)),
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    made = []
    for slot in draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, SLOTS))]:
        prompt = draw(st.integers(1, 150))
        at_ns = draw(st.integers(0, 2_000_000))
        cancel_ns = -1
        if draw(st.integers(0, 3)) == 0:
            cancel_ns = at_ns + draw(st.integers(0, 1_000_000))
        out = draw(st.integers(1, 60))
        made.append(Job(f"t{slot}", at_ns, slot, prompt, 0, out, cancel_ns))
        made[-1].cached_tokens = draw(st.integers(0, prompt - 1))
    return made


@settings(max_examples=200, deadline=None)
@given(
    profile=profiles,
    load=jobs(),
    slow=st.lists(
        st.tuples(st.integers(0, 3_000_000), st.sampled_from((0.5, 1.0, 1.5, 4.0))), max_size=3
    ),
)
def test_closed_form_equals_token_by_token(
    profile: CardProfile, load: list[Job], slow: list[tuple[int, float]]
) -> None:
    slow.sort()
    load.sort(key=lambda job: job.at_ns)
    bench = Bench(profile)
    for at_ns, factor in slow:
        bench.heap.at(at_ns, FAULT, bench.card.slow_down, factor)
    for job in load:
        bench.dispatch(job)
    bench.run()
    assert bench.fates() == run_naively(profile, load, slow)


@settings(max_examples=60, deadline=None)
@given(profile=profiles, load=jobs())
def test_progress_reports_change_no_time(profile: CardProfile, load: list[Job]) -> None:
    quiet, telling = Bench(profile), Bench(profile, progress_tokens=1)
    for job in load:
        quiet.dispatch(job)
        telling.dispatch(job)
    quiet.run()
    telling.run()
    assert telling.fates() == quiet.fates()


def test_progress_comes_after_16_tokens_and_a_quarter_of_a_second() -> None:
    bench = Bench(card_profile(), progress_tokens=16)
    bench.dispatch(Job("t", 0, 0, 200, 0, 100))
    bench.run()
    told = [(at, e.out_tokens) for at, e in bench.said if isinstance(e, TokensEmitted)]
    # Steps of a little over 10 ms: 25 of them pass in 250 ms, so time decides and not the tokens.
    assert [out for _, out in told] == [26, 51, 76]
    times = [at for at, _ in told]
    assert all(later - sooner >= 250 * MS for sooner, later in pairwise(times))


def test_the_work_does_not_grow_with_the_tokens() -> None:
    counts = []
    for out in (100, 100_000):
        bench = Bench(card_profile())
        for slot in range(4):
            bench.dispatch(Job(f"t{slot}", slot * 1000, slot, 500, 0, out))
        counts.append(bench.run())
    assert counts[0] == counts[1] < 30

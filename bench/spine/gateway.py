"""What the gateway costs: requests a second at its limit, time added at 200 requests a second.

Everything is on: credentials, recognition, core, journal on disk, metering. The gateway has one
core; engine and load share the other. Subjects are measured in turn within one run, several rounds,
so that what the machine does meanwhile meets them all. Every answer is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Json, Part, Run
from bench.harness.stats import Spread, quantile, spread
from bench.load.workload import text_hash
from bench.spine.site import check_books, drive, engine_site
from bench.subjects.base import Subject, Target
from bench.subjects.bedplate import Bedplate, config_json
from bench.subjects.peers import LiteLLM, VllmRouter
from bench.subjects.plain import BareRelay, NoGateway

RATE = 200.0
CONNECTIONS = 32
GROWING_TURNS = 5
SHARES = (("p50", 0.5), ("p99", 0.99))
CRAWL_RPS = 50.0
"""A subject below this is measured over one session a connection, however long that takes."""
SLOW_RPS = 300.0
"""A subject below this gets no open load: it would only queue."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long is measured."""

    rounds: int
    warm_s: float
    measure_s: float


FULL = Plan(rounds=5, warm_s=1.0, measure_s=5.0)
QUICK = Plan(rounds=1, warm_s=0.5, measure_s=4.0)


@dataclass(slots=True)
class Rates:
    """Requests a second by subject, and processor time of the subject per request."""

    first: dict[str, list[float]] = field(default_factory=dict)
    growing: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)


Times = dict[str, list[dict[str, float]]]
"""By subject and round: p50 and p99, to first and to last byte."""


class Bout:
    """One set of subjects on one site."""

    def __init__(self, run: Run, plan: Plan, targets: Sequence[Target]) -> None:
        self._run = run
        self._plan = plan
        self.targets = list(targets)
        self._jobs = 0
        self._crawling: set[str] = set()
        self.asked: dict[str, int] = {}

    def rates(self) -> Rates:
        """Measure how much each subject does at most, one after the other, in rounds."""
        found = Rates()
        self._wake(found)
        for number in range(self._plan.rounds):
            for target in list(self.targets):
                self._guarded(target, found, lambda target: self._rate(target, found))
            self._run.say(f"round {number + 1}: " + _latest(found.first))
        return found

    def _wake(self, found: Rates) -> None:
        """Let each subject answer once on every connection: some finish starting only then."""
        for target in list(self.targets):
            self._guarded(target, found, self._wake_one)

    def _wake_one(self, target: Target) -> None:
        self._drive(target, sessions=CONNECTIONS)
        _, answered, _, seconds = self._drive(target, sessions=CONNECTIONS)
        if len(answered) / seconds < CRAWL_RPS:
            self._crawling.add(target.name)

    def _guarded(self, target: Target, found: Rates, do: Callable[[Target], object]) -> None:
        try:
            do(target)
        except BenchError as error:
            if target.name == Bedplate.name:
                raise
            self._leave_out(target, found, error)

    def _rate(self, target: Target, found: Rates) -> None:
        before = target.process.cpu_seconds() if target.process else 0.0
        asked, rate = self._closed(target, turns=1)
        if target.process:
            used = (target.process.cpu_seconds() - before) * 1e3 / asked
            found.cpu_ms.setdefault(target.name, []).append(used)
        found.first.setdefault(target.name, []).append(rate)
        _, rate = self._closed(target, turns=GROWING_TURNS)
        found.growing.setdefault(target.name, []).append(rate)

    def _leave_out(self, target: Target, found: Rates, error: BenchError) -> None:
        """A subject beside us that fails is no reason to say nothing about us."""
        self.targets.remove(target)
        for values in (found.first, found.growing, found.cpu_ms):
            values.pop(target.name, None)
        self._run.say(f"{target.name} is left out from here: {error}")
        self._run.figure(target.name, f"left out, it failed: {str(error)[:300]}")

    def times(self, targets: Sequence[Target], arrivals: str) -> Times:
        """Measure how long answers take at 200 requests a second; one seed, one row of arrivals."""
        found: Times = {target.name: [] for target in targets}
        for number in range(self._plan.rounds):
            for target in targets:
                outcome = self._drive(
                    target, mode="open", rate=RATE, arrivals=arrivals, seed=self._seed(number)
                )
                found[target.name].append(
                    {
                        f"{end}_{name}": quantile(values, share)
                        for end, values in (("first", outcome[1]), ("last", outcome[2]))
                        for name, share in SHARES
                    }
                )
        return found

    def _closed(self, target: Target, *, turns: int) -> tuple[int, float]:
        # In a window of seconds a crawling subject may end nothing, or all it has at once.
        sessions = CONNECTIONS if target.name in self._crawling else 0
        asked, first, _, seconds = self._drive(target, turns=turns, sessions=sessions)
        return asked, len(first) / seconds

    def _drive(self, target: Target, **job: object) -> tuple[int, list[float], list[float], float]:
        self._jobs += 1
        outcome = drive(
            target,
            label=f"case-{self._jobs}",
            connections=CONNECTIONS,
            warm_s=self._plan.warm_s,
            measure_s=self._plan.measure_s,
            **job,
        )
        self.asked[target.name] = self.asked.get(target.name, 0) + outcome.asked
        if not outcome.measured:
            raise BenchError(f"{target.name} gave no answer in {outcome.seconds:.1f} s")
        return outcome.asked, outcome.first_ms, outcome.last_ms, outcome.seconds

    def _seed(self, number: int) -> int:
        return self._run.seeds[number % len(self._run.seeds)]


def measure(run: Run) -> Mapping[str, Measured]:
    """Measure the gateway, a bare relay, no gateway and the peers."""
    plan = QUICK if run.quick else FULL
    ours = Bedplate()
    _describe(run, plan)
    with ExitStack() as started:
        targets = [_start(run, subject, started) for subject in (ours, NoGateway(), BareRelay())]
        targets += _peers(run, started)
        bout = Bout(run, plan, targets)
        rates = bout.rates()
        quick = [
            t for t in bout.targets if max(rates.first[t.name]) >= SLOW_RPS or t.name == ours.name
        ]
        pair = [t for t in quick if t.name in (ours.name, NoGateway.name)]
        times = {"poisson": bout.times(quick, "poisson"), "even": bout.times(pair, "even")}
    _keep(run, rates, times)
    books = check_books(ours.data_dir, bout.asked[ours.name])
    run.figure("bill --check", f"0 tokens unexplained over {books['turns']:,} turns")
    run.figure("sessions as recognised", str(books["placed"]))
    return _claims(run, rates, times)


def _start(run: Run, subject: Subject, started: ExitStack) -> Target:
    """Start a subject and its engine; both stop with `started`."""
    site = started.enter_context(engine_site(run, subject.name))
    return started.enter_context(subject.running(site))


def _peers(run: Run, started: ExitStack) -> list[Target]:
    """Start the peers that can be; say which cannot."""
    if not run.peers:
        run.figure("peers", "left out by --no-peers")
        return []
    makers: tuple[tuple[str, Callable[[], Subject]], ...] = (
        ("vllm-router", lambda: VllmRouter(run.cache)),
        ("LiteLLM", lambda: LiteLLM(run.cache)),
    )
    found: list[Target] = []
    for name, make in makers:
        run.say(f"{name}: installing where it is not yet, and starting")
        try:
            found.append(_start(run, make(), started))
        except BenchError as error:
            run.say(f"{name} is left out: {error}")
            run.figure(name, f"left out: {str(error)[:300]}")
    return found


def _claims(run: Run, rates: Rates, times: Mapping[str, Times]) -> dict[str, Measured]:
    name, none = Bedplate.name, NoGateway.name
    mine = spread(rates.first[name])
    others = {other: spread(values) for other, values in rates.first.items() if other != name}
    beside = "; ".join(
        f"{other} {found.median:,.0f} ({mine.median / found.median:.2f}×)"
        for other, found in others.items()
    )
    for other in rates.first:
        text = f"first turns {spread(rates.first[other]).text(0)}"
        text += f", growing sessions {spread(rates.growing[other]).text(0)}"
        if other in rates.cpu_ms:
            text += f", CPU {spread(rates.cpu_ms[other]).median:.2f} ms a request"
        run.figure(f"{other}, requests/s", text)
    for kind, by_subject in times.items():
        for other in by_subject:
            if other != none:
                texts = [
                    f"{end} byte {share} {_added(by_subject, other, f'{end}_{share}').text(2)}"
                    for end in ("first", "last")
                    for share, _ in SHARES
                ]
                run.figure(f"{other}, ms added at {RATE:.0f}/s, {kind}", ", ".join(texts))
    poisson = times["poisson"]
    p50, p99 = (_added(poisson, name, f"first_{share}") for share, _ in SHARES)
    direct = {share: spread([r[f"first_{share}"] for r in poisson[none]]) for share, _ in SHARES}
    return {
        "gateway_rps": Measured(mine.median, mine.n, beside),
        "gateway_first_byte_p50_ms": Measured(
            p50.median, p50.n, f"no gateway: {direct['p50'].median:.2f} ms, same arrivals"
        ),
        "gateway_first_byte_p99_ms": Measured(
            p99.median, p99.n, f"no gateway: {direct['p99'].median:.2f} ms, same arrivals"
        ),
    }


def _added(times: Times, name: str, key: str) -> Spread:
    """Return what a subject adds to no gateway, round by round over the same arrivals."""
    pairs = zip(times[name], times[NoGateway.name], strict=True)
    return spread([through[key] - direct[key] for through, direct in pairs])


def _describe(run: Run, plan: Plan) -> None:
    run.config["gateway"] = {
        "bedplate": config_json(),
        "rounds": plan.rounds,
        "warm_up_seconds": plan.warm_s,
        "measured_seconds": plan.measure_s,
        "connections": CONNECTIONS,
        "growing_turns": GROWING_TURNS,
        "open_rate": RATE,
        "workload_sha256": text_hash(),
    }


def _keep(run: Run, rates: Rates, times: Mapping[str, Times]) -> None:
    def lists(values: Mapping[str, list[float]]) -> Json:
        return {name: [round(value, 2) for value in found] for name, found in values.items()}

    run.rounds["gateway"] = {
        "first_turns_rps": lists(rates.first),
        "growing_sessions_rps": lists(rates.growing),
        "cpu_ms_a_request": lists(rates.cpu_ms),
        "open_ms": {
            kind: {
                name: [{key: round(value, 3) for key, value in one.items()} for one in rounds]
                for name, rounds in by_subject.items()
            }
            for kind, by_subject in times.items()
        },
    }


def _latest(rates: Mapping[str, list[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items())


PART = Part(
    "gateway",
    (
        Spec(
            "gateway_rps",
            "requests/s",
            ">= 500",
            "streamed first turns that the gateway serves on one core, everything on",
        ),
        Spec(
            "gateway_first_byte_p50_ms",
            "ms",
            "<= 1.5",
            "median time to the first event through the gateway, less that without, at 200/s",
        ),
        Spec(
            "gateway_first_byte_p99_ms",
            "ms",
            "<= 8",
            "the same at the 99th percentile",
        ),
    ),
    measure,
)

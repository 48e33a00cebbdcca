"""The twin against what really happened: a recorded journal's load, run again in virtual time.

Cards, slots, KV room and policy are those that the journal names, and cards go and come when they
did. How long things take comes from a card profile. Both sides are then added up by the same code
(`report.lane_reports`), over the same sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from bedplate.core.events import CardUp
from bedplate.core.limits import Policy
from bedplate.errors import ConfigError
from bedplate.perf import profile_file
from bedplate.perf.profile import CardProfile
from bedplate.twin.against_journal import (
    Recording,
    journal_folder,
    live_outcome,
    read_recording,
)
from bedplate.twin.outcome import Outcome
from bedplate.twin.report import LaneReport, lane_reports
from bedplate.twin.run import simulate
from bedplate.twin.scenario import built_in_profiles, profile_path
from bedplate.twin.site import NO_POOL, CardSpec, PoolSpec, Site
from bedplate.twin.spread import Spread
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.read import read_workload

PROGRESS_TOKENS = 16
"""As the live service reports progress."""
HIT_SHARE = "hit share"
"""The one measure that is no time."""
_UNSHARED_BYTES_PER_S = 1e15
"""Bandwidth of a pool in the memory of the host: no move is slower for another."""


class Line(NamedTuple):
    """One measure of one lane.

    Times in seconds, `error` their difference as a share of the live one; of `hit share`, which is
    a share itself, the difference. None where there is no live value to compare with.
    """

    lane: str
    measure: str
    n_live: int
    n_twin: int
    live: float
    twin: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Live against twin. `notes` say what the twin leaves out.

    `profile` is the name in the profile, `profile_file` where that was found, `evidence` what its
    times rest on.
    """

    journal: str
    sessions: int
    turns: int
    profile: str
    profile_file: str
    evidence: str
    seed: int
    digest: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """Return all of it as JSON values."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**found, "lines": [line._asdict() for line in self.lines]}


def compare(
    path: Path,
    *,
    profile: str | None = None,
    seed: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Run the load of a journal in the twin and compare.

    Args:
        path: The journal's folder, or the data folder above it.
        profile: A profile file or a built-in profile; None takes the built-in one for the model.
        seed: As of `simulate`.
        progress: Hears of the share that is done, 0 to 1.

    Raises:
        InvalidRequest: there is no journal, or nothing ran in it.
        ConfigError: no profile for the model is known, or the cards cannot be simulated.
        JournalError: the journal cannot be read.
    """
    folder = journal_folder(path)
    found = read_recording(folder)
    workload = read_workload(folder, format="journal", seed=seed)
    site = recorded_site(found, profile, name=str(path))
    live = live_outcome(found, workload, str(path))
    twin = simulate(
        site,
        workload,
        seed=seed,
        faults=list(found.faults()),
        samples=100,
        progress=progress,
        close_sessions=found.closes,
    )
    used = site.cards[0].profile
    file = profile_for(used.model, profile)
    return Comparison(
        journal=str(path),
        sessions=len(live.sessions),
        turns=len(live.turns),
        profile=used.name,
        profile_file="built in" if file in built_in_profiles().values() else str(file),
        evidence=used.evidence,
        seed=seed,
        digest=twin.digest,
        lines=tuple(compare_outcomes(live, twin, workload)),
        notes=tuple(_notes(found)),
    )


def recorded_site(found: Recording, profile: str | None, *, name: str) -> Site:
    """Return the site that a journal describes, timed by a profile; raises as `compare`."""
    assert found.policy is not None
    timed: dict[str, CardProfile] = {}
    cards = []
    for card, up in found.cards.items():
        if up.model not in timed:
            timed[up.model] = profile_file.load(profile_for(up.model, profile))
        cards.append(CardSpec(card, up.partition, as_recorded(timed[up.model], up)))
    return Site(
        name=name,
        cards=tuple(cards),
        policy=found.policy,
        pool=pool_of(found.policy),
        progress_tokens=PROGRESS_TOKENS,
    )


def pool_of(policy: Policy) -> PoolSpec:
    """Return the pool of a recorded run: in the memory of the host, so that moves share nothing."""
    size = policy.pool_bytes_max
    return PoolSpec(size, _UNSHARED_BYTES_PER_S, 0.0) if size else NO_POOL


def compare_outcomes(live: Outcome, twin: Outcome, workload: Workload) -> Iterator[Line]:
    """Yield every measure of every lane, and of all lanes if there are several."""
    pairs = [
        (one, other)
        for one, other in zip(
            lane_reports(live, workload, slo_factor=1.0),
            lane_reports(twin, workload, slo_factor=1.0),
            strict=True,
        )
    ]
    for one, other in pairs if len(pairs) > 2 else pairs[:1]:
        yield from _lane_lines(one, other)


def _lane_lines(live: LaneReport, twin: LaneReport) -> Iterator[Line]:
    wanted: Sequence[tuple[str, Spread | None, Spread | None, tuple[str, ...]]] = (
        ("session", live.times.session, twin.times.session, ("mean", "p50", "p95")),
        ("TTFT", live.times.ttft, twin.times.ttft, ("mean", "p50", "p95")),
        ("turn", live.times.turn, twin.times.turn, ("mean", "p95")),
        ("queue", live.times.queue, twin.times.queue, ("mean",)),
    )
    for name, one, other, measures in wanted:
        if one is None or other is None:
            continue
        for measure in measures:
            real: float = getattr(one, measure)
            simulated: float = getattr(other, measure)
            error = simulated / real - 1 if real > 0 else None
            yield Line(live.lane, f"{name} {measure}", one.n, other.n, real, simulated, error)
    hit, simulated = live.tokens.hit_share, twin.tokens.hit_share
    yield Line(
        live.lane, HIT_SHARE, live.turns_done, twin.turns_done, hit, simulated, simulated - hit
    )


def profile_for(model: str, which: str | None) -> Path:
    """Return the file of the profile that times a model's cards: that named, or the built-in one.

    Raises:
        ConfigError: it is not there, or not one built-in profile alone is for the model.
    """
    if which is not None:
        return profile_path(which, Path())
    known = built_in_profiles()
    fitting = [name for name, path in known.items() if profile_file.load(path).model == model]
    if len(fitting) != 1:
        names = ", ".join(fitting) or "none"
        raise ConfigError(
            f"which profile times the model {model}? Built-in ones for it: {names}. Name one with "
            "--profile; `bedplate calibrate` measures one"
        )
    return known[fitting[0]]


def as_recorded(profile: CardProfile, up: CardUp) -> CardProfile:
    """Return the profile's times with the sizes that the card had."""
    return replace(
        profile,
        model=up.model,
        kv=up.kv,
        can_cut=up.can_cut,
        slots=up.slots,
        running_max=up.running_max,
        kv_tokens=up.kv_tokens,
        context_tokens=up.context_tokens,
        kv_bytes_per_token=up.kv_bytes_per_token,
        prompt_streams=up.prompt_streams,
        running_busy=up.running_busy,
    )


def _notes(found: Recording) -> Iterator[str]:
    if found.drained:
        cards = ", ".join(dict.fromkeys(found.drained))
        yield f"{cards} was drained in the recorded run; the twin goes on using it"
    if found.restarts:
        yield f"the service restarted {found.restarts} times; the twin only loses its cards then"
    left_out = sum(not turn.ran for turn in found.turns.values())
    if left_out:
        yield f"{left_out} turns without an answer are left out on both sides"

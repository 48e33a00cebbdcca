"""Refine a card profile by a recorded run: the whole service's times in place of a card's alone.

`bedplate calibrate` measures cards that do nothing else. In service they share processors with the
gateway, the clients and each other, and small prompts are most of their work. A recorded run tells
by how much prompts and decoding differ then, and by how much more while other cards of the host
compute, and how long a turn takes to begin; the profile keeps its shape.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bedplate.errors import ConfigError
from bedplate.perf.profile import CardProfile, LinearCost
from bedplate.perf.profile_file import ProfileFile
from bedplate.twin.against import PROGRESS_TOKENS, as_recorded, pool_of
from bedplate.twin.against_journal import journal_folder, live_outcome, read_recording
from bedplate.twin.outcome import Outcome, TurnRow
from bedplate.twin.run import simulate
from bedplate.twin.site import CardSpec, Site
from bedplate.twin.workload.read import read_workload

ROUNDS = 6
"""Corrections; each runs the load once. The factors hardly move after the fourth."""
CONTENTIONS = tuple(number / 8 for number in range(13))
"""Values of `contention` that are tried where cards share a host, up to 1.5."""


class Factors(NamedTuple):
    """By what a profile's times were multiplied."""

    prompts: float
    decoding: float


def refine_file(file: ProfileFile, journal: Path) -> tuple[ProfileFile, Factors]:
    """Refine the profile of a file; what the file says of its making stays, with a note of this.

    Raises and costs as `refine`.
    """
    refined = refine(file.profile, journal)
    factors = factors_of(file.profile, refined)
    made = file.calibration
    if made is not None:
        note = (
            f"refined by {journal}: prompts × {factors.prompts:.4g}, decoding × "
            f"{factors.decoding:.4g}; begin {refined.begin_ns / 1e6:.3g} ms, contention "
            f"{refined.contention:g}; the errors are those before"
        )
        made = made.model_copy(update={"notes": (*made.notes, note)})
    return ProfileFile(refined, made, file.errors), factors


def factors_of(before: CardProfile, after: CardProfile) -> Factors:
    """Return by what refining multiplied; 1 where there is nothing to multiply."""
    old, new = before.step, after.step
    assert isinstance(old, LinearCost)
    assert isinstance(new, LinearCost)
    prompts, decoding = old.prompt_ns + old.pair_ns, _decoding_ns(old)
    return Factors(
        (new.prompt_ns + new.pair_ns) / prompts if prompts else 1.0,
        _decoding_ns(new) / decoding if decoding else 1.0,
    )


def _decoding_ns(step: LinearCost) -> float:
    return step.launch_ns + step.weights_ns + step.sequence_ns + step.context_ns


def refine(profile: CardProfile, journal: Path, *, seed: int = 1) -> CardProfile:
    """Return the profile with which the twin takes as long as the recorded run did.

    `begin_ns` is set, and prompt times (`prompt_ns`, `pair_ns`) are scaled, so that the mean time
    from dispatch to first token agrees both of turns with few prompt tokens to compute and of those
    with many; the times of every step and of decoding so that the mean from first token to end
    does. Where several cards were in one partition, `contention` is the value of `CONTENTIONS` with
    which, so corrected, turns come nearest to the recorded ones, one by one. Use the profile on
    other runs than this one to learn how true it is.

    Raises:
        ConfigError: the profile's step is no `LinearCost`.
        InvalidRequest, JournalError: as `against.compare`.

    Cost: `ROUNDS` runs of the load, for each contention that is tried.
    """
    folder = journal_folder(journal)
    found = read_recording(folder)
    workload = read_workload(folder, format="journal", seed=seed)
    live = live_outcome(found, workload, str(journal))
    policy = found.policy
    assert policy is not None

    def run(profile: CardProfile) -> Outcome:
        specs = tuple(
            CardSpec(card, up.partition, as_recorded(profile, up))
            for card, up in found.cards.items()
        )
        site = Site("recorded", specs, policy, pool_of(policy), progress_tokens=PROGRESS_TOKENS)
        faults = list(found.faults())
        return simulate(site, workload, seed=seed, faults=faults, close_sessions=found.closes)

    partitions = [up.partition for up in found.cards.values()]
    if len(set(partitions)) == len(partitions):
        return _fitted(profile, live, run)[0]
    tried = (_fitted(replace(profile, contention=c), live, run) for c in CONTENTIONS)
    return min(tried, key=lambda found: found[1])[0]


def _fitted(
    profile: CardProfile, live: Outcome, run: Callable[[CardProfile], Outcome]
) -> tuple[CardProfile, float]:
    """Return the profile scaled to a recorded run, and how far its turns are off on average."""
    for _ in range(ROUNDS):
        profile = _corrected(profile, _times(live), _times(run(profile)))
    return profile, _distance(live, run(profile))


def _distance(live: Outcome, twin: Outcome) -> float:
    """Return the mean |log| of the ratio of turns' times on their card, of those that both ran."""
    ran = {(row.session, row.turn): row for row in twin.turns if row.end_ns >= 0}
    return statistics.fmean(
        abs(math.log(_run_ns(ran[row.session, row.turn]) / _run_ns(row)))
        for row in live.turns
        if (row.session, row.turn) in ran
    )


def _run_ns(row: TurnRow) -> int:
    return max(1, row.end_ns - row.arrival_ns - row.queue_ns)


class _Times(NamedTuple):
    """Mean nanoseconds from dispatch to first token, and from there to the end.

    Apart for the turns that computed few prompt tokens, up to the middle one, and the others.
    """

    few_ns: float
    many_ns: float
    decode_ns: float


def _times(outcome: Outcome) -> _Times:
    rows = [row for row in outcome.turns if row.first_ns >= 0 and row.end_ns >= 0]
    new = {(row.session, row.turn): row.prompt_tokens - row.cached_tokens for row in rows}
    middle = statistics.median(new.values())
    few: list[int] = []
    many: list[int] = []
    for row in rows:
        prompt_ns = row.first_ns - row.arrival_ns - row.queue_ns
        (few if new[row.session, row.turn] <= middle else many).append(prompt_ns)
    return _Times(
        statistics.fmean(few),
        statistics.fmean(many or few),
        max(1.0, statistics.fmean(row.end_ns - row.first_ns for row in rows)),
    )


def _corrected(profile: CardProfile, live: _Times, twin: _Times) -> CardProfile:
    """Return the profile with which the means would agree, were they linear in it."""
    step = profile.step
    if not isinstance(step, LinearCost):
        raise ConfigError(f"profile {profile.name}: only one with a linear step can be refined")
    spread = twin.many_ns - twin.few_ns
    prompts = (live.many_ns - live.few_ns) / spread if spread > 0 else 0.0
    if prompts <= 0:  # all prompts are about equal: they tell of no beginning
        prompts = (live.few_ns + live.many_ns) / (twin.few_ns + twin.many_ns)
    begin_ns = live.few_ns - prompts * (twin.few_ns - profile.begin_ns)
    decoding = live.decode_ns / twin.decode_ns
    return replace(
        profile,
        evidence="fitted",
        begin_ns=max(0.0, begin_ns),
        step=replace(
            step,
            prompt_ns=step.prompt_ns * prompts,
            pair_ns=step.pair_ns * prompts,
            launch_ns=step.launch_ns * decoding,
            weights_ns=step.weights_ns * decoding,
            sequence_ns=step.sequence_ns * decoding,
            context_ns=step.context_ns * decoding,
        ),
    )

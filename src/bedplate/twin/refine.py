"""Refine a card profile by a recorded run: the whole service's times in place of a card's alone.

`bedplate calibrate` measures cards that do nothing else. In service they share processors with the
gateway, the clients and each other, and small prompts are most of their work. A recorded run tells
by how much prompts and decoding differ then; the profile keeps its shape, two factors are fitted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bedplate.errors import ConfigError
from bedplate.perf.profile import CardProfile, LinearCost
from bedplate.perf.profile_file import ProfileFile
from bedplate.twin.against import PROGRESS_TOKENS, as_recorded, pool_of
from bedplate.twin.against_journal import journal_folder, live_outcome, read_recording
from bedplate.twin.outcome import Outcome
from bedplate.twin.run import simulate
from bedplate.twin.site import CardSpec, Site
from bedplate.twin.workload.read import read_workload

ROUNDS = 6
"""Corrections; each runs the load once. The factors hardly move after the fourth."""


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
            f"{factors.decoding:.4g}; the errors are those before"
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
    """Return the profile with which the twin takes as long as the recorded run did, on average.

    Prompt times (`prompt_ns`, `pair_ns`) are scaled so that the mean time from dispatch to first
    token agrees, the times of every step and of decoding so that the mean time from first token to
    end does. Use it on other runs than this one to learn how true it is.

    Raises:
        ConfigError: the profile's step is no `LinearCost`.
        InvalidRequest, JournalError: as `against.compare`.

    Cost: `ROUNDS` runs of the load.
    """
    folder = journal_folder(journal)
    found = read_recording(folder)
    workload = read_workload(folder, format="journal", seed=seed)
    prompt_ns, decode_ns = _times(live_outcome(found, workload, str(journal)))
    assert found.policy is not None
    for _ in range(ROUNDS):
        specs = tuple(
            CardSpec(card, up.partition, as_recorded(profile, up))
            for card, up in found.cards.items()
        )
        site = Site(
            "recorded", specs, found.policy, pool_of(found.policy), progress_tokens=PROGRESS_TOKENS
        )
        twin = simulate(
            site, workload, seed=seed, faults=list(found.faults()), close_sessions=found.closes
        )
        twin_prompt_ns, twin_decode_ns = _times(twin)
        profile = _scaled(profile, prompt_ns / twin_prompt_ns, decode_ns / twin_decode_ns)
    return profile


def _times(outcome: Outcome) -> tuple[float, float]:
    """Return mean nanoseconds from dispatch to first token, and from there to the end."""
    rows = [row for row in outcome.turns if row.first_ns >= 0 and row.end_ns >= 0]
    prompt = sum(row.first_ns - row.arrival_ns - row.queue_ns for row in rows)
    decode = sum(row.end_ns - row.first_ns for row in rows)
    return max(1.0, prompt / len(rows)), max(1.0, decode / len(rows))


def _scaled(profile: CardProfile, prompts: float, decoding: float) -> CardProfile:
    step = profile.step
    if not isinstance(step, LinearCost):
        raise ConfigError(f"profile {profile.name}: only one with a linear step can be refined")
    return replace(
        profile,
        evidence="fitted",
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

"""How true the twin is to the embedded base: the same load live, live again, and in the twin.

The card profile comes from `bedplate calibrate`, its two scales from the journal of one load
(`twin.refine`). Then other loads, agents from two traces at two rates, and one with a card that is
pulled out in the middle, are played over HTTP against two real cards. The journal of each play is
run again in the twin. Each load is played twice: what two live plays differ by is no error of the
twin.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bedplate import compiled
from bedplate.perf import profile_file
from bedplate.twin import against
from bedplate.twin.against_journal import Recording, live_outcome, read_recording
from bedplate.twin.outcome import Outcome
from bedplate.twin.refine import refine
from bedplate.twin.run import simulate
from bedplate.twin.workload import transform
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.read import read_workload
from bench.harness.claims import Measured, Spec
from bench.harness.run import BenchError, Json, Part, Run
from bench.harness.stats import quantile
from bench.live.base import LANES, MODEL, Embedded, LiveBase, live_base, model_file
from bench.live.player import Player
from bench.twin.speed import trace
from tests.fakes.tiny_gguf import Shape

SHAPE = Shape(layers=4, hidden=512, heads=8, kv_heads=8, vocab=4096)
ENGINE = {"slots": 16, "running_max": 2, "kv_tokens": 16_384, "heartbeat_seconds": 0.5}
TENANT = "bench"
SESSIONS = 200
CALIBRATE_SECONDS = 600
FIT = "perf/fit.py"
CONTEXT_TOKENS = 3_000
GAP_S = 8.0
PULL_AFTER = 0.4
"""Share of the expected length of a play after which the card is pulled."""
BOUNDS = {"session mean": 0.055, "session p95": 0.10, "TTFT mean": 0.12}
"""What the twin may be off by, unless two live runs differ by more."""


class Case(NamedTuple):
    """One load. `tokens` and `answers` scale the sizes to the small model.

    `per_s` sessions begin a second.
    """

    name: str
    source: tuple[str, ...]
    tokens: float
    answers: float
    per_s: float
    pulled: bool = False
    seed: int = 1


LMCACHE = ("lmcache-agent-trace", "dev")
CLAUDE = ("claude-code-traces", "dev")
CALIBRATION = Case("calibration", LMCACHE, 0.08, 0.03, 1.2, seed=7)
CASES = (
    Case("LMCache agents, busy", LMCACHE, 0.08, 0.03, 1.6),
    Case("Claude Code", CLAUDE, 0.0015, 0.02, 1.3),
    Case("LMCache agents, a card pulled", LMCACHE, 0.08, 0.03, 1.3, pulled=True),
)
"""Loads of half to three quarters of what the cards can do: nearer to it, and two live plays of one
load differ by more than a simulation may. `seed` draws the sessions and their starts."""
TURNS_MAX = 5
"""Sessions are cut to so many turns, so that a play ends in minutes."""


class Measures(NamedTuple):
    """What is compared, in seconds."""

    session_mean: float
    session_p95: float
    ttft_mean: float
    turn_mean: float


def measure(run: Run) -> Mapping[str, Measured]:
    """Calibrate, then play and simulate every case."""
    profile = _refined(run, _calibrated(run))
    worst = dict.fromkeys(BOUNDS, 0.0)
    cases = CASES[:1] if run.quick else CASES
    table: list[Json] = []
    for case in cases:
        row = _case(run, case, profile)
        table.append(row)
        for name in BOUNDS:
            share = row[name]["share"]  # type: ignore[call-overload,index]
            assert isinstance(share, float)
            worst[name] = max(worst[name], share)
    run.rounds["cases"] = table
    against_text = f"{len(cases)} loads, worst of them"
    return {
        f"fidelity_{name.replace(' ', '_').lower()}": Measured(share, len(cases), against_text)
        for name, share in worst.items()
    }


def workload_of(run: Run, case: Case) -> Workload:
    """Return the case's load: sessions drawn from its source, made to fit the small model."""
    found = read_workload(trace(*case.source))
    alone = tuple(s._replace(turns=s.turns[:TURNS_MAX], spawn=None) for s in found.sessions)
    count = 40 if run.quick else SESSIONS
    workload = transform.repeat(found._replace(sessions=alone), count, seed=case.seed)
    answers = case.answers / case.tokens
    shrunk = transform.scale_tokens(_answers_scaled(workload, answers), case.tokens)
    workload = transform.clamp_tokens(shrunk, CONTEXT_TOKENS)
    return transform.restart(transform.clamp_gaps(workload, GAP_S), case.per_s, seed=case.seed)


def _answers_scaled(workload: Workload, factor: float) -> Workload:
    sessions = tuple(
        session._replace(
            turns=tuple(
                turn._replace(out_tokens=max(1, round(turn.out_tokens * factor)))
                for turn in session.turns
            )
        )
        for session in workload.sessions
    )
    return workload._replace(sessions=sessions)


def base_of(run: Run) -> Embedded:
    """Return the base that all loads are played on."""
    return Embedded(model_file(run, SHAPE), ENGINE)


def _calibrated(run: Run) -> Path:
    """Return the profile of a card of the base: kept while what measures it is the same."""
    sources = [*sorted(compiled.ROOT.glob("runtime/calibration/*.py")), compiled.ROOT / FIT]
    made_by = compiled.fingerprint(path.relative_to(compiled.ROOT).as_posix() for path in sources)
    path = model_file(run, SHAPE).with_suffix(f".{made_by[:8]}.profile.toml")
    if not path.exists():
        folder = run.scratch / "calibrate"
        folder.mkdir()
        (folder / "bedplate.toml").write_text(base_of(run).config_text(folder, 0))
        command = [sys.executable, "-m", "bedplate.cli.main", "calibrate"]
        command += ["--config", "bedplate.toml", "--out", path.name]  # the profile quotes them
        run.say("calibrating two cards")
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=CALIBRATE_SECONDS,
        )
        if done.returncode:
            raise BenchError(f"bedplate calibrate failed: {done.stderr[-500:]}")
        made = profile_file.read(folder / path.name)
        assert made.calibration is not None
        command_line = f"bedplate {' '.join(command[3:])}"  # without this machine's folders
        calibration = made.calibration.model_copy(update={"command": command_line})
        profile_file.dump(made.profile, path, calibration=calibration, errors=made.errors)
    found = profile_file.read(path)
    run.config["profile"] = path.read_text(encoding="utf-8")
    run.figure("calibration", f"{found.calibration}; held out: {found.errors}")
    return path


def _refined(run: Run, path: Path) -> Path:
    """Return the profile scaled to one load, played live; no case is of that load."""
    journal = _play(run, CALIBRATION, workload_of(run, CALIBRATION), 1)
    found = profile_file.read(path)
    assert found.calibration is not None
    assert found.errors is not None
    profile = refine(found.profile, journal)
    refined = run.scratch / "refined.toml"
    profile_file.dump(profile, refined, calibration=found.calibration, errors=found.errors)
    run.figure("profile after the calibration load", str(profile.step))
    return refined


def _case(run: Run, case: Case, profile: Path) -> dict[str, Json]:
    workload = workload_of(run, case)
    first, second = (_play(run, case, workload, number) for number in (1, 2))
    live, twin, turns = _both(run, first, profile)
    again = measures(_live(second)[0])
    row: dict[str, Json] = {"case": case.name, "sessions": len(live.sessions), "turns": turns}
    one, other = measures(live), measures(twin)
    texts = []
    for index, (name, bound) in enumerate(BOUNDS.items()):
        error = abs(other[index] / one[index] - 1)
        live_error = abs(again[index] / one[index] - 1)
        share = error / max(bound, live_error)
        row[name] = {
            "live_s": round(one[index], 4),
            "live_again_s": round(again[index], 4),
            "twin_s": round(other[index], 4),
            "error": round(error, 4),
            "live_difference": round(live_error, 4),
            "bound": bound,
            "share": round(share, 4),
        }
        texts.append(f"{name} {one[index]:.2f} s, twin {other[index] / one[index] - 1:+.1%}")
        texts[-1] += f" (live again {again[index] / one[index] - 1:+.1%})"
    texts.append(
        f"turn mean {one.turn_mean:.2f} s, twin {other.turn_mean / one.turn_mean - 1:+.1%}"
    )
    run.figure(f"{case.name}, {len(live.sessions)} sessions, {turns} turns", "; ".join(texts))
    run.say(f"{case.name}: {'; '.join(texts)}")
    return row


def _play(run: Run, case: Case, workload: Workload, number: int) -> Path:
    """Play a load against a fresh base; return its journal."""
    name = f"{case.name.replace(' ', '-').replace(',', '')}-{number}"
    run.say(f"{case.name}, play {number}: {len(workload.sessions)} sessions")
    with live_base(run.scratch / name, base_of(run), {TENANT: LANES}) as base:
        rows, errors = asyncio.run(_played(base, case, workload))
        if errors:
            raise BenchError(f"{case.name}: {len(errors)} of {rows} turns failed: {errors[0]}")
    return base.journal


async def _played(base: LiveBase, case: Case, workload: Workload) -> tuple[int, list[str]]:
    player = Player(base.url, base.keys[TENANT], MODEL, workload)
    pulling = asyncio.create_task(_pull(base, workload)) if case.pulled else None
    rows = await player.play()
    if pulling is not None:
        await pulling
    return len(rows), [row.error for row in rows if row.error]


async def _pull(base: LiveBase, workload: Workload) -> None:
    last_ns = max(session.start_ns for session in workload.sessions)
    await asyncio.sleep(PULL_AFTER * last_ns / 1e9)
    base.pull_card(0)


def _live(journal: Path) -> tuple[Outcome, Recording, Workload]:
    found = read_recording(journal)
    workload = read_workload(journal, format="journal")
    return live_outcome(found, workload, str(journal)), found, workload


def _both(run: Run, journal: Path, profile: Path) -> tuple[Outcome, Outcome, int]:
    live, found, workload = _live(journal)
    site = against.recorded_site(found, str(profile), name="recorded")
    began = time.perf_counter()
    twin = simulate(
        site, workload, seed=1, faults=list(found.faults()), close_sessions=found.closes
    )
    run.say(f"twin: {len(live.turns)} turns in {time.perf_counter() - began:.2f} s")
    return live, twin, len(live.turns)


def measures(outcome: Outcome) -> Measures:
    """Return what is compared."""
    times = [(row.end_ns - row.start_ns) / 1e9 for row in outcome.sessions]
    firsts = [(row.first_ns - row.arrival_ns) / 1e9 for row in outcome.turns]
    turns = [(row.end_ns - row.arrival_ns) / 1e9 for row in outcome.turns]
    return Measures(
        sum(times) / len(times),
        quantile(times, 0.95),
        sum(firsts) / len(firsts),
        sum(turns) / len(turns),
    )


PART = Part(
    "live",
    tuple(
        Spec(
            f"fidelity_{name.replace(' ', '_').lower()}",
            "ratio",
            "<= 1",
            f"error of the {name} as a share of what is allowed: {bound:.1%}, "
            "or what two live plays differ by if that is more; worst load",
        )
        for name, bound in BOUNDS.items()
    ),
    measure,
)

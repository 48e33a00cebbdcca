"""Simulate a scenario in virtual time, or compare the simulation with a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bedplate.cli.options import JsonOption
from bedplate.cli.output import print_json, print_notice, print_text, progress, written
from bedplate.errors import InvalidRequest

if TYPE_CHECKING:  # half a second to load, which `bedplate sim --help` does not need
    from bedplate.twin.outcome import Outcome
    from bedplate.twin.report import Report
    from bedplate.twin.scenario import Scenario

app = typer.Typer()

SEEDS_MAX = 1_000
_STEPS = 1_000
"""Steps of the progress bar."""


@app.command()
def sim(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A TOML file (docs/reference/scenario.md has its keys), or one that is built in: "
            "box-of-8, embedded, supernode-384.",
        ),
    ] = None,
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Workload in place of the scenario's: a file or folder.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed in place of the scenario's; default there: 1.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=SEEDS_MAX, help="Run so many seeds from there; print the spread."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A TOML value for a key of the scenario, such as cards[0].count=4; repeat.",
        ),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="Only say how fast the simulator was.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the curves into a picture.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="JOURNAL", help="Run a recorded journal's load and compare with what happened."
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="With --against: the cards' profile, a file or a built-in's name."),
    ] = None,
    refine: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="With --against and --profile: write the profile scaled to the recorded run.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate a scenario in virtual time, or compare the simulation with a recorded run."""
    one_run: dict[str, object | None] = {"--plot": plot, "--speed": speed or None}
    if against is not None:
        given = {"SCENARIO": scenario, "--trace": trace, "--seeds": seeds, "--set": changes}
        _refuse_beside("--against", given | one_run)
        _compare(against, profile=profile, refine=refine, seed=seed, json=json)
        return
    _refuse_beside("SCENARIO", {"--profile": profile, "--refine": refine})
    asked = _Asked(_named(scenario), trace, tuple(changes or ()))
    if seeds is not None:
        _refuse_beside("--seeds", one_run)
        _simulate_seeds(asked, first=seed, count=seeds, json=json)
        return
    if plot is not None and plot.suffix.lower() != ".png":
        raise InvalidRequest(f"{plot}: pictures are written as PNG; name it {plot.stem}.png")
    _simulate(asked, seed=seed, speed=speed, plot=plot, json=json)


class _Asked(NamedTuple):
    """A scenario, and what stands in place of its own keys."""

    which: str
    trace: Path | None
    changes: tuple[str, ...]

    def load(self, seed: int | None) -> Scenario:
        from bedplate.twin.scenario import load_scenario

        with progress("Reading the workload"):
            return load_scenario(self.which, trace=self.trace, seed=seed, changes=self.changes)


def _named(scenario: str | None) -> str:
    if scenario is not None:
        return scenario
    from bedplate.twin.scenario import built_in_scenarios

    raise InvalidRequest(
        "name a scenario, or a recorded run with --against. Built-in scenarios: "
        f"{', '.join(built_in_scenarios())}"
    )


def _run(scenario: Scenario, label: str) -> Outcome:
    from bedplate.twin.run import simulate

    with _bar(label) as advance:
        return simulate(
            scenario.site,
            scenario.workload,
            seed=scenario.seed,
            faults=scenario.faults,
            retry=scenario.retry,
            samples=scenario.samples,
            progress=advance,
        )


def _report(scenario: Scenario, outcome: Outcome) -> Report:
    from bedplate.twin.report import make_report

    return make_report(
        outcome,
        scenario.workload,
        scenario.site,
        slo_factor=scenario.slo_factor,
        evidence=scenario.evidence,
        notes=scenario.notes,
    )


def _simulate(
    asked: _Asked, *, seed: int | None, speed: bool, plot: Path | None, json: bool
) -> None:
    from bedplate.cli.sim_print import print_report, print_speed
    from bedplate.twin.curves import panels
    from bedplate.twin.plots import write_png

    scenario = asked.load(seed)
    outcome = _run(scenario, "Simulating")
    report = _report(scenario, outcome)
    curves = panels(outcome, scenario.workload)
    if plot is not None:
        replaced = plot.exists()
        write_png(curves, plot, title=f"{report.name}: {report.workload}")
        print_notice(written("curves", plot, replaced=replaced))
    if json:
        document = report.document() | {"set": asked.changes}
        kept = ("name", "workload", "seed", "digest", "duration_s", "speed", "set")
        print_json({name: document[name] for name in kept} if speed else document)
    elif speed:
        print_speed(report.speed)
        print_text(f"digest {report.digest}")
    else:
        print_report(report, curves, changes=asked.changes)


def _simulate_seeds(asked: _Asked, *, first: int | None, count: int, json: bool) -> None:
    from bedplate.cli.sim_print import print_seeds
    from bedplate.twin.seeds import binds, measures

    reports: list[Report] = []
    for at in range(count):
        seed = first if not reports else reports[0].seed + at
        scenario = asked.load(seed)
        outcome = _run(scenario, f"Simulating seed {scenario.seed}, {at + 1} of {count}")
        reports.append(_report(scenario, outcome))
    if json:
        print_json(
            {
                "name": reports[0].name,
                "workload": reports[0].workload,
                "seeds": [report.seed for report in reports],
                "set": asked.changes,
                "measures": [each._asdict() for each in measures(reports)],
                "binds": binds(reports),
                "runs": [report.document() for report in reports],
            }
        )
    else:
        print_seeds(reports, changes=asked.changes)


def _compare(
    journal: Path, *, profile: str | None, refine: Path | None, seed: int | None, json: bool
) -> None:
    from bedplate.cli.sim_print import print_comparison
    from bedplate.twin.against import compare

    if refine is not None:
        profile = _refine(journal, profile, refine)
    with _bar("Simulating") as advance:
        found = compare(
            journal, profile=profile, seed=1 if seed is None else seed, progress=advance
        )
    if json:
        print_json(found.document())
    else:
        print_comparison(found)


def _refine(journal: Path, profile: str | None, out: Path) -> str:
    """Write the refined profile; return the file's name."""
    from bedplate.perf import profile_file
    from bedplate.twin.refine import refine_file
    from bedplate.twin.scenario import profile_path

    if profile is None:
        raise InvalidRequest("--refine needs --profile: the profile to scale")
    refined, factors = refine_file(profile_file.read(profile_path(profile, Path())), journal)
    replaced = out.exists()
    profile_file.dump(refined.profile, out, calibration=refined.calibration, errors=refined.errors)
    print_notice(
        f"prompt times × {factors.prompts:.4g}, decode times × {factors.decoding:.4g}, "
        f"contention {refined.profile.contention:g}; " + written("profile", out, replaced=replaced)
    )
    return str(out)


@contextmanager
def _bar(label: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr; yield a function that takes the share that is done."""
    with progress(label, _STEPS) as advance:
        yield lambda share: advance(round(share * _STEPS))


def _refuse_beside(what: str, given: Mapping[str, object | None]) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidRequest(f"{name} does not go together with {what}")

"""Simulate a scenario in virtual time, or compare the simulation with a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bedplate.cli.options import JsonOption
from bedplate.cli.output import print_json, print_notice, print_text, progress
from bedplate.errors import InvalidRequest

app = typer.Typer()

_STEPS = 1_000
"""Steps of the progress bar."""


@app.command()
def sim(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="A TOML file, or a built-in's name.")
    ] = None,
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Workload in place of the scenario's: a file or folder.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed in place of the scenario's; default there: 1.")
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
    if against is not None:
        given = {"SCENARIO": scenario, "--trace": trace, "--plot": plot, "--speed": speed or None}
        _refuse_beside("--against", given)
        if refine is not None:
            profile = _refine(against, profile, refine)
        _compare(against, profile=profile, seed=seed, json=json)
        return
    _refuse_beside("SCENARIO", {"--profile": profile, "--refine": refine})
    if scenario is None:
        from bedplate.twin.scenario import built_in_scenarios

        raise InvalidRequest(
            "name a scenario, or a recorded run with --against. Built-in scenarios: "
            f"{', '.join(built_in_scenarios())}"
        )
    if plot is not None and plot.suffix.lower() != ".png":
        raise InvalidRequest(f"{plot}: pictures are written as PNG; name it {plot.stem}.png")
    _simulate(scenario, trace=trace, seed=seed, speed=speed, plot=plot, json=json)


def _simulate(
    which: str,
    *,
    trace: Path | None,
    seed: int | None,
    speed: bool,
    plot: Path | None,
    json: bool,
) -> None:
    from bedplate.cli.sim_print import print_report, print_speed
    from bedplate.twin.curves import panels
    from bedplate.twin.plots import write_png
    from bedplate.twin.report import make_report
    from bedplate.twin.run import simulate
    from bedplate.twin.scenario import load_scenario

    with progress("Reading the workload"):
        scenario = load_scenario(which, trace=trace, seed=seed)
    with _bar("Simulating") as advance:
        outcome = simulate(
            scenario.site,
            scenario.workload,
            seed=scenario.seed,
            faults=scenario.faults,
            samples=scenario.samples,
            progress=advance,
        )
    report = make_report(outcome, scenario.workload, scenario.site, slo_factor=scenario.slo_factor)
    curves = panels(outcome, scenario.workload)
    if plot is not None:
        write_png(curves, plot, title=f"{report.name}: {report.workload}")
        print_notice(f"curves drawn into {plot}")
    if json:
        document = report.document()
        kept = ("name", "workload", "seed", "digest", "duration_s", "speed")
        print_json({name: document[name] for name in kept} if speed else document)
    elif speed:
        print_speed(report.speed)
        print_text(f"digest {report.digest}")
    else:
        print_report(report, curves)


def _compare(journal: Path, *, profile: str | None, seed: int | None, json: bool) -> None:
    from bedplate.cli.sim_print import print_comparison
    from bedplate.twin.against import compare

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
    from bedplate.twin.refine import refine
    from bedplate.twin.scenario import find_profile

    if profile is None:
        raise InvalidRequest("--refine needs --profile: the profile to scale")
    refined = refine(find_profile(profile, Path()), journal)
    profile_file.dump(refined, out)
    print_notice(f"profile written to {out}")
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

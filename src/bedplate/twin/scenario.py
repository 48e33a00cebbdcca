"""Scenarios: from a TOML file to what `simulate` runs.

A scenario is found by its path, or by name among the built-in ones beside this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from bedplate.config.explain import Sources, explain
from bedplate.config.fields import GIB, to_ns
from bedplate.config.load import load, read_toml, validated
from bedplate.core.ids import CardId
from bedplate.core.limits import Policy
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError, InvalidRequest
from bedplate.perf import profile_file
from bedplate.perf.catalog_profile import catalog_profile
from bedplate.perf.links import classes, collective_ns, find_class, link, links
from bedplate.perf.profile import CardProfile
from bedplate.twin import evidence, scenario_set
from bedplate.twin.evidence import Evidence
from bedplate.twin.faults import Fault
from bedplate.twin.retry import RetryRule
from bedplate.twin.scenario_notes import notes
from bedplate.twin.scenario_tree import OPTIONS, CardsConfig, ScenarioConfig, WorkloadConfig
from bedplate.twin.site import NO_POOL, CardSpec, PoolSpec, Site
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.generate import Mix, generate
from bedplate.twin.workload.read import read_workload
from bedplate.twin.workload.transform import (
    assign,
    clamp_tokens,
    repeat,
    restart,
    scale_rate,
    scale_tokens,
    share_openings,
    take,
)

_ENDING = ".toml"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run needs, what its times rest on, and what in it has no effect."""

    site: Site
    workload: Workload
    faults: tuple[Fault, ...]
    retry: RetryRule
    seed: int
    slo_factor: float
    samples: int
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]


def load_scenario(
    which: str,
    *,
    trace: Path | None = None,
    seed: int | None = None,
    changes: Sequence[str] = (),
) -> Scenario:
    """Read a scenario and its workload.

    Args:
        which: A file, or the name of a built-in scenario.
        trace: A workload in place of the scenario's; what the scenario does to it stays.
        seed: In place of the scenario's.
        changes: Keys with values in place of the file's, as `scenario_set` reads them.

    Raises:
        ConfigError: the scenario or a file that it names cannot be used; the message names file,
            key and the nearest valid one.
        InvalidRequest: the workload cannot be read, or the catalogue does not have a card, model or
            link.
    """
    path = find_scenario(which)
    raw = read_toml(path)
    sources = Sources(str(path), scenario_set.apply(raw, changes))
    config = validated(ScenarioConfig, raw, sources, folder=path.absolute().parent)
    seed = config.run.seed if seed is None else seed
    site = Site(
        name=config.name or path.stem,
        cards=tuple(_cards(config, path)),
        policy=_policy(config, path),
        pool=_pool(config, path),
        progress_tokens=config.run.progress_tokens,
    )
    workload = make_workload(config.workload, path, trace=trace, seed=seed)
    return Scenario(
        site=site,
        workload=workload,
        faults=tuple(fault.fault() for fault in config.faults),
        retry=config.clients.rule(),
        seed=seed,
        slo_factor=config.run.slo_factor,
        samples=config.run.samples,
        evidence=_evidence(config, site, path.parent),
        notes=tuple(notes(config, workload)),
    )


def find_scenario(which: str) -> Path:
    """Return the file of a scenario.

    Raises:
        ConfigError: there is no such file and no built-in scenario of that name.
    """
    known = built_in_scenarios()
    path = Path(which)
    if which in known and not path.is_file():
        return known[which]
    if not path.is_file() and path.suffix != _ENDING:
        near = difflib.get_close_matches(which, known, n=1)
        meant = f'the nearest is "{near[0]}" of' if near else "there are"
        raise ConfigError(
            f"{which}: no such file, and no built-in scenario; {meant} {', '.join(known)}"
        )
    return path


def built_in_scenarios() -> dict[str, Path]:
    """Return the built-in scenarios by name."""
    return built_in("bedplate.twin", "scenarios")


def find_profile(which: str, folder: Path) -> CardProfile:
    """Return a profile: of a file, its path counted from `folder`, or a built-in one by name.

    Raises:
        ConfigError: it is not there, or the file is not a profile.
    """
    return profile_file.load(profile_path(which, folder))


def profile_path(which: str, folder: Path) -> Path:
    """Return the file of a profile; raises as `find_profile`, but the file is not read."""
    known = built_in_profiles()
    if which in known:
        return known[which]
    path = folder / Path(which).expanduser()
    if not path.is_file() and path.suffix != _ENDING:
        raise ConfigError(
            f"{which}: no such file, and no built-in profile; there are "
            f"{', '.join(known) or 'none'}. `bedplate calibrate` measures one"
        )
    return path


def built_in_profiles() -> dict[str, Path]:
    """Return the built-in card profiles by name."""
    return built_in("bedplate.perf", "data/profiles")


def built_in(package: str, folder: str) -> dict[str, Path]:
    """Return the TOML files in a folder of a package, by their names without the ending."""
    found = Path(str(files(package))) / folder
    return {path.stem: path for path in sorted(found.glob(f"*{_ENDING}"))}


def make_workload(
    config: WorkloadConfig, path: Path, *, trace: Path | None = None, seed: int
) -> Workload:
    """Return the workload that a scenario asks, read or generated and then changed as it says."""
    starts_per_s, workload = config.starts_per_second, None
    file = config.file if trace is None else trace
    if file is not None:
        workload = read_workload(
            file,
            format=config.format if trace is None else None,
            seed=seed,
            limit=config.sessions_max,
            starts_per_s=None if config.repeat_sessions else starts_per_s,
        )
    elif config.mix is not None:
        given = config.mix.model_dump(exclude_none=True)
        with _named(f"{path}: workload.mix"):
            workload = generate(Mix(**given), seed=seed)
        if config.sessions_max is not None:
            workload = take(workload, config.sessions_max)
    else:
        raise ConfigError(f"{path}: workload: give file or mix, or name a file with --trace")
    if not workload.sessions:
        raise ConfigError(f"{path}: the workload has no sessions; ask for more, or for longer")
    with _named(f"{path}: workload"):
        return _changed(workload, config, seed=seed, fresh=file is None)


def _changed(workload: Workload, config: WorkloadConfig, *, seed: int, fresh: bool) -> Workload:
    """Do what a scenario says to a workload; a `fresh` one was generated and has its own starts."""
    starts_per_s = config.starts_per_second
    if config.repeat_sessions is not None:
        workload = repeat(workload, config.repeat_sessions, seed=seed)
    if starts_per_s is not None and (config.repeat_sessions or fresh):
        workload = restart(workload, starts_per_s, seed=seed)
    if config.rate_factor != 1.0:
        workload = scale_rate(workload, config.rate_factor)
    if config.until_seconds is not None:
        workload = _until(workload, to_ns(config.until_seconds))
    if config.token_factor != 1.0:
        workload = scale_tokens(workload, config.token_factor)
    if config.context_tokens_max is not None:
        workload = clamp_tokens(workload, config.context_tokens_max)
    if config.opening_tokens is not None:
        workload = share_openings(workload, config.opening_tokens)
    if config.places:
        workload = assign(workload, [place.place() for place in config.places])
    return workload


def _until(workload: Workload, end_ns: int) -> Workload:
    """Keep the root sessions that begin before `end_ns`.

    Raises:
        InvalidRequest: there is none.
    """
    roots = [session for session in workload.sessions if session.spawn is None]
    kept = sum(root.start_ns < end_ns for root in roots)
    if not kept:
        first_s = roots[0].start_ns / SECOND_NS
        raise InvalidRequest(
            f"until_seconds leaves no session; the first begins after {first_s:g} s"
        )
    return take(workload, kept)


def _cards(config: ScenarioConfig, path: Path) -> Iterator[CardSpec]:
    for index, group in enumerate(config.cards):
        with _named(f"{path}: cards[{index}]"):
            profile = _profile(group, path.parent)
        for name in group.card_names:
            yield CardSpec(name, group.partition, profile)


def _evidence(config: ScenarioConfig, site: Site, folder: Path) -> tuple[Evidence, ...]:
    """Return what the times of the cards rest on."""
    profiles = {card.id: card.profile for card in site.cards}
    found = []
    for group in config.cards:
        profile = profiles[CardId(group.card_names[0])]
        if group.profile is not None:
            path = profile_path(group.profile, folder)
            found.append(evidence.of_file(profile, path, group.count))
        else:
            assert group.card is not None
            found.append(evidence.of_catalogue(profile, group.card, group.count))
    return evidence.merged(found)


def _profile(group: CardsConfig, folder: Path) -> CardProfile:
    if group.profile is not None:
        return find_profile(group.profile, folder)
    assert group.model is not None
    assert group.card is not None
    options = group.model_dump(include=set(OPTIONS), exclude_none=True)
    rate = options.pop("move_bytes_per_second", None)
    return catalog_profile(group.model, group.card, move_bytes_per_s=rate, **options)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Say in an error which part of the scenario it is about."""
    try:
        yield
    except (ConfigError, InvalidRequest) as error:
        raise type(error)(f"{where}: {error.message}", code=error.code) from error


def _policy(config: ScenarioConfig, path: Path) -> Policy:
    if config.policy.config is not None:
        policy = load(config.policy.config, secrets=False).policy()
        return policy._replace(pool_bytes_max=config.pool.size_bytes)
    try:
        return config.policy.policy(config.pool.size_bytes)
    except ValidationError as error:
        raise ConfigError(explain(error, Sources(f"{path}: policy"))) from error


def _pool(config: ScenarioConfig, path: Path) -> PoolSpec:
    pool = config.pool
    if not pool.size_bytes:
        return NO_POOL
    base_ns = float(to_ns(pool.latency_seconds))
    if pool.link is not None:
        with _named(f"{path}: pool.link"):
            link_ns, rate = _link(pool.link)
        base_ns += link_ns
        rate *= pool.links or sum(group.count for group in config.cards)
    else:
        assert pool.bytes_per_second is not None
        rate = float(pool.bytes_per_second)
    tail = None if pool.tail is None else pool.tail.spec()
    return PoolSpec(pool.size_bytes, rate, base_ns, tail)


def _link(name: str) -> tuple[float, float]:
    """Return start-up in nanoseconds and bytes a second of one link of the catalogue.

    A link to a pool by its name, or one between cards by its class.

    Raises:
        InvalidRequest: there is no such link, or a value of it is unknown.
    """
    if name in links():
        found = link(name)
        return found.alpha_ns, found.bytes_per_s
    try:
        find_class(name)
    except InvalidRequest as error:
        near = difflib.get_close_matches(name, [*links(), *classes()], n=1)
        meant = f', did you mean "{near[0]}"?' if near else "."
        raise InvalidRequest(
            f'there is no link "{name}"{meant} Links to a pool are {", ".join(links())}; a class '
            "of links between cards may stand here too, such as h100_sxm",
            code=error.code,
        ) from error
    base_ns = collective_ns(name, "p2p", 2, 0)
    return base_ns, GIB / (collective_ns(name, "p2p", 2, GIB) - base_ns) * SECOND_NS

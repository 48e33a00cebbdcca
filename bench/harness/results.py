"""Results: one folder a run, with what was measured and everything needed to doubt it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import orjson

import bedplate
from bench.harness.claims import Claim
from bench.harness.run import Json, Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
SCHEMA = "bedplate-bench-1"
PACKAGES = (
    "bedplate",
    "aiohttp",
    "cryptography",
    "httptools",
    "orjson",
    "uvicorn",
    "uvloop",
    "xllamacpp",
    "xxhash",
)
"""Whose versions a figure may depend on."""


class Commit(NamedTuple):
    """What was measured: `dirty` when tracked or new files differ from the commit."""

    id: str
    dirty: bool


def commit_of(root: Path) -> Commit:
    """Return the commit of a checkout, `none` where it is not one. Results do not make it dirty."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return Commit("none", dirty=True)
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)bench/results")
    return Commit(head, dirty=bool(changed))


def folder_name(bench: str, commit: Commit, when: datetime, *, quick: bool) -> str:
    """Return the name of a run's folder: bench, date, commit."""
    name = f"{bench}-{when:%Y%m%d-%H%M%S}-{commit.id[:10]}"
    return f"{name}-quick" if quick else name


class Finished(NamedTuple):
    """A run that ended; `failures` says by part what went wrong."""

    bench: str
    command: str
    began: datetime
    seconds: float
    part_seconds: dict[str, float]
    claims: list[Claim]
    failures: dict[str, str]


def write(run: Run, done: Finished, *, root: Path = ROOT, results: Path = RESULTS) -> Path:
    """Write `meta.json`, `summary.json` and `rounds.json`; return the folder."""
    commit = commit_of(root)
    results.mkdir(parents=True, exist_ok=True)
    folder = _new_folder(results / folder_name(done.bench, commit, done.began, quick=run.quick))
    _write(folder / "meta.json", _meta(run, done, commit))
    summary: Json = {
        "bench": done.bench,
        "claims": [_claim(claim) for claim in done.claims],
        "figures": [figure._asdict() for figure in run.figures],
        "failures": dict(done.failures),
    }
    _write(folder / "summary.json", summary)
    _write(folder / "rounds.json", run.rounds)
    return folder


def _new_folder(wanted: Path) -> Path:
    """Make a folder, with a number behind its name where that is taken."""
    number = 1
    while True:
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _claim(claim: Claim) -> Json:
    return {**claim.as_json()}  # type: ignore[dict-item]  # a TypedDict's values are plain JSON


def _meta(run: Run, done: Finished, commit: Commit) -> Json:
    return {
        "schema": SCHEMA,
        "bench": done.bench,
        "command": done.command,
        "began": done.began.isoformat(timespec="seconds"),
        "seconds": round(done.seconds, 1),
        "part_seconds": {name: round(took, 1) for name, took in done.part_seconds.items()},
        "commit": commit.id,
        "dirty": commit.dirty,
        "quick": run.quick,
        "seeds": list(run.seeds),
        "hardware": hardware(run.scratch),
        "versions": {**_versions(), **run.versions},
        "compiled": bedplate.COMPILED,
        "config": run.config,
    }


def hardware(folder: Path) -> dict[str, Json]:
    """Describe this machine, and the file system that holds `folder`."""
    return {
        "cpu": _first_value(Path("/proc/cpuinfo"), "model name"),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory": _first_value(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        "system": platform.system(),
        "journal_file_system": _file_system(folder),
        "load_before": list(os.getloadavg()),
    }


def _versions() -> dict[str, Json]:
    found: dict[str, Json] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _file_system(folder: Path) -> str:
    """Return the type of the mount that holds a folder."""
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    place = str(folder.resolve())
    for line in lines:
        _, point, found, *_ = line.split(" ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def _first_value(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _write(path: Path, value: Json) -> None:
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

"""Write constraints.txt: the exact version of every package that bedplate and its tools need.

The set is the closure of pyproject.toml's dependencies, extras included, as installed in this
environment. Plain `name==version` lines without addresses: where packages come from is the
business of whoever installs them. Run with `make constraints` after a change of dependencies; to
move to newer versions, install them first (`.venv/bin/pip install --upgrade NAME`).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.repository import ROOT

TARGET = ROOT / "constraints.txt"


def declared(*, extras: bool) -> list[str]:
    """Return the requirements that pyproject.toml names, with or without those of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements: list[str] = project["dependencies"]
    optional: dict[str, list[str]] = project["optional-dependencies"] if extras else {}
    return [*requirements, *(name for names in optional.values() for name in names)]


def pinned(requirements: Iterable[str]) -> list[str]:
    """Return sorted `name==version` lines for these requirements and all that they require.

    Raises:
        PackageNotFoundError: A requirement is not installed here.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found = distribution(name)
        versions[name] = found.version
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                todo += [(Requirement(text), wanted) for text in found.requires or ()]
    return [f"{name}=={versions[name]}" for name in sorted(versions)]


def main() -> int:
    """Write the file and say how many packages it pins."""
    lines = pinned(declared(extras=True))
    TARGET.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    print(f"{TARGET.name}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

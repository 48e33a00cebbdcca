"""Keep package registries and paths of one machine out of the repository.

Where packages come from is set on the machine that installs them; a committed address breaks every
other one, and so does an absolute path. The patterns are put together from pieces, so that this
file does not hold what it looks for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.repository import ROOT, tracked

_DOT = r"\."
_HOSTS = (
    "py" + "pi" + _DOT + r"[a-z0-9-]+",
    "python" + "hosted" + _DOT + "org",
    "registry" + _DOT + "npm" + r"[a-z]*" + _DOT,
    "registry" + _DOT + "yarn" + "pkg" + _DOT,
    r"(?:static|index)" + _DOT + "crates" + _DOT,
    "proxy" + _DOT + "golang" + _DOT,
    "conda" + _DOT + "anaconda" + _DOT,
    "ruby" + "gems" + _DOT + "org",
    "--(?:extra-)?" + "index-" + "url",
    "--find-" + "links",
)
_FOLDERS = ("work", "root", r"home/\w+", r"Users/\w+", "opt/wheels")
PATTERNS = (
    ("names a package registry", re.compile("|".join(_HOSTS).encode(), re.IGNORECASE)),
    (
        "names a path of one machine",
        re.compile((r"(?<![\w.:/~$}-])/(?:" + "|".join(_FOLDERS) + r")/").encode()),
    ),
)
"""What is wrong with a match, and how to find it."""


def faults(paths: Iterable[Path], *, root: Path = ROOT) -> Iterator[str]:
    """Yield one line for each match in these files."""
    for path in paths:
        name = path.relative_to(root)
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            for text, pattern in PATTERNS:
                match = pattern.search(line)
                if match is not None:
                    yield f"{name}:{number}: {text}: {match[0].decode(errors='replace')}"


def main() -> int:
    """Check every file that is, or would be, committed."""
    found = list(faults(tracked()))
    for fault in found:
        print(fault)
    print(f"tracked: {len(found)} faults" if found else "tracked: no registry, no machine path")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

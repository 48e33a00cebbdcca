"""Compile the modules that decide and simulate into C extensions (ADR 0014).

`make env` runs it last. Without a C compiler it says so and changes nothing: the same modules then
run as they are, two to three times slower. Run it again after an edit of one of them: until then
the edited source is what runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from bedplate import compiled
from tools.repository import ROOT

PACKAGE = ROOT / "src" / "bedplate"
GROUP = "bedplate"
"""Names the library that all compiled modules share: `bedplate__mypyc`."""
TWIN = (
    "batch",
    "call",
    "card",
    "clients",
    "heap",
    "moving",
    "own_cache",
    "stepper",
    "steps",
    "transfer",
    "world",
)
"""Modules of `bedplate.twin` on the way of every event."""
LEFT_OUT = frozenset(
    f"core/{name}.py" for name in ("__init__", "actions", "events", "limits", "prices")
)
"""A package is where its other modules are found; the others declare, and their hints are read."""


def sources() -> list[str]:
    """Return the files to compile, relative to the package, in a fixed order."""
    core = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.glob("core/*.py"))]
    twin = [f"twin/{name}.py" for name in TWIN]
    return [name for name in core + twin if name not in LEFT_OUT]


def build(target: Path) -> None:
    """Compile into `target`, which is replaced as a whole.

    Raises:
        SystemExit: a source has an error that the compiler does not accept.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    names = sources()
    fingerprint = compiled.fingerprint(names)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(PACKAGE.parent):
        extensions = mypycify(
            [
                "--config-file",
                str(ROOT / "pyproject.toml"),
                *(f"bedplate/{name}" for name in names),
            ],
            group_name=GROUP,
            target_dir=scratch,
            opt_level="3",
            debug_level="0",
        )
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/temp"
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        made = sorted(Path(command.build_lib).rglob("*" + sysconfig.get_config_var("EXT_SUFFIX")))
        fresh = target.with_name(target.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        modules = {}
        for path in made:
            relative = path.relative_to(command.build_lib)
            module = ".".join([*relative.parts[:-1], relative.name.split(".")[0]])
            (fresh / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, fresh / relative)
            modules[module] = relative.as_posix()
    manifest = {"fingerprint": fingerprint, "sources": names, "modules": modules}
    (fresh / compiled.MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def has_compiler() -> bool:
    """Tell whether a C compiler and Python's headers are here."""
    command = (sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(command) is not None and header.exists()


def is_fresh(target: Path) -> bool:
    """Tell whether what was compiled is what the sources say now."""
    try:
        manifest = json.loads((target / compiled.MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    same: bool = manifest["fingerprint"] == compiled.fingerprint(sources())
    return same


def main() -> int:
    """Build what can be built here."""
    target = compiled.folder()
    if is_fresh(target):
        return 0
    if not has_compiler():
        print(
            "No C compiler with Python's headers here (gcc, python3-dev): the core runs "
            "uncompiled, two to three times slower."
        )
        return 0
    print("Compiling the core (one to three minutes)", flush=True)
    build(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())

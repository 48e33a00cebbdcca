"""Keep modules, functions and parameter lists short.

Limits: a module has at most 400 lines, or 600 if its docstring gives a reason in a line that
begins with `Length:`. A function has at most 70 lines, from `def` to its last, docstring included.
It takes at most 5 parameters by position; `self` and `cls` do not count, and neither do
keyword-only ones, which a reader sees named at each call. A test's parameters do not count either:
pytest passes them by name.

What is too long today stands in `tidy_ratchet.json` with its size. It may only shrink: a larger
size fails, and so does a smaller one until the file is lowered with
`python -m tools.tidy --lower`. No command adds an entry.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.repository import ROOT, modules

MODULE_LINES_MAX = 400
MODULE_LINES_MAX_WITH_REASON = 600
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
RATCHET = Path(__file__).with_name("tidy_ratchet.json")

_REASON = re.compile(r"^\s*Length: \S+", re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Excess(NamedTuple):
    """Something over its limit. `key` names it in the ratchet, `line` where it begins."""

    key: str
    line: int
    size: int
    limit: int
    what: str

    def __str__(self) -> str:
        """Return the line that people read."""
        path, _, name = self.key.partition("::")
        of = f" of {name.rsplit(' ', 1)[0]}" if name else ""
        return f"{path}:{self.line}: {self.size} {self.what}{of}, at most {self.limit}"


def excesses(path: Path, *, name: str) -> Iterator[Excess]:
    """Yield what is over its limit in one module; `name` is its path in messages and ratchet."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, filename=str(path))
    lines = len(source.splitlines())
    limit = MODULE_LINES_MAX
    if _REASON.search(ast.get_docstring(tree) or ""):
        limit = MODULE_LINES_MAX_WITH_REASON
    if lines > limit:
        yield Excess(name, 1, lines, limit, "lines")
    for qualified, function in _functions(tree, ""):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            key = f"{name}::{qualified} lines"
            yield Excess(key, function.lineno, length, FUNCTION_LINES_MAX, "lines")
        count = _positional(function)
        if count > PARAMETERS_MAX and not function.name.startswith("test_"):
            key = f"{name}::{qualified} parameters"
            yield Excess(key, function.lineno, count, PARAMETERS_MAX, "parameters")


def problems(found: Iterable[Excess], ratchet: Mapping[str, int]) -> list[str]:
    """Return what is wrong: excesses that are new or grew, and ratchet entries to lower."""
    result = []
    sizes: dict[str, int] = {}
    for excess in found:
        sizes[excess.key] = excess.size
        allowed = ratchet.get(excess.key)
        if allowed is None:
            result.append(str(excess))
        elif excess.size > allowed:
            result.append(f"{excess}; it was {allowed} and may only shrink")
    for key, allowed in ratchet.items():
        size = sizes.get(key, 0)
        if size < allowed:
            now = f"is {size} now" if size else "is within its limit or gone"
            result.append(f"{key}: {now}; run python -m tools.tidy --lower")
    return result


def lowered(found: Iterable[Excess], ratchet: Mapping[str, int]) -> dict[str, int]:
    """Return the ratchet with every entry at its present size, or gone; never raised or added."""
    sizes = {excess.key: excess.size for excess in found}
    return {key: min(size, sizes[key]) for key, size in sorted(ratchet.items()) if key in sizes}


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _positional(function: _Function) -> int:
    parameters = [*function.args.posonlyargs, *function.args.args]
    bound = bool(parameters) and parameters[0].arg in ("self", "cls")
    return len(parameters) - bound


def main(arguments: list[str]) -> int:
    """Check the repository, or lower its ratchet with `--lower`."""
    found = [
        excess
        for path in modules()
        for excess in excesses(path, name=path.relative_to(ROOT).as_posix())
    ]
    ratchet: dict[str, int] = json.loads(RATCHET.read_text(encoding="utf-8"))
    if arguments == ["--lower"]:
        text = json.dumps(lowered(found, ratchet), indent=2) + "\n"
        RATCHET.write_text(text, encoding="utf-8")
        return 0
    wrong = problems(found, ratchet)
    for problem in wrong:
        print(problem)
    print(f"tidy: {len(wrong)} problems" if wrong else "tidy: all short")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

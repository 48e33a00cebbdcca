"""Bounds on what a client may ask a grammar to do, checked before anything is compiled.

A schema of a hundred bytes can name a thousand million items. What is refused here could never be
answered within an output limit; what is left still goes to a process of its own (`compiler`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bedplate.errors import InvalidRequest

NODES_MAX = 8_000
"""Objects, lists and values of all schemas of one request together."""
DEPTH_MAX = 32
CHARACTERS_MAX = 256 << 10
"""Keys and texts of all schemas of one request together."""
DATA_DEPTH_MAX = 64
"""Levels of a value that is rendered into a prompt; what renders it recurses."""
ENUM_MAX = 500
COUNT_MAX = 4_096
"""Largest length, item or property count that a schema may name."""
REPEATS_MAX = 1_000
"""Most copies of one part that the counted repetitions of a pattern make, nested ones too."""
EXPONENT_MAX = 15
"""Powers of ten of a number that a schema may name: what a float holds exactly."""

_COUNTS = frozenset(
    f"{bound}{what}"
    for bound in ("min", "max")
    for what in ("Items", "Length", "Properties", "Contains")
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_DATA = frozenset({"const", "default", "examples"})


def check_schemas(schemas: Iterable[Any], param: str) -> None:
    """Refuse schemas that are too large, or that name a number no answer could reach.

    Raises:
        InvalidRequest: the message names the keyword and its bound.
    """
    walk = [(schema, 0, "") for schema in schemas]
    nodes = characters = 0
    while walk:
        value, depth, keyword = walk.pop()
        nodes += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            characters += sum(len(key) for key in value)
            for key, item in value.items():
                _check_keyword(key, item, keyword, param)
                inside = keyword if keyword in _DATA else key
                walk.append((item, depth + 1, inside))
        elif isinstance(value, list):
            walk += [(item, depth + 1, keyword if keyword in _DATA else "") for item in value]
        if nodes + len(walk) > NODES_MAX:
            raise InvalidRequest(f"schemas may hold {NODES_MAX} values together", param=param)
        if depth > DEPTH_MAX:
            raise InvalidRequest(f"a schema may nest {DEPTH_MAX} levels", param=param)
        if characters > CHARACTERS_MAX:
            raise InvalidRequest(
                f"schemas may hold {CHARACTERS_MAX} characters together", param=param
            )


def too_deep(value: Any) -> bool:
    """Tell whether objects and lists nest deeper than what renders them can follow."""
    level = [value]
    for _depth in range(DATA_DEPTH_MAX):
        level = [item for item in level if isinstance(item, dict | list)]
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _check_keyword(key: str, item: Any, inside: str, param: str) -> None:
    if inside in _DATA:
        return
    if key == "x-guidance":
        raise InvalidRequest("a schema cannot hold x-guidance", param=param)
    if key == "enum" and isinstance(item, list) and len(item) > ENUM_MAX:
        raise InvalidRequest(f"enum may hold {ENUM_MAX} values", param=param)
    if key == "pattern" and isinstance(item, str) and _repeats(item) > REPEATS_MAX:
        raise InvalidRequest(f"pattern may repeat a part {REPEATS_MAX} times", param=param)
    if not isinstance(item, int | float) or isinstance(item, bool):
        return
    if key in _COUNTS and not 0 <= item <= COUNT_MAX:
        raise InvalidRequest(f"{key} must be from 0 to {COUNT_MAX}", param=param)
    if key in _NUMBERS and not abs(item) <= 10**EXPONENT_MAX:
        raise InvalidRequest(f"{key} must be within 10^{EXPONENT_MAX}", param=param)


def _repeats(pattern: str) -> int:
    """Return how many copies of its parts the counted repetitions of a pattern ask for, at most.

    A reading that can only be too high: `{n}` in a class or after a backslash counts as well.
    """
    worst = last = 1
    groups: list[int] = []
    inner = 1
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        close = pattern.find("}", at) if letter == "{" else -1
        counts = pattern[at + 1 : close].split(",") if close > 0 else []
        if counts and all(count.strip().isdecimal() or not count for count in counts):
            last *= max(int(count[:9] or 0) for count in counts) or 1
            inner = max(inner, last)
            at = close
        elif letter == "(":
            groups.append(inner)
            inner = last = 1
        elif letter == ")":
            last = inner
            inner = max(last, groups.pop() if groups else 1)
        else:
            last = 1
        worst = max(worst, inner)
        at += 1
    return worst

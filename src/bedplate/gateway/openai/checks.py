"""Checks of single JSON values. Each names the field at fault and what was expected.

Messages tell the type that came, never the value: it may be prompt text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

from bedplate.errors import InvalidRequest

NESTING_MAX = 100
"""Depth of free-form JSON (schemas, unknown parameters). The encoders behind hold about 250."""

NAME_SHOWN_MAX = 64
"""Characters of a client-made name that an error repeats and compares."""
_NEAR = 0.7
"""Likeness from which a known name is taken for the one that was meant; 1 is the same."""

_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def refuse(where: str, message: str) -> NoReturn:
    """Raise InvalidRequest for the field `where`."""
    raise InvalidRequest(f"{where}: {message}", param=where)


def unknown(where: str, name: str, known: Iterable[str], message: str) -> NoReturn:
    """Raise InvalidRequest for a name that is not among the known ones, and tell the nearest.

    Nothing is suggested where none is near: a guess would lead astray.

    Cost: O(known), as the name is cut first.
    """
    close = difflib.get_close_matches(name[:NAME_SHOWN_MAX], sorted(known), n=1, cutoff=_NEAR)
    nearest = f"The nearest known name is {close[0]}." if close else "Leave it out."
    refuse(join(where, name), f"{message} {nearest}")


def wrong_type(where: str, wanted: str, value: Any) -> NoReturn:
    """Raise InvalidRequest that names the type that came and the one that is wanted."""
    refuse(where, f"expected {wanted}, got {_NAMES.get(type(value), 'something else')}.")


def string(where: str, value: Any, *, length_max: int | None = None) -> str:
    """Return a string of at most `length_max` characters."""
    if type(value) is not str:
        wrong_type(where, "a string", value)
    if length_max is not None and len(value) > length_max:
        refuse(where, f"at most {length_max} characters are allowed, got {len(value)}.")
    text: str = value
    return text


def boolean(where: str, value: Any) -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        wrong_type(where, "a boolean", value)
    flag: bool = value
    return flag


def integer(where: str, value: Any, low: int, high: int) -> int:
    """Return an integer in [low, high]; JSON's 1.0 is the integer 1."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        wrong_type(where, "an integer", value)
    if not low <= value <= high:
        refuse(where, f"must be from {low} to {high}.")
    number: int = value
    return number


def number(where: str, value: Any, low: float, high: float) -> float:
    """Return a number in [low, high] as a float."""
    if type(value) not in (int, float):
        wrong_type(where, "a number", value)
    if not low <= value <= high:
        refuse(where, f"must be from {low:g} to {high:g}.")
    return float(value)


def array(where: str, value: Any, *, at_least: int = 0, at_most: int | None = None) -> list[Any]:
    """Return an array of `at_least` to `at_most` items."""
    if type(value) is not list:
        wrong_type(where, "an array", value)
    items: list[Any] = value
    if len(items) < at_least:
        refuse(where, f"needs at least {at_least} item{'s' if at_least > 1 else ''}.")
    if at_most is not None and len(items) > at_most:
        refuse(where, f"at most {at_most} items are allowed, got {len(items)}.")
    return items


def mapping(where: str, value: Any) -> dict[str, Any]:
    """Return an object."""
    if type(value) is not dict:
        wrong_type(where, "an object", value)
    found: dict[str, Any] = value
    return found


def one_of(where: str, value: Any, words: tuple[str, ...]) -> str:
    """Return a string that is one of `words`."""
    text = string(where, value)
    if text not in words:
        refuse(where, f"must be one of {', '.join(words)}.")
    return text


def only_keys(where: str, value: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse the first key, by name, that is not known here."""
    if value.keys() <= known:
        return
    name = next(key for key in value if key not in known)
    unknown(where, name, known, "this field is not supported.")


def free_form(where: str, value: Any) -> None:
    """Refuse JSON that is nested too deep to be handed on. Cost: O(size)."""
    level = [value]
    for _ in range(NESTING_MAX):
        deeper: list[Any] = []
        for item in level:
            if type(item) is dict:
                deeper.extend(item.values())
            elif type(item) is list:
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    refuse(where, f"nested deeper than {NESTING_MAX} levels.")


def join(where: str, name: str) -> str:
    """Return the path of a key; client-made names are cut to a bounded, printable form."""
    shown = "".join(char if char.isprintable() else "?" for char in name[:NAME_SHOWN_MAX])
    return f"{where}.{shown}" if where else shown

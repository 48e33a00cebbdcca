"""Byte sizes as people write them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_FORM = re.compile(r"(\d+)(?:\.(\d{1,3}))?\s*([a-z]*)", re.ASCII)


def parse_size(value: object) -> object:
    """Return the bytes that a text such as "4GiB" or "1.5 GB" names; pass anything else on.

    Raises:
        ValueError: The text is no size.
    """
    if not isinstance(value, str):
        return value
    match = _FORM.fullmatch(value.strip().lower())
    if match is None or match[3] not in _UNITS:
        raise ValueError(f'"{value}" is no size; write bytes or for example "512MiB" or "4GiB"')
    thousandths = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))
    return thousandths * _UNITS[match[3]] // 1000


def format_size(size_bytes: int) -> str:
    """Return a size with a binary unit, as short as it can be without losing a byte or 1 %."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            whole, rest = divmod(size_bytes, factor)
            return f"{whole}{unit}" if rest == 0 else f"{size_bytes / factor:.2f}{unit}"
    return f"{size_bytes}B"

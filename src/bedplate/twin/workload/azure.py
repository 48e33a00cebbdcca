"""Azure's LLM inference traces of 2023 and 2024: one row a request, no sessions, no prefixes.

Columns: TIMESTAMP (arrival, up to 9 decimals), ContextTokens (prompt), GeneratedTokens (answer).
Each row becomes a session of one turn. Rows without an answer or a prompt are left out: nothing was
computed for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bedplate.core.limits import INTERACTIVE
from bedplate.core.units import SECOND_NS
from bedplate.twin.workload.form import Session, Turn, Workload
from bedplate.twin.workload.source import (
    Family,
    Format,
    Options,
    assemble,
    bad,
    csv_rows,
    tokens_of,
)

_TIME = "%Y-%m-%d %H:%M:%S"
_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def matches(head: str) -> bool:
    """Tell a file of this form by its header."""
    return head.lstrip("\ufeff").startswith(",".join(_HEADER))


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one or more files; the limit takes the earliest requests."""
    families: list[Family] = []
    left_out = 0
    seconds: dict[str, int] = {}
    for path in paths:
        for line, row in csv_rows(path):
            if row == _HEADER:
                continue
            if len(row) != 3:
                raise bad(path, line, f"{len(row)} cells instead of 3; the line may be cut off")
            prompt = tokens_of(row[1], path, line, "ContextTokens")
            out = tokens_of(row[2], path, line, "GeneratedTokens")
            if not prompt or not out:
                left_out += 1
                continue
            start_ns = _instant(row[0], seconds, path, line)
            turn = Turn(0, "", -1, prompt, out)
            key = f"azure-{len(families) + 1}"
            families.append([Session(key, "azure", INTERACTIVE, "azure", start_ns, None, (turn,))])
    families.sort(key=lambda family: family[0].start_ns)
    note = f", {left_out} empty ones left out" if left_out else ""
    source = f"Azure LLM inference trace, {len(families)} requests{note}"
    return assemble("azure", source, families[: options.limit])


def _instant(text: str, seconds: dict[str, int], path: Path, line: int) -> int:
    """Return nanoseconds since 1970 of `2023-11-16 18:15:46.6805900`, with or without +00:00."""
    whole, _, fraction = text.removesuffix("+00:00").partition(".")
    known = seconds.get(whole)
    if known is None:
        try:
            known = int(datetime.strptime(whole, _TIME).replace(tzinfo=UTC).timestamp())
        except ValueError as error:
            raise bad(path, line, f"TIMESTAMP is {text!r}, not a time") from error
        seconds[whole] = known
    if not fraction:
        return known * SECOND_NS
    if not (fraction.isascii() and fraction.isdigit()) or len(fraction) > 9:
        raise bad(path, line, f"TIMESTAMP is {text!r}, not a time")
    return known * SECOND_NS + int(fraction.ljust(9, "0"))


FORMAT = Format(
    "azure",
    "CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens",
    matches,
    read,
    starts=True,
)

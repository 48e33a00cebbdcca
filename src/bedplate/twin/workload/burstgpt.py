"""BurstGPT traces: one CSV row a request of a campus service on GPT-3.5 and GPT-4.

Releases 1.x have the columns Timestamp, Model, Request tokens, Response tokens, Total tokens and
Log Type; release 2.0 has Session ID and Elapsed time behind Timestamp. Times are seconds. Rows with
a session id (`Conversation log`) make up sessions, each of the others is a session of one turn.
Elapsed time tells when an answer ended.

Nothing says what prompts share. A later prompt of a session that is longer than the prompt and
answer before it is taken to go on from them; a shorter one to begin anew. Rows without an answer
are failures of the recorded service and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bedplate.core.limits import INTERACTIVE
from bedplate.core.units import MILLISECOND_NS
from bedplate.twin.workload import branches
from bedplate.twin.workload.form import Workload
from bedplate.twin.workload.source import (
    Family,
    Format,
    Options,
    assemble,
    bad,
    csv_rows,
    seconds_ns,
    tokens_of,
)

_START = "Timestamp"
_SESSION, _ELAPSED = "Session ID", "Elapsed time"
_MODEL, _REQUEST, _RESPONSE = "Model", "Request tokens", "Response tokens"
_OUT_TOKEN_NS = 20 * MILLISECOND_NS
"""Time of an answer for each of its tokens where the file has no elapsed time."""


def matches(head: str) -> bool:
    """Tell a file of this form by its header."""
    cells = head.lstrip("\ufeff").partition("\n")[0].strip().split(",")
    return cells[0] == _START and {_MODEL, _REQUEST, _RESPONSE} <= set(cells)


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Read one or more files on one clock; the limit takes the sessions that come first."""
    calls: dict[str, list[branches.Call]] = {}
    context: dict[str, int] = {}
    failed = 0
    for path in paths:
        columns: dict[str, int] = {}
        for line, row in csv_rows(path):
            if not columns:
                columns = {name.strip(): index for index, name in enumerate(row)}
                for needed in (_START, _REQUEST, _RESPONSE):
                    if needed not in columns:
                        raise bad(path, line, f"the header has no column {needed!r}")
                continue
            if len(row) != len(columns):
                raise bad(path, line, f"{len(row)} cells, not {len(columns)}; it may be cut off")
            session = row[columns[_SESSION]].strip() if _SESSION in columns else ""
            key = session or f"{path.stem}-{line}"
            if key not in calls and options.limit is not None and len(calls) >= options.limit:
                if _SESSION not in columns:
                    break
                continue
            prompt = tokens_of(row[columns[_REQUEST]], path, line, _REQUEST)
            out = tokens_of(row[columns[_RESPONSE]], path, line, _RESPONSE)
            start_ns = seconds_ns(row[columns[_START]], path, line, _START)
            took_ns = out * _OUT_TOKEN_NS
            if _ELAPSED in columns:
                took_ns = seconds_ns(row[columns[_ELAPSED]], path, line, _ELAPSED)
            if not prompt or not out:
                failed += 1
                continue
            keep, new = -1, prompt
            if key in context:
                before = context[key]
                keep, new = (-1, prompt - before) if prompt > before else (0, prompt)
            context[key] = prompt + out
            call = branches.Call(start_ns, start_ns + took_ns, "", keep, new, out)
            calls.setdefault(key, []).append(call)
    families: list[Family] = []
    for key, found in calls.items():
        found.sort(key=lambda call: call.start_ns)
        line_of = branches.Line(key, "burstgpt", found)
        families += branches.families([line_of], tenant="burstgpt", lane=INTERACTIVE)
    source = f"BurstGPT trace, {len(families)} sessions; {failed} failed requests left out"
    return assemble("burstgpt", source, families)


FORMAT = Format(
    "burstgpt",
    "CSV with a header from Timestamp to Log Type (with or without Session ID and Elapsed time)",
    matches,
    read,
    starts=True,
)

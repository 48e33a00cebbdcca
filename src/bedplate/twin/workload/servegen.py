"""ServeGen's production workloads: for each client how it asks, and how long; drawn with a seed.

A client is two files. `…-trace.csv` has no header; a row is a window of ten minutes: its first
second, requests a second, coefficient of variation of the times between requests, the family that
was fitted to these (Gamma or Weibull, or none) and its shape and scale. `…-dataset.json` gives for
windows of some hours the distribution of prompt and of answer lengths, as text of the form
"{18: 0.017, 19: 0.108}".

The times between requests are drawn from the window's family with its shape, scaled so that the
window's rate is met; prompt and answer lengths are drawn independently, from the newest window that
has begun. Every request is a session of one turn, of a tenant named after the client.
"""

from __future__ import annotations

import ast
import bisect
import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

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
    decode_document,
    seconds_ns,
    tokens_of,
)

SESSIONS_DEFAULT = 20_000
"""Requests drawn where no limit is given: the data describes weeks, millions of them."""
_TRACE, _DATASET = "-trace.csv", "-dataset.json"
_WINDOW_S = 600.0
_SHAPE_MIN, _SHAPE_MAX = 0.01, 1000.0
"""Shapes between which gaps can be drawn; 0.01 is a coefficient of variation of 10 (Gamma)."""


class _Window(NamedTuple):
    start_s: float
    rate_per_s: float
    family: str
    shape: float


class _Lengths(NamedTuple):
    """A distribution: values, and the sums of their weights up to each."""

    values: list[int]
    sums: list[float]

    def draw(self, random: Random) -> int:
        at = bisect.bisect_right(self.sums, random.random() * self.sums[-1])
        return max(1, self.values[min(at, len(self.values) - 1)])


class _Entry(msgspec.Struct):
    input_tokens: str
    output_tokens: str


_DECODER: msgspec.json.Decoder[dict[str, _Entry]] = msgspec.json.Decoder(dict[str, _Entry])


def matches(head: str) -> bool:
    """Tell either file of a client: windows without a header, or distributions as text."""
    if head.lstrip().startswith("{"):
        return '"input_tokens": "{' in head
    cells = head.partition("\n")[0].strip().split(",")
    return len(cells) == 6 and cells[0].isdigit() and cells[3] in ("Gamma", "Weibull", "")


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Draw the requests of one or more clients; the limit counts those of all together."""
    limit = SESSIONS_DEFAULT if options.limit is None else options.limit
    clients = _clients(paths)
    drawn = [
        _requests(name, _windows(trace), _Sizes(dataset), Random(f"{options.seed}/{name}"))
        for name, (trace, dataset) in clients.items()
    ]
    merged = heapq.merge(*drawn, key=lambda request: request[:2])
    families: list[Family] = [
        [Session(f"{name}-{number}", name, INTERACTIVE, "servegen", start_ns, None, (turn,))]
        for number, (start_ns, name, turn) in enumerate(itertools.islice(merged, limit), 1)
    ]
    source = (
        f"ServeGen, {len(clients)} clients, first {len(families)} requests drawn, "
        f"seed {options.seed}"
    )
    return assemble("servegen", source, families)


def _clients(paths: Sequence[Path]) -> dict[str, tuple[Path, Path]]:
    """Return (trace, dataset) of each client that a file of `paths` belongs to, by name."""
    clients: dict[str, tuple[Path, Path]] = {}
    for path in paths:
        for suffix in (_TRACE, _DATASET):
            if path.name.endswith(suffix):
                name = path.name.removesuffix(suffix)
                pair = path.with_name(name + _TRACE), path.with_name(name + _DATASET)
                for file in pair:
                    if not file.is_file():
                        raise bad(file, 0, f"is missing; {path.name} needs it beside it")
                clients[name] = pair
                break
        else:
            raise bad(path, 0, f"ServeGen's files are named NAME{_TRACE} and NAME{_DATASET}")
    return dict(sorted(clients.items()))


def _windows(path: Path) -> list[_Window]:
    windows: list[_Window] = []
    for line, row in csv_rows(path):
        if len(row) != 6:
            raise bad(path, line, f"{len(row)} cells instead of 6; the line may be cut off")
        start_s = seconds_ns(row[0], path, line, "the window's start") / SECOND_NS
        rate, shape = _number(row[1], path, line), _number(row[4], path, line)
        if windows and start_s < windows[-1].start_s + _WINDOW_S:
            raise bad(path, line, "begins before the window above it has ended")
        fitted = row[3] in ("Gamma", "Weibull")
        if row[3] and not fitted:
            raise bad(path, line, f"the fitted family is {row[3]!r}; Gamma or Weibull is expected")
        if fitted and rate > 0 and not _SHAPE_MIN <= shape <= _SHAPE_MAX:
            raise bad(path, line, f"the shape is {shape}, not {_SHAPE_MIN} to {_SHAPE_MAX:g}")
        windows.append(_Window(start_s, rate, row[3], shape))
    return windows


def _number(text: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise bad(path, line, f"{text!r} is no number") from error
    if not 0 <= value < 1e9:
        raise bad(path, line, f"{text} is not between 0 and 10^9")
    return value


class _Sizes:
    """The lengths of a client's prompts and answers, parsed when their window comes."""

    def __init__(self, path: Path) -> None:
        entries = decode_document(path, _DECODER)
        self._path = path
        self._windows = sorted(
            (
                (seconds_ns(start, path, 0, "a window's start") / SECOND_NS, start, entry)
                for start, entry in entries.items()
                if entry.input_tokens != "{}" and entry.output_tokens != "{}"
            ),
            key=lambda window: window[0],
        )
        if not self._windows:
            raise bad(path, 0, "holds no window with lengths")
        self._begun = [start_s for start_s, _, _ in self._windows]
        self._index = -1
        self._found: tuple[_Lengths, _Lengths]

    def at(self, start_s: float) -> tuple[_Lengths, _Lengths]:
        """Return (prompts, answers) of the newest window that has begun, else of the first."""
        index = max(0, bisect.bisect_right(self._begun, start_s) - 1)
        if index != self._index:
            _, start, entry = self._windows[index]
            self._found = (
                _distribution(entry.input_tokens, self._path, f"input_tokens of window {start}"),
                _distribution(entry.output_tokens, self._path, f"output_tokens of window {start}"),
            )
            self._index = index
        return self._found


def _distribution(text: str, path: Path, field: str) -> _Lengths:
    try:
        weights = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise bad(path, 0, f"{field} cannot be read: {error}") from error
    if not isinstance(weights, Mapping):
        raise bad(path, 0, f"{field} is no mapping of tokens to probabilities")
    values: list[int] = []
    sums: list[float] = []
    total = 0.0
    counted = [(tokens_of(str(key), path, 0, field), weight) for key, weight in weights.items()]
    for tokens, weight in sorted(counted, key=lambda pair: pair[0]):
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
            raise bad(path, 0, f"{field} gives {tokens} the probability {weight!r}")
        total += weight
        values.append(tokens)
        sums.append(total)
    if not total > 0:
        raise bad(path, 0, f"{field} has no probability above 0")
    return _Lengths(values, sums)


def _requests(
    name: str, windows: Sequence[_Window], sizes: _Sizes, random: Random
) -> Iterator[tuple[int, str, Turn]]:
    """Yield (arrival, name, turn) in order of time."""
    for window in windows:
        if window.rate_per_s <= 0:
            continue
        prompt, answer = sizes.at(window.start_s)
        gap_s = _gaps(window, random)
        # A window begins somewhere inside a gap, not at a request.
        at_s = window.start_s + next(gap_s) * random.random()
        while at_s < window.start_s + _WINDOW_S:
            turn = Turn(0, "", -1, prompt.draw(random), answer.draw(random))
            yield round(at_s * SECOND_NS), name, turn
            at_s += next(gap_s)


def _gaps(window: _Window, random: Random) -> Iterator[float]:
    """Yield times between requests whose mean is that of the window."""
    mean_s = 1 / window.rate_per_s
    shape = window.shape
    while True:
        match window.family:
            case "Gamma":
                yield random.gammavariate(shape, mean_s / shape)
            case "Weibull":
                yield random.weibullvariate(mean_s / math.gamma(1 + 1 / shape), shape)
            case _:
                yield random.expovariate(window.rate_per_s)


FORMAT = Format(
    "servegen",
    "a client's NAME-trace.csv and NAME-dataset.json, or a folder of them",
    matches,
    read,
    starts=True,
)

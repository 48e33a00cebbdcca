"""Draw the curves of a run: as a PNG picture, and in block characters for a terminal.

In the terminal each curve is a filled outline of `ROWS` rows, all of one panel on one scale: eight
heights a row, so that no colour is needed to tell them apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bedplate.errors import ConfigError
from bedplate.twin.curves import Line, Panel

ROWS = 2
COLUMNS_MIN = 20
_BLOCKS = " ▁▂▃▄▅▆▇█"
_HOLDS = "━"
_FAULTS = "faults"
_INCHES = 3.2
_DOTS_PER_INCH = 110


def draw_text(panels: Sequence[Panel], *, columns: int = 80) -> str:
    """Return all panels as lines of at most `columns` characters (`COLUMNS_MIN` at least)."""
    columns = max(columns, COLUMNS_MIN)
    return "\n\n".join("\n".join(_panel_lines(panel, columns)) for panel in panels)


def _panel_lines(panel: Panel, columns: int) -> Iterator[str]:
    top = panel.y_max or max(max(line.ys) for line in panel.lines)
    left, right = _ends(panel)
    label = f"{panel.x_label} {left:,.4g} to {right:,.4g}{', log' if panel.x_log else ''}"
    yield f"{panel.title}, {panel.y_label}; {label}"[:columns]
    names = max(len(line.name) for line in panel.lines)
    names = max(names, len(_FAULTS) if panel.marks else 0)
    scale = f"{top:,.4g}"
    width = max(1, columns - names - len(scale) - 4)
    for line in panel.lines:
        heights = _columns(line, _edges(left, right, width, log=panel.x_log))
        rows = _outline([height / top if top else 0.0 for height in heights])
        for at, row in enumerate(rows):
            name = line.name if at == ROWS - 1 else ""
            mark = scale if at == 0 else "0" if at == ROWS - 1 else ""
            yield f"  {name:<{names}} {row} {mark}"
    if panel.marks:
        row = _marked(panel, _edges(left, right, width, log=panel.x_log), left)
        yield f"  {_FAULTS:<{names}} {row}".rstrip()


def _marked(panel: Panel, edges: Sequence[float], left: float) -> str:
    """Return a line under all columns in which a fault holds."""
    spans = pairwise((left, *edges))
    return "".join(
        _HOLDS if any(mark.begin <= end and mark.end >= begin for mark in panel.marks) else " "
        for begin, end in spans
    )


def _ends(panel: Panel) -> tuple[float, float]:
    """Return the least and the largest x; of a panel with a logarithmic axis, those above 0."""
    right = max(line.xs[-1] for line in panel.lines)
    if not panel.x_log:
        return min(line.xs[0] for line in panel.lines), right
    above = [x for line in panel.lines for x in line.xs if x > 0]
    return min(above, default=1.0), max(above, default=1.0)


def _edges(left: float, right: float, width: int, *, log: bool) -> list[float]:
    """Return the right edge of each column."""
    shares = [(column + 1) / width for column in range(width)]
    if log:
        return [left * (right / left) ** share for share in shares]
    return [left + (right - left) * share for share in shares]


def _columns(line: Line, edges: Sequence[float]) -> list[float]:
    """Return the largest value in each column; one that holds no point keeps the value before."""
    found: list[float] = []
    begin = 0
    for column, edge in enumerate(edges):
        end = len(line.xs) if column == len(edges) - 1 else bisect_right(line.xs, edge)
        if end > begin:
            found.append(max(line.ys[begin:end]))
        elif begin:
            found.append(line.ys[begin - 1])
        else:
            found.append(0.0)
        begin = max(begin, end)
    return found


def _outline(shares: Sequence[float]) -> list[str]:
    """Return rows, the top one first, filled up to each share (0 to 1) of their height."""
    full = len(_BLOCKS) - 1
    # What is above zero shows: a thin line is not an empty one.
    eighths = [min(ROWS * full, math.ceil(max(0.0, share) * ROWS * full)) for share in shares]
    return [
        "".join(_BLOCKS[min(full, max(0, value - row * full))] for value in eighths)
        for row in reversed(range(ROWS))
    ]


def write_png(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Draw all panels below one another and write the picture.

    Raises:
        ConfigError: the file cannot be written.

    Cost: a second, mostly for loading the drawing library.
    """
    # A second to load: only who asks for a picture waits for it. The figure is made without
    # pyplot, which would keep it in a table of the process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, _INCHES * max(1, len(panels))), layout="constrained")
    figure.suptitle(title)
    FigureCanvasAgg(figure)  # gives the figure its renderer
    for axes, panel in zip(
        figure.subplots(max(1, len(panels)), squeeze=False)[:, 0], panels, strict=False
    ):
        for line in panel.lines:
            axes.plot(line.xs, line.ys, label=line.name)
        for mark in panel.marks:
            axes.axvspan(mark.begin, mark.end, color="tab:red", alpha=0.15)
            place = {"transform": axes.get_xaxis_transform(), "va": "top", "rotation": 90}
            axes.text(mark.begin, 0.98, mark.name, size=7, **place)
        if panel.x_log:
            axes.set_xscale("log")
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_ylim(0, panel.y_max * 1.02 or None)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(loc="best")
    try:
        with path.open("wb") as file:
            figure.savefig(file, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error

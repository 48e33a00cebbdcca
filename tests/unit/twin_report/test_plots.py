from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from bedplate.twin.curves import Line, Panel, panels
from bedplate.twin.plots import draw_text, write_png
from tests.unit.twin_report.builders import outcome, workload
from tests.unit.twin_report.test_report import run


def panel(*lines: Line, y_max: float = 0.0) -> Panel:
    return Panel("KV", "time, s", "%", y_max, lines)


def test_every_curve_of_a_run() -> None:
    found = {each.title: each for each in panels(run(), workload())}
    assert list(found) == ["KV occupancy", "turns", "sessions", "TTFT", "session time"]
    held, running, pool = found["KV occupancy"].lines
    assert held.xs == (0.0, 1.0, 4.0, 10.0)
    assert held.ys == (10.0, 40.0, 80.0, 0.0)
    assert running.ys == (0.0, 20.0, 30.0, 0.0)
    assert set(pool.ys) == {25.0}
    assert [line.name for line in found["TTFT"].lines] == ["interactive", "batch"]
    ttft = found["TTFT"].lines[0]
    assert (ttft.xs[0], ttft.xs[-1], ttft.ys[0], ttft.ys[-1]) == (0.5, 2.1, 0.0, 100.0)
    assert [line.name for line in found["session time"].lines] == ["interactive"]


def test_nothing_has_no_curves() -> None:
    assert panels(outcome([], []), workload()) == ()
    assert draw_text(()) == ""


def test_text_fills_each_column_up_to_its_value() -> None:
    rising = Line("x", tuple(float(at) for at in range(16)), tuple(float(at) for at in range(16)))
    head, upper, lower = draw_text([panel(rising, y_max=15.0)], columns=23).splitlines()
    assert head == "KV, %; time, s 0 to 15"
    assert upper == "            ▁▂▃▄▅▆▇█ 15"
    assert lower == "  x  ▂▃▄▅▆▇█████████ 0"


def test_what_is_above_nothing_shows() -> None:
    flat = Line("x", (0.0, 1.0), (0.001, 0.001))
    lower = draw_text([panel(flat, y_max=100.0)], columns=30).splitlines()[-1]
    assert "▁" in lower


def test_lines_of_a_panel_share_one_scale_and_keep_their_last_value() -> None:
    small, large = Line("a", (0.0, 4.0), (1.0, 1.0)), Line("b", (0.0, 1.0), (8.0, 4.0))
    rows = draw_text([panel(small, large)], columns=40).splitlines()
    assert rows[1].rstrip().endswith("8")
    assert set(rows[2][4:-2]) == {"▂"}  # 1 of 8, in a scale of 16 eighths
    assert rows[4][4:-2].endswith("█")


def test_text_keeps_to_its_width() -> None:
    for columns in (20, 60, 200):
        text = draw_text(panels(run(), workload()), columns=columns)
        assert max(map(len, text.splitlines())) <= max(columns, 40)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    write_png(panels(run(), workload()), path, title="made")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        write_png(panels(run(), workload()), tmp_path / "none" / "run.png", title="made")

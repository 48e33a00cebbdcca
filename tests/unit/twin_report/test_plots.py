from __future__ import annotations

from pathlib import Path

import pytest

from bedplate.errors import ConfigError
from bedplate.twin.curves import Line, Mark, Panel, panels
from bedplate.twin.faults import NEVER
from bedplate.twin.outcome import FaultRow
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


def test_faults_are_marked_in_the_panels_over_time() -> None:
    made = run()
    second = 10**9
    made.faults = [
        FaultRow("card_lost", "c-0", 2 * second, 5 * second, 1, 0),
        FaultRow("tool_slow", "", 9 * second, NEVER, 0, 0),
        FaultRow("tool_slow", "", 11 * second, NEVER, 0, 0),  # the run ends after 10 s
    ]
    found = {each.title: each for each in panels(made, workload())}
    marks = (("card_lost c-0", 2.0, 5.0), ("tool_slow", 9.0, 10.0))
    assert found["KV occupancy"].marks == found["turns"].marks == found["sessions"].marks == marks
    assert found["TTFT"].marks == ()


def test_a_line_of_text_shows_when_faults_hold() -> None:
    """Ten columns of a second each."""
    flat = Line("x", (0.0, 10.0), (1.0, 1.0))
    marked = panel(flat, y_max=1.0)._replace(marks=(Mark("a", 2.5, 4.5), Mark("b", 9.5, 10.0)))
    last = draw_text([marked], columns=21).splitlines()[-1]
    assert last == "  faults   ━━━    ━"
    assert len(draw_text([panel(flat, y_max=1.0)], columns=21).splitlines()) == 3


def test_nothing_has_no_curves() -> None:
    assert panels(outcome([], []), workload()) == ()
    assert draw_text(()) == ""


def test_text_fills_each_column_up_to_its_value() -> None:
    rising = Line("x", tuple(float(at) for at in range(16)), tuple(float(at) for at in range(16)))
    head, upper, lower = draw_text([panel(rising, y_max=15.0)], columns=23).splitlines()
    assert head == "KV, %; time, s 0 to 15"
    assert upper == "            ▁▂▃▄▅▆▇█ 15"
    assert lower == "  x  ▂▃▄▅▆▇█████████ 0"


def test_a_logarithmic_axis_gives_each_factor_the_same_room() -> None:
    """A step at 10 of 1 to 1,000 is a third of the way, and at its left edge on a linear axis."""
    step = Line("x", (0.0, 1.0, 10.0, 1_000.0), (0.0, 0.0, 100.0, 100.0))
    shown = {
        log: draw_text([panel(step, y_max=100.0)._replace(x_log=log)], columns=38).splitlines()
        for log in (True, False)
    }
    assert shown[True][0] == "KV, %; time, s 1 to 1,000, log"
    assert shown[True][2] == "  x " + " " * 10 + "█" * 20 + " 0"
    assert shown[False][2] == "  x " + "█" * 30 + " 0"


def test_nothing_above_zero_on_a_logarithmic_axis() -> None:
    zero = Line("x", (0.0, 0.0), (0.0, 100.0))
    lower = draw_text([panel(zero, y_max=100.0)._replace(x_log=True)], columns=30).splitlines()[-1]
    assert "█" in lower


def test_times_stand_on_a_logarithmic_axis() -> None:
    assert {each.title for each in panels(run(), workload()) if each.x_log} == {
        "TTFT",
        "session time",
    }


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

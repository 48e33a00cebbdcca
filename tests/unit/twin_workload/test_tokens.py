from __future__ import annotations

import pytest

from bedplate.twin.workload.tokens import estimate_tokens


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("word", 964),
        ("internationally", 964 + 9 * 120),
        ("one two three", 3 * 964),
        ("2026", 4 * 1218),
        ("snake_case", 2 * 964 + 1140),
        ("合规审查", 4 * 590),
        ("a\n\n\nb", 2 * 964 + 1162),
        ("a    b", 2 * 964 + 1137),
        ("();", 944 + 3 * 39),
        ("été", 2 * (944 + 39) + 964),
    ],
)
def test_runs_cost_what_they_cost_on_average(text: str, thousandths: int) -> None:
    assert estimate_tokens(text) == max(1, round(thousandths / 1000))
    lines = "\n".join([text] * 50)
    assert estimate_tokens(lines) == round((50 * thousandths + 49 * 1162) / 1000)


def test_only_nothing_has_no_tokens() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") == 1

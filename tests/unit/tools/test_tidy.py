from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.repository import ROOT, modules
from tools.tidy import RATCHET, Excess, excesses, lowered, problems

pytestmark = pytest.mark.quality


def found_in(tmp_path: Path, source: str) -> list[Excess]:
    path = tmp_path / "sample.py"
    path.write_text(source, encoding="utf-8")
    return list(excesses(path, name="sample.py"))


def test_the_repository_is_tidy() -> None:
    found = [e for path in modules() for e in excesses(path, name=str(path.relative_to(ROOT)))]
    assert problems(found, json.loads(RATCHET.read_text())) == []


def test_a_long_module_is_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, "x = 1\n" * 400) == []
    assert [str(e) for e in found_in(tmp_path, "x = 1\n" * 401)] == [
        "sample.py:1: 401 lines, at most 400"
    ]


def test_a_reason_in_the_docstring_allows_600_lines(tmp_path: Path) -> None:
    reason = '"""Does much.\n\nLength: one table that belongs together.\n"""\n'
    assert found_in(tmp_path, reason + "x = 1\n" * 500) == []
    assert [e.limit for e in found_in(tmp_path, reason + "x = 1\n" * 600)] == [600]


@pytest.mark.parametrize(
    "docstring", ['"""Length:\n"""\n', "# Length: a comment is no docstring\n"]
)
def test_a_reason_must_be_one(tmp_path: Path, docstring: str) -> None:
    assert [e.limit for e in found_in(tmp_path, docstring + "x = 1\n" * 500)] == [400]


def test_a_long_function_is_found_wherever_it_is(tmp_path: Path) -> None:
    body = "".join(f"            x{i} = {i}\n" for i in range(70))
    source = f"class A:\n    if True:\n        async def run(self):\n{body}"
    assert [(e.key, e.line, e.size) for e in found_in(tmp_path, source)] == [
        ("sample.py::A.run lines", 3, 71)
    ]


def test_many_parameters_are_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, "class A:\n    def f(self, a, b, c, d, e, *, g, h): ...\n") == []
    assert [str(e) for e in found_in(tmp_path, "def f(a, b, /, c, d, e, g): ...\n")] == [
        "sample.py:1: 6 parameters of f, at most 5"
    ]
    assert found_in(tmp_path, "def test_f(a, b, c, d, e, g): ...\n") == []


def test_the_ratchet_only_turns_one_way() -> None:
    def at(size: int) -> list[Excess]:
        return [Excess("a.py", 1, size, 400, "lines")]

    assert problems(at(450), {"a.py": 450}) == []
    assert "only shrink" in problems(at(451), {"a.py": 450})[0]
    assert "--lower" in problems(at(449), {"a.py": 450})[0]
    assert "--lower" in problems([], {"a.py": 450})[0]
    assert problems(at(401), {}) == ["a.py:1: 401 lines, at most 400"]
    assert lowered(at(449), {"a.py": 450, "gone.py": 500}) == {"a.py": 449}
    assert lowered(at(460), {"a.py": 450}) == {"a.py": 450}
    assert lowered(at(460), {}) == {}

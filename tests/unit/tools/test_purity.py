from __future__ import annotations

from pathlib import Path

import pytest

from tools.purity import ALLOWED, CORE, faults

pytestmark = pytest.mark.quality


def found_in(tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / "sample.py"
    path.write_text(source, encoding="utf-8")
    return [fault.text for fault in faults([path])]


def test_the_core_is_pure() -> None:
    paths = sorted(CORE.rglob("*.py"))
    assert paths
    assert [str(fault) for fault in faults(paths)] == []


def test_no_banned_module_is_allowed() -> None:
    banned = "time random asyncio os socket threading logging uuid secrets datetime sys pathlib io"
    assert not ALLOWED & set(banned.split())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import time", "imports time"),
        ("import os.path", "imports os.path"),
        ("def f():\n    from random import random", "imports random.random"),
        ("from datetime import datetime", "imports datetime.datetime"),
        ("import numpy", "imports numpy"),
        ("from bedplate import journal", "imports bedplate.journal"),
        ("from bedplate.journal import Journal", "imports bedplate.journal.Journal"),
        ("async def f(): ...", "is async"),
        ("x = 1.0", "has the float 1.0"),
        ("x = 1e9", "has the float 1000000000.0"),
        ("x = a / b", "divides by /; use // or compare products"),
        ("x /= 2", "divides by /=; use //= or compare products"),
        ("x = float(a)", "calls float()"),
        ("print(a)", "calls print()"),
        ("open(a)", "calls open()"),
        ("x = hash(a)", "calls hash()"),
    ],
)
def test_what_is_impure_is_found(tmp_path: Path, source: str, text: str) -> None:
    assert found_in(tmp_path, source) == [text]


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: ...",
        "for x in set(a): ...",
        "for x in frozenset(a): ...",
        "for x in {y for y in a}: ...",
        "s = set(a)\nfor x in s: ...",
        "def f(s: set[int]):\n    for x in s: ...",
        "def f(s: frozenset[int]):\n    return list(s)",
        "def f(s: set[int]):\n    return [x for x in s]",
        "def f(s: set[int]):\n    return {x: 1 for x in s}",
        "def f(s: set[int]):\n    return next(iter(s))",
        "def f(s: set[int]):\n    return max(s, key=g)",
        "def f(s: set[int]):\n    return s.pop()",
        "def f(s: set[int]):\n    return [*s]",
        "def f(s: set[str]):\n    return ','.join(s)",
        "def f(s: set[int]):\n    yield from s",
        "def f(s: set[int], t):\n    return tuple(s | t)",
        "def f(a, b):\n    return list(a.keys() & b.keys())",
        "class A:\n    def __init__(self):\n        self.s: set[int] = g()\n"
        "    def f(self):\n        return list(self.s)",
        "class A:\n    s: frozenset[int]\ndef f(a):\n    for x in a.s: ...",
    ],
)
def test_what_depends_on_the_order_of_a_set_is_found(tmp_path: Path, source: str) -> None:
    found = found_in(tmp_path, source)
    assert found
    assert all("the order of the set" in text or "pops from a set" in text for text in found)


@pytest.mark.parametrize(
    "source",
    [
        "from bedplate.core import limits\nfrom bedplate.core.ids import TenantId",
        "from collections import deque\nimport heapq",
        "def f(s: set[int]):\n    return sorted(s), len(s), sum(s), min(s), 1 in s",
        "def f(s: set[int]):\n    return sorted(x + 1 for x in s), any(x for x in s)",
        "def f(s: set[int]):\n    return {x + 1 for x in s}",
        "def f(d: dict[int, int]):\n    return [x for x in d], d.pop(1), list(d.keys())",
        "x = 7 // 2",
        "x = 'a / b 1.0'",
    ],
)
def test_what_is_pure_passes(tmp_path: Path, source: str) -> None:
    assert found_in(tmp_path, source) == []


def test_a_name_is_a_set_only_in_its_scope(tmp_path: Path) -> None:
    source = "def f():\n    s = set(a)\n    return len(s)\ndef g(s):\n    return list(s)\n"
    assert found_in(tmp_path, source) == []

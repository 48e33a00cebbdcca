"""What users can type, read or be told stands in the documents, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bedplate.cli.main import COMMANDS, application
from bedplate.engines.llamacpp.request import PARAMS
from bedplate.errors import BedplateError
from bedplate.gateway import errors_http
from bedplate.gateway.audit import CLIENT_ERROR, REFUSED
from bedplate.gateway.idempotency import NOTE_KIND as ANSWERED
from bedplate.gateway.openai.params import HARMLESS, RESERVED, UNDERSTOOD
from bedplate.gateway.recognition import NOTE_KIND as RECOGNISED
from bedplate.metering.rows import USAGE
from bedplate.replay import fold
from tools.repository import ROOT, tracked

pytestmark = pytest.mark.quality

SOURCE = ROOT / "src" / "bedplate"
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
ROWS = {"A": 11, "B": 9, "C": 4, "D": 10, "E": 6, "F": 11, "G": 7}
"""Rows of each section of the requirements."""
STATES = ("works", "part", "planned")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def pages() -> list[Path]:
    found = sorted(path for path in tracked() if path.suffix == ".md")
    assert len(found) > 20
    return found


def sources() -> Iterator[tuple[Path, str]]:
    for path in SOURCE.rglob("*.py"):
        yield path, text_of(path)


def section(page: str, title: str) -> str:
    """Return the part of a page under a heading, up to the next heading of its level or above."""
    match = re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)
    assert match is not None, f"no section {title!r}"
    rest = page[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest if end is None else rest[: end.start()]


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield each command that runs, by the words that call it."""
    inner = getattr(command, "commands", None)
    if inner:
        for name, child in inner.items():
            yield from leaves(child, (*path, name))
    else:
        yield " ".join(path), command


def commands(name: str) -> list[tuple[str, Any]]:
    """Return what typer makes of this file's commands; their types are not public."""
    root: Any = typer.main.get_command(application([name]))
    return list(leaves(root.commands[name], (name,)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    page = text_of(REFERENCE / "cli.md")
    found = commands(name)
    assert found
    for words, command in found:
        written = section(page, words)
        for option in [word for param in command.params for word in param.opts]:
            if option.startswith("-") and option != "--help":
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", written), f"{words} {option}"


def test_every_documented_option_exists() -> None:
    known = {
        option
        for name in COMMANDS
        for _, command in commands(name)
        for param in command.params
        for option in param.opts
    } | {"--help", "--version"}
    page = text_of(REFERENCE / "cli.md")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) - known == set()


def tree() -> list[type[BedplateError]]:
    """Return every class of the error tree."""
    found = [BedplateError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found


def error_codes() -> set[str]:
    codes = {errors_http.UnknownPath.code, fold.Halt.code}  # their modules add to the tree
    codes |= {
        match
        for _, text in sources()
        for match in re.findall(r'\bcode="([a-z_]+)"', text)
        + re.findall(r'\bcode = "([a-z_]+)"', text)
        + re.findall(r'code = "([a-z_]+)" if', text)
        + re.findall(r'else "(journal_[a-z]+)"', text)
    }
    return codes | {cls.code for cls in tree()}


def test_every_error_code_is_in_the_reference_and_no_other() -> None:
    page = text_of(REFERENCE / "errors.md")
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:(\d{3}) \|)?", page, re.MULTILINE)
    written = {code for code, _ in rows}
    assert error_codes() - written == set()
    assert written - error_codes() == set()


def test_statuses_are_those_of_the_tree() -> None:
    page = text_of(REFERENCE / "errors.md")
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", page, re.MULTILINE))
    own = {cls.code: str(cls.http_status) for cls in tree() if "code" in vars(cls)}
    assert {code: own[code] for code in rows if code in own} == {
        code: status for code, status in rows.items() if code in own
    }


def metric_names() -> set[str]:
    names = set()
    for path in ("metrics.py", "view.py"):
        text = text_of(SOURCE / "gateway" / path)
        for name in re.findall(r'"(bedplate_[a-z_]+)"', text):
            names.add(name)
    assert len(names) > 30
    return names


def test_every_metric_is_in_the_reference_and_no_other() -> None:
    page = text_of(REFERENCE / "metrics.md")
    written = set(re.findall(r"^\| `(bedplate_[a-z_]+)` \|", page, re.MULTILINE))
    names = metric_names()
    assert {name for name in names if not written & {name, f"{name}_total"}} == set()
    assert {name for name in written if not names & {name, name.removesuffix("_total")}} == set()


def test_every_counter_of_the_core_is_in_the_reference() -> None:
    page = section(text_of(REFERENCE / "metrics.md"), "Journal and core")
    written = set(re.findall(r"`([a-z_]+)`", page))
    core = "".join(text for path, text in sources() if path.parent.name == "core")
    names = set(re.findall(r'\.count\("([a-z_]+)"', core))
    assert len(names) > 15
    assert names - written == set()
    stems = set(re.findall(r'\.count\(f"([a-z_]+)\{', core))
    assert {stem for stem in stems if not any(name.startswith(stem) for name in written)} == set()


def test_every_cited_invariant_is_listed() -> None:
    listed = set(re.findall(r"^\| (INV-\d+) \|", text_of(DOCS / "invariants.md"), re.MULTILINE))
    cited = {number for _, text in sources() for number in re.findall(r"INV-\d+", text)}
    assert len(cited) > 8
    assert cited - listed == set()


def test_every_parameter_of_a_chat_call_is_in_the_reference() -> None:
    page = text_of(REFERENCE / "api.md")
    for title, names in (
        ("Understood", UNDERSTOOD),
        ("Taken without effect", HARMLESS),
        ("Refused, as they are the service's own", RESERVED),
        ("Everything else", PARAMS),
    ):
        written = set(re.findall(r"`([a-z_]+)`", section(page, title)))
        assert set(names) - written == set(), title


def test_every_route_and_header_of_the_service_is_in_the_reference() -> None:
    page = text_of(REFERENCE / "api.md")
    gateway = "".join(text for path, text in sources() if "gateway" in path.parts)
    for route in set(re.findall(r'"(/v1/[a-z/]+|/healthz|/readyz|/metrics)"', gateway)):
        assert route.rstrip("/") in page, route
    for header in set(re.findall(r'b"(x-bedplate-[a-z-]+)"', gateway)):
        assert header in page.lower(), header


def test_every_kind_of_note_is_explained() -> None:
    page = text_of(DOCS / "concepts" / "journal.md")
    rooms = [text for path, text in sources() if path.parent.name in ("runtime", "gateway")]
    kinds = {kind for text in rooms for kind in re.findall(r'note\("([a-z_]+)"', text)}
    kinds |= {kind for text in rooms for kind in re.findall(r'_append\("([a-z_]+)"', text)}
    assert len(kinds) > 5
    kinds |= {REFUSED, CLIENT_ERROR, RECOGNISED, ANSWERED, USAGE}
    assert kinds - set(re.findall(r"`([a-z_]+)`", page)) == set()


def slugs(path: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    titles = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    plain = [re.sub(r"[`*\[\]]|\(.*?\)", "", title).strip().lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page if not path else (page.parent / path).resolve()
        assert linked.exists(), target
        if anchor:
            assert anchor in slugs(linked), target


def test_every_page_can_be_reached_from_the_index() -> None:
    index = text_of(DOCS / "README.md")
    linked = {(DOCS / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)", index)}
    assert set(DOCS.rglob("*.md")) - linked - {DOCS / "README.md"} == set()


def coverage_rows() -> list[list[str]]:
    lines = re.findall(r"^\| ([A-G]\d+ \|.*)\|$", text_of(DOCS / "coverage.md"), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_coverage_has_every_requirement_once() -> None:
    wanted = [f"{part}{number}" for part, size in ROWS.items() for number in range(1, size + 1)]
    assert [row[0] for row in coverage_rows()] == wanted


def test_coverage_says_no_more_than_it_shows() -> None:
    for row, _, state, so_far, shown, held, later in coverage_rows():
        assert state in STATES, row
        assert bool(later) == (state != "works"), row
        if state == "works":
            assert shown, row
        if state != "planned":
            assert so_far, row
            assert held, row
        for path in re.findall(r"`(tests/[^`]+)`", held):
            assert (ROOT / path).is_file(), f"{row}: {path}"


def test_both_readmes_have_the_same_examples() -> None:
    english, chinese = (
        re.findall(r"```.*?```", text_of(ROOT / name), re.DOTALL)
        for name in ("README.md", "README.zh-CN.md")
    )
    assert len(english) > 5
    assert english == chinese

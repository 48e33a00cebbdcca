"""Keep the core pure: the same events give the same decisions, in any process, on any day.

Every module of `bedplate.core`

- imports only the standard modules named in `ALLOWED`, `bedplate.core` and `bedplate.errors`:
  nothing that reads a clock, draws a number, opens a file or socket, logs or starts a thread;
- has no `async`, no `await`, no float or complex literal, no `/` division;
- calls none of `BANNED_CALLS`: files, the terminal, floats, and `hash`, which differs from process
  to process;
- never depends on the order of a set: no loop over one, no list, tuple or iterator of one, no
  `pop()`. `sorted(...)`, `len`, `in`, `any`, `all` and `sum` are fine.

Sets are found by what the source shows: displays, comprehensions, `set(...)`, set operators, and
names and attributes annotated or assigned as sets. That is a good net, not a proof; the replay
tests, which run each decision again under another hash seed, are the other half.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.repository import ROOT

CORE = ROOT / "src" / "bedplate" / "core"

ALLOWED = frozenset(
    {
        "__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses",
        "enum", "functools", "hashlib", "heapq", "itertools", "json", "operator", "re", "string",
        "struct", "types", "typing", "bedplate.core", "bedplate.errors",
    }
)  # fmt: skip
BANNED_CALLS = frozenset(
    {
        "__import__", "breakpoint", "compile", "complex", "eval", "exec", "float", "hash",
        "input", "open", "print",
    }
)  # fmt: skip
_ORDERED = frozenset({"enumerate", "iter", "list", "map", "filter", "reversed", "tuple", "zip"})
"""Calls whose result keeps the order of what they are given."""
_ORDERLESS = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"})
"""Calls whose result does not depend on the order of what they are given, without `key`."""
_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


class Fault(NamedTuple):
    """One impure place."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        """Return the line that people read."""
        return f"{self.path}:{self.line}: {self.text}"


def faults(paths: list[Path]) -> list[Fault]:
    """Return every impure place in these modules, in order of file and line."""
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"), str(path))) for path in paths]
    attributes = _set_attributes([tree for _, tree in trees])
    found: list[Fault] = []
    for path, tree in trees:
        visitor = _Visitor(attributes)
        visitor.visit(tree)
        found.extend(Fault(path, line, text) for line, text in sorted(visitor.found))
    return found


class _Visitor(ast.NodeVisitor):
    """Collect the faults of one module. `_names` holds the set-typed names of each open scope."""

    def __init__(self, attributes: frozenset[str]) -> None:
        self.found: list[tuple[int, str]] = []
        self._attributes = attributes
        self._names: list[frozenset[str]] = [frozenset()]

    def _add(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append((node.lineno, text))

    def visit_Module(self, node: ast.Module) -> None:
        self._names = [self._set_names(node)]
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not _allowed(alias.name):
                self._add(node, f"imports {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level == 0 and not _allowed(module):
            for alias in node.names:
                if not _allowed(f"{module}.{alias.name}"):
                    self._add(node, f"imports {module}.{alias.name}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._names.append(self._names[-1] | self._set_names(node))
        self.generic_visit(node)
        self._names.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._add(node, "is async")

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._add(node, "is async")

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._add(node, "is async")

    def visit_Await(self, node: ast.Await) -> None:
        self._add(node, "awaits")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, float | complex):
            self._add(node, f"has the float {node.value!r}")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Div):
            self._add(node, "divides by /; use // or compare products")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Div):
            self._add(node, "divides by /=; use //= or compare products")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._ordered(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if node.is_async:
            self._add(node.iter, "is async")
        self._ordered(node.iter)
        self.generic_visit(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._orderless(node)  # a set made of a set has no order to depend on

    def visit_Starred(self, node: ast.Starred) -> None:
        self._ordered(node.value)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._ordered(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name) if name in BANNED_CALLS:
                self._add(node, f"calls {name}()")
            case ast.Name(id=name) if name in _ORDERLESS and not node.keywords:
                for argument in node.args:
                    if isinstance(argument, ast.GeneratorExp):
                        self._orderless(argument)
                    else:
                        self.visit(argument)
                return
            case ast.Name(id=name) if name in _ORDERED:
                for argument in node.args:
                    self._ordered(argument)
            case ast.Name(id="min" | "max") if any(word.arg == "key" for word in node.keywords):
                self._ordered(node.args[0])  # ties of the key fall to whichever comes first
            case ast.Name(id="next") if node.args:
                self._ordered(node.args[0])
            case ast.Attribute(value=owner, attr="pop") if self._is_set(owner):
                self._add(node, "pops from a set, in no order")
            case ast.Attribute(attr="join" | "extend") if node.args:
                self._ordered(node.args[0])
            case _:
                pass
        self.generic_visit(node)

    def _orderless(self, node: ast.SetComp | ast.GeneratorExp) -> None:
        for generator in node.generators:
            self.visit(generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        self.visit(node.elt)

    def _ordered(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._add(node, f"depends on the order of the set {ast.unparse(node)}")

    def _set_names(self, scope: ast.AST) -> frozenset[str]:
        """Return the names that this scope, without those inside it, makes sets."""
        names: set[str] = set()
        if isinstance(scope, ast.FunctionDef):
            arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
            names.update(a.arg for a in arguments if _is_set_type(a.annotation))
        for node in _own_nodes(scope):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    if _is_set_type(annotation):
                        names.add(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if self._is_set(value):
                        names.add(name)
                case _:
                    pass
        return frozenset(names)

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self._names[-1]
            case ast.Attribute(attr=name):
                return name in self._attributes
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr="copy")):
                return self._is_set(owner)
            case ast.Call(func=ast.Attribute(attr=method)):
                return method in _SET_METHODS
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                return any(self._is_set(side) or _is_keys(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_set(body) or self._is_set(orelse)
            case _:
                return False


def _allowed(module: str) -> bool:
    parts = module.split(".")
    return parts[0] in ALLOWED or ".".join(parts[:2]) in ALLOWED


def _is_keys(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
        case _:
            return False


def _is_set_type(annotation: ast.expr | None) -> bool:
    match annotation:
        case ast.Subscript(value=base):
            return _is_set_type(base)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SET_TYPES
        case _:
            return False


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield child
            yield from _own_nodes(child)


def _set_attributes(trees: list[ast.Module]) -> frozenset[str]:
    """Return attribute names that are annotated as sets somewhere and as nothing else anywhere."""
    sets: set[str] = set()
    others: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            fields = node.body if isinstance(node, ast.ClassDef) else [node]
            for field in fields:
                match field:
                    case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                        (sets if _is_set_type(annotation) else others).add(name)
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if (
                        isinstance(node, ast.ClassDef)
                    ):
                        (sets if _is_set_type(annotation) else others).add(name)
                    case _:
                        pass
    return frozenset(sets - others)


def main() -> int:
    """Check the core."""
    found = faults(sorted(CORE.rglob("*.py")))
    for fault in found:
        print(fault._replace(path=fault.path.relative_to(ROOT)))
    print(f"purity: {len(found)} faults" if found else "purity: the core is pure")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

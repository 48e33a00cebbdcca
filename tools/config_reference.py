"""Write docs/reference/configuration.md from the configuration tree.

Text around the tables is here; keys, defaults, bounds and descriptions come from the tree, so that
they cannot differ. A test compares the file with what this writes.
"""

from __future__ import annotations

import sys
import types
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from bedplate.config.explain import Key, keys
from bedplate.config.fields import SECONDS_MAX, Bytes
from bedplate.config.sizes import format_size
from bedplate.config.tree import Config
from bedplate.core.limits import LANE_NAMES
from tools.repository import ROOT

TARGET = ROOT / "docs" / "reference" / "configuration.md"

INTRODUCTION = """\
# Configuration

One TOML file configures a cell. Every key has a default: `bedplate serve` without a file runs two
embedded cards. `bedplate config check FILE` tests a file, `bedplate config show [FILE]` prints what
it resolves to. This page is written from the code by `make docs`.

**Which file.** The one that `--config` names, else the one that `BEDPLATE_CONFIG` names, else
none.

**What wins.** Options of the command line, then `BEDPLATE_DATA_DIR` (for `service.data_dir`), then
the file, then the defaults.

**Values.** Units stand in the names. `_bytes` takes a number or a text such as `"512MiB"` or
`"4GiB"`. `_seconds` takes fractions, and at most a year. `_micro` is a millionth of the currency
unit. A limit of 0 means no limit. A relative path starts at the folder of the file that names it.

**Errors.** An unknown key is an error that names the nearest known one. So is a value of the wrong
type or out of its range. Text is never taken for a number.

**Secrets** never stand in the file. `api_key_env` names an environment variable; `config show`
masks its value.

```toml
[service]
port = 8080

[[engine]]
kind = "llamacpp"
cards = 2

[[engine]]
kind = "openai"
name = "vllm"
model = "qwen3-32b"
urls = ["http://10.0.0.7:8000/v1", "http://10.0.0.8:8000/v1"]
api_key_env = "VLLM_KEY"
server = "vllm"

[pool]
size_bytes = "4GiB"

[[tenant]]
id = "fraud"
running_max = 8
tokens_per_minute = 200_000
```
"""

HEADINGS = {
    "service": "`[service]`: the HTTP service",
    "engine.llamacpp": '`[[engine]]` with `kind = "llamacpp"`: embedded cards',
    "engine.openai": '`[[engine]]` with `kind = "openai"`: endpoints of one model',
    "engine.openai.capabilities": "`[engine.capabilities]`: corrections for an endpoint",
    "pool": "`[pool]`: shared KV behind the cards",
    "lanes": "`[lanes.interactive]`, `[lanes.shared]`, `[lanes.batch]`: service classes",
    "tenant": "`[[tenant]]`: a tenant",
    "defaults": "`[defaults]`: limits of all other tenants",
    "journal": "`[journal]`: the record of what was decided",
    "prices": "`[prices]`: what usage costs",
    "log": "`[log]`: the service's log",
}
"""Title of each section, in the order of the page."""

BY_THE_LOADER = frozenset({"service.data_dir", "pool.size_bytes"})
"""Keys whose default the loader finds out; their descriptions tell how."""

NOTES = {
    "engine.llamacpp": (
        "Without any `[[engine]]` there is one of this kind, with these defaults. The package's"
        " model is Gemma 3 270M; the Gemma terms of use apply to it."
    ),
    "engine.openai": (
        "Each endpoint is a card. Its id is the engine's `name` with `url`, and `name-0`, `name-1`"
        " and so on with `urls`; what the keys say of an endpoint holds for each of them."
    ),
    "engine.openai.capabilities": "Left out, a key has the value that `server` implies.",
    "lanes": "The defaults are those of interactive / shared / batch.",
    "tenant": "A limit that is left out is that of `[defaults]`.",
}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    found = list(keys())
    for section, title in HEADINGS.items():
        parts.append(f"## {title}\n")
        if section in NOTES:
            parts.append(f"{NOTES[section]}\n")
        if section == "lanes":
            parts.append(table(_lane_rows(found)))
        else:
            parts.append(table([row(key) for key in found if _section(key) == section]))
    return "\n".join(parts)


def _section(key: Key) -> str:
    return key.path.rsplit(".", 1)[0]


def table(rows: list[tuple[str, str, str, str]]) -> str:
    """Return a table of keys in Markdown."""
    head = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def row(key: Key) -> tuple[str, str, str, str]:
    """Return the cells of a key: name, values, default, meaning."""
    name = key.path.rpartition(".")[2]
    return f"`{name}`", _values(key.field), _default(key), key.field.description or ""


def _lane_rows(found: list[Key]) -> list[tuple[str, str, str, str]]:
    lanes = [key for key in found if key.path.startswith("lanes.")]
    lanes.sort(key=lambda key: list(key.section.model_fields).index(key.path.rsplit(".", 1)[1]))
    defaults = Config().lanes
    rows = []
    for name, group in groupby(lanes, key=lambda key: key.path.rsplit(".", 1)[1]):
        first = next(iter(group))
        values = [getattr(getattr(defaults, lane), name) for lane in LANE_NAMES]
        shown = " / ".join(f"{value:g}" for value in values)
        rows.append((f"`{name}`", _values(first.field), shown, first.field.description or ""))
    return rows


def _default(key: Key) -> str:
    field = key.field
    if field.is_required():
        return "required"
    if key.path in BY_THE_LOADER:
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if _is_size(field) and value:
        return f'`"{format_size(value)}"`'
    if isinstance(value, int | float):
        return f"`{value:,}`".replace(",", "_")
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{item:g}' for item in value)}]`"
    return f'`"{value}"`'


def _is_size(field: FieldInfo) -> bool:
    validator = get_args(Bytes)[1]
    plain = _without_none(field.annotation)
    return validator in field.metadata or validator in get_args(plain)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _values(field: FieldInfo) -> str:
    """Return what may stand there: type, and bounds where it has any."""
    plain = _without_none(field.annotation)
    metadata = list(field.metadata)
    while get_origin(plain) is Annotated:
        plain, *more = get_args(plain)
        metadata += more
    if get_origin(plain) is Literal:
        return ", ".join(f'`"{word}"`' for word in get_args(plain))
    tighter = {"ge": max, "gt": max, "le": min}
    bounds: dict[str, Any] = {}
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:
            for name, pick in tighter.items():
                if (bound := getattr(part, name, None)) is not None:
                    bounds[name] = pick(bounds.get(name, bound), bound)
    if _is_size(field):
        return f"size to {format_size(bounds['le'])}"
    return _type_name(plain) + _range(bounds)


def _type_name(plain: Any) -> str:
    names = {int: "integer", float: "number", bool: "boolean", str: "text", datetime: "date"}
    if get_origin(plain) in (tuple, dict):
        return "list" if get_origin(plain) is tuple else "table"
    return names.get(plain, "path")


def _range(bounds: dict[str, Any]) -> str:
    words = {"ge": "from", "gt": "above", "le": "to"}
    return "".join(
        f" {words[name]} {bounds[name]:_}"
        for name in words
        if name in bounds and bounds[name] != SECONDS_MAX
    )


def main() -> int:
    """Write the page."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page(), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Check or show the configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import counted, print_json, print_notice, print_text, source_of
from bedplate.cli.preflight import preflight, probe
from bedplate.config import Config, load
from bedplate.config.load import config_file, is_set
from bedplate.config.tree import LlamacppEngine, OpenaiEngine
from bedplate.errors import ConfigError

MASK = "********"

app = typer.Typer(no_args_is_help=True)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="The same as --config FILE."),
]


@app.command()
def check(
    file: FileArgument = None,
    *,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    endpoints: Annotated[
        bool, typer.Option("--probe", help="Ask every endpoint too, once.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Load the configuration, and see that `serve` would take it: its files, its tenants' keys."""
    path = _one(file, config)
    loaded = load(path, overrides={"service.data_dir": data_dir})
    preflight(loaded, path, data_dir)
    if endpoints:
        asyncio.run(probe(loaded, path))
    cards = sum(e.cards if isinstance(e, LlamacppEngine) else 1 for e in loaded.engines)
    if json:
        print_json(
            {
                "valid": True,
                "file": None if (read := config_file(path)) is None else str(read),
                "engines": len(loaded.engines),
                "cards": cards,
                "models": [engine.model for engine in loaded.engines],
                "tenants": len(loaded.tenants),
            }
        )
        return
    models = ", ".join(engine.model for engine in loaded.engines)
    print_text(
        f"valid: {counted(len(loaded.engines), 'engine')} with {counted(cards, 'card')}, "
        f"{'model' if len(loaded.engines) == 1 else 'models'} {models}; "
        f"{counted(len(loaded.tenants), 'tenant')} with limits of "
        f"{'its' if len(loaded.tenants) == 1 else 'their'} own"
    )
    print_text(f"Read: {source_of(path)}.")
    if loaded.tenants and not loaded.keys_path.is_file():
        print_notice(f"Note: no keys at {loaded.keys_path} yet, so no tenant was looked for there.")


@app.command()
def show(
    file: FileArgument = None,
    *,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Print the resolved configuration, defaults included and secrets masked."""
    overrides = {"service.data_dir": data_dir}
    tree = resolved(load(_one(file, config), overrides=overrides, secrets=False))
    if json:
        print_json(tree)
    else:
        print_text(to_toml(tree))


def _one(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None:
        raise ConfigError("give the file as FILE or with --config, not both")
    return file or config


def resolved(config: Config) -> dict[str, Any]:
    """Return the tree as JSON values, by the keys of the file.

    Secrets are masked; one whose environment variable is not set is None.
    """
    tree: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    for raw, engine in zip(tree["engine"], config.engines, strict=True):
        if isinstance(engine, OpenaiEngine) and engine.api_key_env is not None:
            raw["api_key"] = MASK if is_set(engine.api_key_env) else None
    return tree


def to_toml(tree: dict[str, Any]) -> str:
    """Return a resolved tree as a TOML file that loads to the same tree."""
    return "\n".join(_section(tree, "")).strip()


def _section(section: dict[str, Any], path: str) -> list[str]:
    lines, inner = [], []
    for key, value in section.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            inner += [*_titled(f"[{name}]", _section(value, f"{name}."))]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for part in value:
                inner += [*_titled(f"[[{name}]]", _section(part, f"{name}."))]
        elif value == MASK:
            lines.append(f"# {key} = {MASK}  (read from the environment)")
        elif value is None:
            lines.append(f"# {key}  ({section['api_key_env']} is not set)")
        elif not (isinstance(value, list) and not value):
            lines.append(f"{key} = {orjson.dumps(value).decode()}")
    return lines + inner


def _titled(title: str, lines: list[str]) -> list[str]:
    if not lines or lines[0] == "":  # nothing of its own: the titles inside say all
        return lines
    return ["", title, *lines]

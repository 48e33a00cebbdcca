"""Check or show the configuration."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import print_json, print_text
from bedplate.config import Config, load
from bedplate.config.engines import PACKAGE_PREFIX
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
    file: FileArgument = None, *, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Load the configuration, and see that the files it names are there."""
    loaded = load(_one(file, config))
    missing = _missing(loaded)
    if missing:
        raise ConfigError("\n".join(missing))
    cards = sum(e.cards if isinstance(e, LlamacppEngine) else 1 for e in loaded.engines)
    if json:
        print_json(
            {
                "valid": True,
                "engines": len(loaded.engines),
                "cards": cards,
                "models": [engine.model for engine in loaded.engines],
                "tenants": len(loaded.tenants),
            }
        )
        return
    models = ", ".join(engine.model for engine in loaded.engines)
    print_text(
        f"valid: {len(loaded.engines)} engine(s) with {cards} card(s), models {models}; "
        f"{len(loaded.tenants)} tenant(s) with limits of their own"
    )


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
    """Return the tree as JSON values, by the keys of the file; secrets are masked."""
    tree: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    for raw, engine in zip(tree["engine"], config.engines, strict=True):
        if isinstance(engine, OpenaiEngine) and engine.api_key_env is not None:
            raw["api_key"] = MASK
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
        elif not (isinstance(value, list) and not value):
            lines.append(f"{key} = {orjson.dumps(value).decode()}")
    return lines + inner


def _titled(title: str, lines: list[str]) -> list[str]:
    if not lines or lines[0] == "":  # nothing of its own: the titles inside say all
        return lines
    return ["", title, *lines]


def _missing(config: Config) -> list[str]:
    """Return one line for each file or package that is named and not there."""
    lines = []
    authorities = [
        (f"engine[{index}].tls_ca", engine.tls_ca)
        for index, engine in enumerate(config.engines)
        if isinstance(engine, OpenaiEngine)
    ]
    for key, path in (
        ("service.tls_cert", config.service.tls_cert),
        ("service.tls_key", config.service.tls_key),
        *authorities,
    ):
        if path is not None and not path.is_file():
            lines.append(f"{key}: there is no file {path}")
    for index, engine in enumerate(config.engines):
        if not isinstance(engine, LlamacppEngine):
            continue
        package = engine.path.removeprefix(PACKAGE_PREFIX)
        if package == engine.path:
            if not Path(engine.path).is_file():
                lines.append(f"engine[{index}].path: there is no file {engine.path}")
            continue
        try:
            distribution(package)
        except PackageNotFoundError:
            lines.append(f"engine[{index}].path: the package {package} is not installed")
    return lines

"""Check or show the configuration."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import counted, print_json, print_text
from bedplate.config import Config, load
from bedplate.config.engines import PACKAGE_PREFIX
from bedplate.config.load import NO_FILE, config_file, is_set
from bedplate.config.tree import LlamacppEngine, OpenaiEngine
from bedplate.errors import ConfigError

MASK = "********"
GGUF_MAGIC = b"GGUF"

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
    path = config_file(_one(file, config))
    loaded = load(path)
    faults = _faults(loaded)
    if faults:
        source = NO_FILE if path is None else path
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults))
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
        f"valid: {counted(len(loaded.engines), 'engine')} with {counted(cards, 'card')}, "
        f"{'model' if len(loaded.engines) == 1 else 'models'} {models}; "
        f"{counted(len(loaded.tenants), 'tenant')} with limits of "
        f"{'its' if len(loaded.tenants) == 1 else 'their'} own"
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


def _faults(config: Config) -> list[str]:
    """Return one line for each file or package that is named and not there, or no model file."""
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
            fault = _model_fault(Path(engine.path))
            if fault:
                lines.append(f"engine[{index}].path: {fault}")
            continue
        try:
            distribution(package)
        except PackageNotFoundError:
            lines.append(f"engine[{index}].path: the package {package} is not installed")
    return lines


def _model_fault(path: Path) -> str:
    """Return what is wrong with a model file by its first bytes, empty for a GGUF file."""
    if not path.is_file():
        return f"there is no file {path}"
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if magic == GGUF_MAGIC else f"{path} is no GGUF file"

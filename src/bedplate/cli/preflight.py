"""What a configuration names outside itself and must be there: files, packages, tenants' keys.

`serve` refuses to start where something is not, and `config check` asks the same.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from bedplate.cli.output import options_again, program
from bedplate.config import Config
from bedplate.config.engines import PACKAGE_PREFIX
from bedplate.config.load import NO_FILE, config_file
from bedplate.config.tree import LlamacppEngine, OpenaiEngine
from bedplate.engines.openai import OpenAIEngine
from bedplate.errors import ConfigError
from bedplate.gateway.keys import KeyStore
from bedplate.runtime.build import SALT_BYTES

GGUF_MAGIC = b"GGUF"


def preflight(config: Config, file: Path | None, data_dir: Path | None = None) -> None:
    """Refuse a configuration that cannot serve as it stands.

    `file` and `data_dir` are what the command was given, for the hints.

    Creates nothing: where there is no file of keys yet, tenants are compared with none.

    Raises:
        ConfigError: the message has a line for each thing that is wrong, with its key.
    """
    faults = _file_faults(config)
    if config.keys_path.is_file():
        with KeyStore(config.keys_path) as keys:
            faults += tenant_faults(config, keys, options_again(file, data_dir))
    _refuse(faults, file)


async def probe(config: Config, file: Path | None) -> None:
    """Ask every endpoint once, as the service does at its start: is it there, the key, the model.

    Raises:
        ConfigError: the message has a line for each endpoint that could not serve.
    """
    faults = []
    for index, section in enumerate(config.engines):
        if not isinstance(section, OpenaiEngine):
            continue
        engine = OpenAIEngine(section, salt_secret=bytes(SALT_BYTES))  # no call carries it
        await engine.start(lambda _: None)
        try:
            faults += [f"engine[{index}]: {card} {why}" for card, why in engine.problems.items()]
        finally:
            await engine.stop()
    _refuse(faults, file)


def _refuse(faults: list[str], file: Path | None) -> None:
    if faults:
        source = config_file(file) or NO_FILE
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults))


def tenant_faults(config: Config, keys: KeyStore, options: str = "") -> list[str]:
    """Return a line for each tenant whose limits bind nobody, as no key names it.

    A misspelt name leaves the tenant that was meant unlimited. Before the first key is made every
    section may be meant for later. `options` end the command that makes one.
    """
    named = keys.tenants()
    lines = []
    for index, tenant in enumerate(config.tenants if named else ()):
        if tenant.id not in named:
            near = get_close_matches(tenant.id, named, n=1)
            meant = f'; the nearest tenant with a key is "{near[0]}"' if near else ""
            lines.append(
                f'tenant[{index}].id: no key names "{tenant.id}", so its limits bind nobody'
                f"{meant}. Make one with `{program()} key add --tenant {tenant.id}{options}`, or "
                "take the section out"
            )
    return lines


def _file_faults(config: Config) -> list[str]:
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

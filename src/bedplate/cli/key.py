"""Add, list, revoke, rotate and expire API keys; a running service follows at once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import print_json, print_notice, print_table, print_text
from bedplate.config import Config, load
from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError
from bedplate.gateway.keys import KeyInfo, KeyStore, NewKey

app = typer.Typer(no_args_is_help=True)


class LaneName(StrEnum):
    """A lane as the command line spells it."""

    INTERACTIVE = "interactive"
    SHARED = "shared"
    BATCH = "batch"


KeyArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="As `bedplate key list` shows.")]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


@app.command()
def add(
    *,
    tenant: Annotated[str, typer.Option(help="Who pays for what this key does.")],
    lane: Annotated[
        list[LaneName] | None,
        typer.Option(help="A lane that it may use, the default first; repeat. Default: all."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model that it may call; repeat. Default: all.")
    ] = None,
    label: Annotated[str, typer.Option(help="A name for people.")] = "",
    expires: Annotated[
        str | None, typer.Option(help="Lifetime, such as 12h or 90d. Default: no end.")
    ] = None,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="It sees all tenants, drains cards, adds and removes slices."),
    ] = False,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key and print its secret, this once only."""
    now_ns = time.time_ns()
    loaded = _loaded(config, data_dir)
    with _store(loaded) as store:
        key = store.add(
            tenant,
            now_ns=now_ns,
            lanes=[LANE_NAMES.index(name) for name in lane] if lane else (0, 1, 2),
            models=model or (),
            label=label,
            admin=admin,
            expires_ns=0 if expires is None else now_ns + duration_ns(expires),
        )
    _print_secret(key, as_json=json)
    for notice in _unknown_names(loaded, tenant, model or ()):
        print_notice(notice)


@app.command("list")
def list_keys(
    *, config: ConfigOption = None, data_dir: DataDirOption = None, json: JsonOption = False
) -> None:
    """Show every key, without its secret."""
    now_ns = time.time_ns()
    with _store(_loaded(config, data_dir)) as store:
        infos = store.list()
    rows = [_row(info, now_ns) for info in infos]
    if json:
        print_json({"keys": rows})
    elif rows:
        print_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
    else:
        print_notice("There are no keys yet: bedplate key add --tenant NAME")


@app.command()
def revoke(
    key: KeyArgument,
    *,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """End a key for good."""
    with _store(_loaded(config, data_dir)) as store:
        store.revoke(key, now_ns=time.time_ns())
    _print_done(key, "revoked", as_json=json)


@app.command()
def rotate(
    key: KeyArgument,
    *,
    grace: Annotated[str, typer.Option(help="How long the old secret still works.")] = "1h",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Give a key a new secret and print it, this once only."""
    grace_ns = duration_ns(grace, zero=True)
    with _store(_loaded(config, data_dir)) as store:
        new = store.rotate(key, now_ns=time.time_ns(), grace_ns=grace_ns)
    _print_secret(new, as_json=json)


@app.command()
def expire(
    key: KeyArgument,
    *,
    after: Annotated[
        str, typer.Option("--in", help="Time from now, such as 12h; 0 for now, or never.")
    ],
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Set when a key ends."""
    now_ns = time.time_ns()
    at_ns = 0 if after == "never" else now_ns + duration_ns(after, zero=True)
    with _store(_loaded(config, data_dir)) as store:
        states = {info.credential.key_id: info.state(now_ns) for info in store.list()}
        store.expire(key, at_ns=at_ns)
    done = "set to no end" if at_ns == 0 else f"ends {when(at_ns)}"
    if states[key] == "expired":
        done += "; it had expired and works again"
    _print_done(key, done, as_json=json)


def duration_ns(text: str, *, zero: bool = False) -> int:
    """Return the nanoseconds of a text such as 30s, 15m, 12h or 90d; of 0 or 0s where it may be.

    Raises:
        ConfigError: The text is no duration, or none at all where that makes no sense.
    """
    match = _DURATION.fullmatch("0s" if text == "0" else text)
    if match is None or (int(match[1]) == 0 and not zero):
        raise ConfigError(f"{text!r} is no duration; write for example 30s, 15m, 12h or 90d")
    return int(match[1]) * _UNITS_S[match[2]] * SECOND_NS


def _loaded(config: Path | None, data_dir: Path | None) -> Config:
    return load(config, overrides={"service.data_dir": data_dir}, secrets=False)


def _unknown_names(config: Config, tenant: str, models: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each name that the configuration does not know: it may be misspelt."""
    tenants = [section.id for section in config.tenants]
    if tenants and tenant not in tenants:
        yield (
            f"Note: the configuration has no tenant {tenant!r}, so [defaults] limits it; "
            f"it has: {', '.join(tenants)}"
        )
    served = [engine.model for engine in config.engines]
    for model in models:
        if model not in served:
            yield f"Note: no engine serves the model {model!r}; there is: {', '.join(served)}"


@contextmanager
def _store(config: Config) -> Iterator[KeyStore]:
    path = config.keys_path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"service.data_dir: cannot make {path.parent}: {error}") from error
    with KeyStore(path) as store:
        yield store


def _print_secret(key: NewKey, *, as_json: bool) -> None:
    if as_json:
        print_json({"key_id": key.key_id, "secret": key.secret})
        return
    print_text(key.secret)
    print_notice(f"This is key {key.key_id}. Its secret is not stored: keep it now.")


def _print_done(key: str, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"key_id": key, "done": what})
    else:
        print_text(f"{key} {what}")


def _row(info: KeyInfo, now_ns: int) -> dict[str, object]:
    credential = info.credential
    return {
        "key_id": credential.key_id,
        "tenant": credential.tenant,
        "label": info.label,
        "lanes": [LANE_NAMES[lane] for lane in credential.lanes],
        "models": list(credential.models),
        "admin": credential.admin,
        "state": info.state(now_ns),
        "created": when(info.created_ns),
        "expires": when(credential.expires_ns) if credential.expires_ns else None,
    }


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value) or "all"
    if isinstance(value, bool):
        return "yes" if value else ""
    return value


def when(time_ns: int) -> str:
    """Return a time as text, to the second, in UTC."""
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).isoformat().replace("+00:00", "Z")

"""Ask for a part of the cards for one tenant, list such slices, and give them back."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from bedplate.cli import operator
from bedplate.cli.key import LaneName, duration_ns, when
from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import print_json, print_notice, print_table, print_text
from bedplate.config import load
from bedplate.core.units import SECOND_NS
from bedplate.errors import ConfigError

app = typer.Typer(no_args_is_help=True)

SLICES = "/v1/admin/slices"
NameArgument = Annotated[str, typer.Argument(metavar="SLICE", help="Its name.")]


@app.command()
def add(
    name: NameArgument,
    *,
    tenant: Annotated[str, typer.Option(help="Whose it is.")],
    model: Annotated[str, typer.Option(help="The model whose cards it is of.")],
    until: Annotated[str, typer.Option(help="Its end: from now, such as 8h, or a time.")],
    begins: Annotated[
        str | None, typer.Option("--from", help="Its beginning, alike. Default: now.")
    ] = None,
    cards: Annotated[
        int | None, typer.Option(min=1, help="Cards that take its turns alone.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV kept for it, in tokens, in place of --cards.")
    ] = None,
    lane: Annotated[
        LaneName | None, typer.Option(help="The lane that its cards take. Default: all.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Ask for cards, or for KV on all cards, of a model; others leave them without being cut."""
    if (cards is None) == (kv_tokens is None):
        raise ConfigError("give either --cards or --kv-tokens: whole cards, or KV on all of them")
    if lane is not None and cards is None:
        raise ConfigError("--lane goes with --cards only: KV is kept for all lanes of the tenant")
    now_ns = time.time_ns()
    until_ns = time_ns(until, now_ns)
    from_ns = now_ns if begins is None else time_ns(begins, now_ns)
    if until_ns <= max(from_ns, now_ns):
        raise ConfigError(
            f"--until {until} is {when(until_ns)}; it must be after now"
            + ("" if begins is None else f", and after --from {begins}, {when(from_ns)}")
        )
    body: dict[str, Any] = {
        "id": name,
        "tenant": tenant,
        "model": model,
        "cards": cards or 0,
        "kv_tokens": kv_tokens or 0,
        "until_ns": until_ns,
    }
    if begins is not None:
        body["from_ns"] = from_ns
    if lane is not None:
        body["lane"] = str(lane)
    answer = operator.call(_service(config, data_dir), "POST", SLICES, body)
    if json:
        print_json(answer)
    else:
        held = ", ".join(answer["cards_held"])
        print_text(f"{name} until {when(answer['until_ns'])}" + (f": {held}" if held else ""))


@app.command("list")
def list_slices(
    *, config: ConfigOption = None, data_dir: DataDirOption = None, json: JsonOption = False
) -> None:
    """Show the slices that are not over."""
    answer = operator.call(_service(config, data_dir), "GET", SLICES)
    if json:
        print_json(answer)
    elif answer["data"]:
        columns = ("slice", "tenant", "model", "cards", "KV tokens", "lane", "from", "until")
        print_table(columns, [_row(part) for part in answer["data"]])
    else:
        print_notice("There are no slices: bedplate slice add NAME --tenant NAME ...")


@app.command()
def remove(
    name: NameArgument,
    *,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Give a slice back before its end."""
    path = f"{SLICES}/{quote(name, safe='')}"
    answer = operator.call(_service(config, data_dir), "DELETE", path)
    if json:
        print_json(answer)
    else:
        print_text(f"{name} given back")


def time_ns(text: str, now_ns: int) -> int:
    """Return the time that a text names: 8h from now, or 2026-12-01T18:00Z.

    Raises:
        ConfigError: it is neither, or a time without its zone.
    """
    if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text:
        return now_ns + duration_ns(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is no time; write for example 8h, or 2026-12-01T18:00Z"
        ) from error
    if found.tzinfo is None:
        raise ConfigError(f"{text!r} has no zone; write for example {text}Z or {text}+08:00")
    return int(found.timestamp()) * SECOND_NS


def _service(config: Path | None, data_dir: Path | None) -> operator.Operator:
    loaded = load(config, overrides={"service.data_dir": data_dir}, secrets=False)
    return operator.find(loaded.service.data_dir)


def _row(part: dict[str, Any]) -> tuple[object, ...]:
    held = ", ".join(part["cards_held"])
    cards = (f"{part['cards']}: {held}" if held else part["cards"]) if part["cards"] else ""
    kv_tokens = f"{part['kv_tokens']:,}" if part["kv_tokens"] else ""
    place = (part["id"], part["tenant"], part["model"], cards, kv_tokens, part["lane"] or "")
    return (*place, when(part["from_ns"]), when(part["until_ns"]))

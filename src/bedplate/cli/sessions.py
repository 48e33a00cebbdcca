"""Show what runs and what waits in the running service, and why; take cards out and in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from bedplate.cli import operator
from bedplate.cli.key import when
from bedplate.cli.options import ConfigOption, DataDirOption, JsonOption
from bedplate.cli.output import amount, print_json, print_notice, print_table, print_text
from bedplate.config import load
from bedplate.core.units import SECOND_NS
from bedplate.errors import InvalidRequest

app = typer.Typer()


@app.command()
def sessions(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Only this one, by id or by name.")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's sessions.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those with a turn.")] = False,
    drain: Annotated[
        str | None, typer.Option(metavar="CARD", help="Take a card out; nothing is cut.")
    ] = None,
    undrain: Annotated[str | None, typer.Option(metavar="CARD", help="Take it back in.")] = None,
    json: JsonOption = False,
) -> None:
    """Show cards, lanes and sessions of the running service, and why each turn waits."""
    if drain is not None and undrain is not None:
        raise InvalidRequest("--drain and --undrain go one at a time")
    loaded = load(config, overrides={"service.data_dir": data_dir}, secrets=False)
    service = operator.find(loaded.service.data_dir)
    for card, verb in ((drain, "drain"), (undrain, "undrain")):
        if card is not None:
            answer = operator.call(service, "POST", f"/v1/admin/cards/{card}/{verb}")
            if json:
                print_json(answer)
            else:
                print_text(f"card {card}: {'draining' if drain else 'back in service'}")
                if "warning" in answer:
                    print_notice(answer["warning"])
            return
    state = operator.call(service, "GET", "/v1/admin/state")
    state["never_up"] = never_up(state, service.cards)
    shown = _chosen(state["sessions"], session, tenant, waiting=waiting)
    if json:
        print_json({**state, "sessions": shown})
        return
    if session is None:
        _print_cards(state)
    for one in shown if session is not None else ():
        _print_session(one, state["currency"])
    if shown:
        _print_sessions(shown, state["now_ns"], state["currency"])
    else:
        chosen = "no turn waits" if waiting else "no such session is open"
        print_text(chosen if state["sessions"] else "no session is open")


def never_up(state: dict[str, Any], cards: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the cards of the configuration that the service has never seen up, and why."""
    known = {card["card"] for card in state["cards"]}
    return [
        {"card": card, "model": cards[card], "problem": state["problems"].get(card, "")}
        for card in cards
        if card not in known
    ]


def _chosen(
    found: list[dict[str, Any]], session: str | None, tenant: str | None, *, waiting: bool
) -> list[dict[str, Any]]:
    chosen = [
        one
        for one in found
        if (session is None or session in (one["id"], one["name"]))
        and (tenant is None or one["tenant"] == tenant)
        and (not waiting or one["open_turns"])
    ]
    if session is not None and not chosen:
        raise InvalidRequest(f"no open session {session!r}; `bedplate sessions` lists them")
    return chosen


def _print_cards(state: dict[str, Any]) -> None:
    rows = [
        (
            card["card"],
            card["model"],
            _card_state(card),
            f"{card['running']}/{card['running_max']}",
            f"{card['slots_held']}/{card['slots']}",
            f"{card['kv_used_tokens']:,}/{card['kv_total_tokens']:,}",
        )
        for card in state["cards"]
    ]
    rows += [(card["card"], card["model"], "never up", "", "", "") for card in state["never_up"]]
    print_table(("card", "model", "state", "running", "slots held", "KV tokens"), rows)
    for card, problem in state["problems"].items():
        print_notice(f"card {card} {problem}")
    lanes = [
        (lane["lane"], lane["waiting"], lane["running"], lane["sessions"])
        for lane in state["lanes"]
    ]
    print_table(("lane", "waiting", "running", "sessions"), lanes)
    tenants = [
        (
            one["tenant"],
            one["sessions"],
            one["inflight"],
            _kv(one),
            _money(one["day_micro"], one["day_micro_max"]),
            _money(one["month_micro"], one["month_micro_max"]),
            amount(one["reserved_micro"]),
        )
        for one in state["tenants"]
    ]
    if tenants:
        held = ("tenant", "sessions", "turns", "KV tokens")
        money = (f"spent today, {state['currency']}", "this month", "reserved")
        print_table((*held, *money), tenants, numbers=money)
    pool = state["pool"]
    if pool["total_bytes"]:
        used, total = pool["used_bytes"] >> 20, pool["total_bytes"] >> 20
        print_text(f"pool: {used:,} of {total:,} MiB in {pool['entries']} entries\n")


def _kv(tenant: dict[str, Any]) -> str:
    """Say what a tenant holds on cards, of how much, and how many alarm levels that reached."""
    most = f"/{tenant['card_tokens_max']:,}" if tenant["card_tokens_max"] else ""
    level = f" level {tenant['level']}" if tenant["level"] else ""
    return f"{tenant['card_tokens']:,}{most}{level}"


def _money(micro: int, limit_micro: int) -> str:
    """Say how much was spent, in the digits of a bill, and of how much."""
    return f"{amount(micro)}{_share(micro, limit_micro, amount)}"


def _tokens(tokens: int, limit_tokens: int) -> str:
    """Say how many tokens were used, and of how many."""
    return f"{tokens:,}{_share(tokens, limit_tokens, '{:,}'.format)}"


def _share(spent: int, limit: int, words: Callable[[int], str]) -> str:
    """Say of which limit something was spent, and how much of it that is; "" without a limit."""
    if not limit:
        return ""
    used = "all spent" if spent >= limit else f"{spent * 100 // limit} %"
    return f" of {words(limit)} ({used})"


def _card_state(card: dict[str, Any]) -> str:
    if not card["up"]:
        return "down"
    if not card["draining"]:
        states = {"closed": "up", "half_open": "one tries it", "open": "left alone"}
        part = f", slice {card['slice']}" if card["slice"] else ""
        return states[card["breaker"]] + part
    return "draining" if card["running"] or card["slots_held"] else "out"


def _print_session(one: dict[str, Any], currency: str) -> None:
    """Print what concerns a session as a whole; its branches are in the table."""
    tokens = _tokens(one["spent_tokens"], one["session_total_tokens_max"])
    spent = _money(one["spent_micro"], one["session_micro_max"])
    expires = "not while a turn is open" if one["open_turns"] else when(one["expires_ns"])
    rows = (
        ("session", one["id"]),
        ("name", one["name"]),
        ("began", when(one["created_ns"])),
        ("expires", expires),
        ("admitted", "yes" if one["admitted"] else "no"),
        ("tokens", f"{tokens}, reserved {one['reserved_tokens']:,}"),
        ("spent", f"{spent} {currency}, reserved {amount(one['reserved_micro'])}"),
    )
    for label, value in rows:
        print_text(f"{label:<9} {value}")
    print_text("")


def _print_sessions(shown: list[dict[str, Any]], now_ns: int, currency: str) -> None:
    """Print a line for each branch, and what each session used in the line of its first."""
    rows = [
        (
            one["id"],
            "" if one["name"] == one["id"] else one["name"],
            one["tenant"],
            one["lane"],
            one["model"],
            branch["branch"],
            _turn(branch, now_ns),
            _place(branch),
            (now_ns - one["created_ns"]) // SECOND_NS,
            _tokens(one["spent_tokens"], one["session_total_tokens_max"]) if not nth else "",
            _money(one["spent_micro"], one["session_micro_max"]) if not nth else "",
            _why(branch),
        )
        for one in shown
        for nth, branch in enumerate(one["branches"])
    ]
    columns = (
        *("session", "name", "tenant", "lane", "model"),
        *("branch", "turn", "KV", "age s", "tokens", f"spent, {currency}", "why it waits"),
    )
    print_table(columns, rows)


def _turn(branch: dict[str, Any], now_ns: int) -> str:
    """Say in which state a branch's turn is, and for how many seconds it runs or waits."""
    if not branch["since_ns"]:
        return str(branch["state"])
    return f"{branch['state']} {max(0, now_ns - branch['since_ns']) // SECOND_NS} s"


def _why(branch: dict[str, Any]) -> str:
    produced = f" ({branch['out_tokens']:,} so far)" if branch["out_tokens"] else ""
    return f"{branch['why']}{produced}"


def _place(branch: dict[str, Any]) -> str:
    """Say where a branch's KV is.

    How much of it a card holds is known between turns only: a turn that runs changes it.
    """
    places = []
    if branch["card"]:
        tokens = f" {branch['card_tokens']:,}" if branch["card_tokens"] else ""
        places.append(branch["card"] + tokens)
    if branch["pool_tokens"]:
        places.append(f"pool {branch['pool_tokens']:,}")
    return ", ".join(places) or "nowhere"

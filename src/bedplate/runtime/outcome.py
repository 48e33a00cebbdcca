"""Between the words of the core and those of the outside: error codes, ends of a turn, use."""

from __future__ import annotations

import re
from dataclasses import replace

from bedplate import errors
from bedplate.core.budget import WARN_PERMILLE
from bedplate.core.limits import NO_ENGINE_RETRY_NS
from bedplate.core.units import SECOND_NS
from bedplate.core.view import WHY_TEXT
from bedplate.engines.base import Finished, JsonObject, Started
from bedplate.errors import BedplateError, CapacityError

_STATUS_OF_FINISH = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "stop",
}


def _by_code() -> dict[str, type[BedplateError]]:
    """Every class of the error tree by its own code; the more general class keeps a shared code."""
    found: dict[str, type[BedplateError]] = {}
    level: list[type[BedplateError]] = [BedplateError]
    while level:
        for cls in level:
            found.setdefault(cls.code, cls)
        level = [child for cls in level for child in cls.__subclasses__()]
    return found


_CLASS_OF_CODE = _by_code()
_MESSAGES = {
    errors.NoEngine.code: "no card can take a call for this model now; try again later",
    errors.Draining.code: "the service is shutting down; send the call to another one",
    errors.LaneFull.code: "too much waits already; try again later",
    errors.QuotaExceeded.code: "a limit is reached",
    errors.BudgetExceeded.code: "what is left of a budget does not cover the call",
    errors.SessionBudgetExceeded.code: "what is left for the session does not cover the call",
    errors.RetryBudgetSpent.code: (
        "a card failed the turn, and so many prompts were sent again of late that this one is not"
    ),
    errors.DeadlineExceeded.code: (
        "the time that the call named in X-Bedplate-Deadline-Seconds is over; "
        "name more, or ask for less"
    ),
    errors.ContextTooLong.code: "the prompt is too long",
    errors.EngineLost.code: "the engine was lost while it served the call",
    errors.EngineTimeout.code: "the engine did not finish within the deadline of the call",
}
_ACTIONS = {errors.ContextTooLong.code: errors.ContextTooLong.action}
_PARAMS = {errors.ContextTooLong.code: "messages"}
_SPENT_PERCENT = WARN_PERMILLE // 10
_WATER = {
    "card_kv": "KV of running turns in all KV of the card",
    "tenant_kv": "KV of running turns in card_tokens_max of the tenant",
    "pool": "bytes in use",
}
_ALARMS = {
    ("budget_day", 1): f"{_SPENT_PERCENT} % of the money of its day is spent (day_micro_max)",
    ("budget_day", 2): "all the money of its day is spent (day_micro_max)",
    ("budget_month", 1): f"{_SPENT_PERCENT} % of the money of its month is spent (month_micro_max)",
    ("budget_month", 2): "all the money of its month is spent (month_micro_max)",
    ("breaker", 0): "it serves again",
    ("breaker", 1): "it failed turns of late and is left alone for a while",
    ("card_down", 1): "it is down",
    ("slot_broken", 1): "it cannot be emptied and is out of use until its card restarts",
    ("pool_entry_stuck", 1): "this copy cannot be deleted and keeps its room",
    ("block_size_kept", 1): "pool.block_tokens stays at this while cards are up",
}
_WAITED = re.compile(r"waited (\d+) s \((\w*)\)")
"""The core's word for a turn that waited as long as its lane allows, and for what."""


def error_of(reason: str, detail: str, *, retry_after_ns: int, refused: bool) -> BedplateError:
    """Return the error that a Refuse (`refused`) or FailTurn of the core means to a client.

    A reason that is no code of the tree stays as the code of a CapacityError when the call was
    refused, and of an EngineError when an accepted one failed.
    """
    cls = _CLASS_OF_CODE.get(reason)
    message = _message(reason, detail)
    retry_after_s = retry_after_ns / SECOND_NS if retry_after_ns > 0 else None
    if not refused and retry_after_s is None and issubclass(cls or BedplateError, CapacityError):
        retry_after_s = NO_ENGINE_RETRY_NS / SECOND_NS  # it was let in, and may be again
    if cls is None:
        base: type[BedplateError] = CapacityError if refused else errors.EngineError
        return base(message, retry_after_s=retry_after_s, code=reason)
    return cls(message, param=_PARAMS.get(reason), retry_after_s=retry_after_s)


def _message(reason: str, detail: str) -> str:
    waited = _WAITED.fullmatch(detail)
    if waited is not None:
        seconds, why = waited.groups()
        why = WHY_TEXT.get(why, why)
        return f"the turn waited {seconds} s, as long as its lane allows: {why}; try again later"
    message = _MESSAGES.get(reason, reason.replace("_", " "))
    action = _ACTIONS.get(reason)
    told = f"{message}: {detail}" if detail else message
    return f"{told}; {action}" if action else told


def alarm_words(kind: str, level: int) -> str:
    """Say what an alarm of the core means."""
    if kind in _WATER:
        part = f"level {level} of water_percent is reached" if level else "below all water levels"
        return f"{_WATER[kind]}: {part}"
    return _ALARMS.get((kind, level), f"level {level}")


def status_of(finish_reason: str) -> str:
    """Return the core's word for OpenAI's finish_reason; an unknown one counts as stop."""
    return _STATUS_OF_FINISH.get(finish_reason, "stop")


def tool_of(message: JsonObject) -> str:
    """Return the name of the first tool that an assistant message calls, or an empty string."""
    calls = message.get("tool_calls")
    if not calls:
        return ""
    function = calls[0].get("function")
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def of_turn(finished: Finished, delivered_before: int, first: Started | None) -> Finished:
    """Count a run's end as its turn's: client and bill are told the same."""
    found = Started(finished.prompt_tokens, finished.cached_tokens)
    found = prompt_of_turn(found, delivered_before, first)
    return replace(finished, prompt_tokens=found.prompt_tokens, cached_tokens=found.cached_tokens)


def prompt_of_turn(
    started: Started | None, delivered_before: int, first: Started | None
) -> Started:
    """Return what a turn is told of its prompt: what this run found, if it got so far.

    A resumed run was prompted with what was delivered before; that counts once, as output. A turn
    that yielded is told what its `first` run found.
    """
    if first is not None:
        return first
    if started is None:
        return Started(0, 0)
    prompt_tokens = max(0, started.prompt_tokens - delivered_before)
    return Started(prompt_tokens, min(started.cached_tokens, prompt_tokens))

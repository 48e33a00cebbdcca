"""Tables of errors, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.validation.perf_model.predict import Said
from bench.validation.perf_model.result import Outcome, answered, chosen, error
from bench.validation.perf_model.rows import tally

KINDS = (
    ("TPOT", ("tpot",), False),
    ("TTFT", ("ttft",), False),
    ("Ascend decode", ("tpot", "rate"), True),
    ("Ascend prefill", ("ttft",), True),
)
"""What is reported: a name, quantities, and whether on Ascend."""


def summary(outcome: Outcome) -> str:
    """Return the errors of the model on models left out, in sample, and of a bare roofline."""
    lines = [
        f"{len(outcome.rows)} usable rows of {len(outcome.rows) + len(outcome.reasons)},"
        f" {answered(outcome.rows, outcome.held):.1%} answered",
        f"{'mean / median error':16s} {'rows':>5s} {'left out':>15s} {'in sample':>15s}"
        f" {'bare roofline':>15s}",
    ]
    for name, quantities, ascend in KINDS:
        cells = [
            error(chosen(said, quantities, ascend=ascend))
            for said in (outcome.held, outcome.seen, outcome.plain)
        ]
        texts = " ".join(f"{f'{c.mean:.1%} / {c.median:.1%}':>15s}" for c in cells)
        lines.append(f"{name:16s} {cells[0].rows:8d} {texts}")
    lines += ["not usable:"]
    lines += [f"  {count:4d}  {reason}" for reason, count in tally(outcome.reasons)]
    return "\n".join(lines)


def by_group(outcome: Outcome) -> str:
    """Return the errors on models left out by model, and by engine and family."""
    lines = []
    groups: tuple[tuple[str, Callable[[Said], str]], ...] = (
        ("model", lambda one: one.row.base),
        ("engine, cards", lambda one: f"{one.row.engine}, {one.row.family}"),
    )
    for title, key in groups:
        lines += ["", f"{title:34s} {'quantity':8s} {'rows':>5s} {'mean':>7s} {'median':>7s}"]
        found: dict[tuple[str, str], list[Said]] = {}
        for one in outcome.held:
            if one.predicted is not None:
                found.setdefault((key(one), one.quantity), []).append(one)
        lines += [_line(group, quantity, said) for (group, quantity), said in sorted(found.items())]
    return "\n".join(lines)


def _line(group: str, quantity: str, said: Sequence[Said]) -> str:
    rows, mean, median = error(said)
    return f"{group:34s} {quantity:8s} {rows:5d} {mean:7.1%} {median:7.1%}"

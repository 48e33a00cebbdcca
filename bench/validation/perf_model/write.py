"""`data/fitted.toml`: the constants with the command that made them, their data and their error."""

from __future__ import annotations

from collections.abc import Iterable

from bench.harness.results import ROOT
from bench.validation.perf_model.fit import ENGINE_SPREADS, FAMILY_SPREADS, GUESSES
from bench.validation.perf_model.result import Outcome, chosen, error

FITTED = ROOT / "src" / "bedplate" / "perf" / "data" / "fitted.toml"
GRAPH, EAGER = "vllm-ascend-graph", "vllm-ascend"
HOST_NS = 54e6 / 128
STATED = (
    "# The same engine without graphs, where a host starts kernels one by one. `host` is not",
    "# fitted: Qwen3-32B alone on four 910B3 was measured at 53 to 55 ms a token, for 128 mixers",
    "# and FFNs (README of the measurements).",
)
HEAD = """\
# Constants of the step-time model. Written by `python -m bench.validation.perf_model fit`: change
# nothing here by hand. [base]: shares of a peak, or ns. [engine] and [family]: factors on it.
# [error]: |predicted / measured - 1| on rows of models that the fit had not seen.
"""


def as_toml(outcome: Outcome) -> str:
    """Return the file."""
    parameters, values = outcome.parameters, outcome.values
    groups = [group for group, _ in parameters.names]
    lines = [HEAD, "[fit]"]
    lines += ['command = "python -m bench.validation.perf_model fit"']
    lines += ['data = "measured.csv, 610 published measurements; each row names its source"']
    lines += [f"rows = {len(outcome.rows)}", f"models = {len({r.base for r in outcome.rows})}"]
    lines += ["", "[base]", *_values(parameters.group(values, "base"), GUESSES)]
    for kind, spreads in (("engine", ENGINE_SPREADS), ("family", FAMILY_SPREADS)):
        owned = {getattr(row, kind) for row in outcome.rows}
        for group in dict.fromkeys(g for g in groups if g in owned):
            factors = _values(parameters.group(values, group), spreads)
            lines += ["", f"[{kind}.{group}]", *factors]
            if group == GRAPH:
                lines += ["", *STATED, f"[{kind}.{EAGER}]", *factors, f"host = {HOST_NS:.5g}"]
    for vendor, ascend in (("nvidia", False), ("ascend", True)):
        for name, quantities in (("tpot", ("tpot", "rate")), ("ttft", ("ttft",))):
            found = error(chosen(outcome.held, quantities, ascend=ascend))
            lines += ["", f"[error.{vendor}.{name}]", f"rows = {found.rows}"]
            lines += [f"mean = {found.mean:.4f}", f"median = {found.median:.4f}"]
    return "\n".join(lines) + "\n"


def _values(found: dict[str, float], order: Iterable[str]) -> list[str]:
    return [f"{name} = {found[name]:.5g}" for name in order]

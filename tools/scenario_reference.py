"""Write docs/reference/scenario.md from the tree of scenario files.

As with the configuration's page, text is here and keys come from the tree; a test compares the file
with what this writes.
"""

from __future__ import annotations

import sys

from bedplate.config.explain import Key, keys
from bedplate.perf.links import links
from bedplate.twin.scenario import built_in_scenarios
from bedplate.twin.scenario_tree import ScenarioConfig
from tools.config_reference import row, table
from tools.repository import ROOT

TARGET = ROOT / "docs" / "reference" / "scenario.md"

INTRODUCTION = """\
# Scenario files

A TOML file says what `bedplate sim` simulates: cards, pool, limits, load and faults. [How to
simulate](../how-to/simulate.md) shows it at work. This page is written from the code by `make
docs`.

**Values.** As in [the configuration](configuration.md#configuration): units stand in the names,
sizes may be texts such as `"4GiB"`, a relative path starts at the folder of the file that names it.
`bytes_per_second` is written like a size: `"200GB"`.

**Errors.** As in the configuration: an unknown key is an error that names the nearest known one.

**One model a run.** All cards of a scenario serve the same model.

```toml
name = "eight cards, one lost"

[[cards]]
name = "box"
count = 8
model = "Qwen2.5-14B"
card = "Ascend 910B3"
move_bytes_per_second = "20GB"

[pool]
size_bytes = "1TiB"
bytes_per_second = "100GB"

[policy.lanes.batch]
wait_seconds = 600

[workload]
file = "trace.csv"
rate_factor = 2.0

[[fault]]
kind = "card_lost"
at_seconds = 600
until_seconds = 900
card = "box-3"
```
"""

HEADINGS = {
    "": "The file itself",
    "run": "`[run]`: how it is run",
    "cards": "`[[cards]]`: cards that are alike",
    "pool": "`[pool]`: shared KV behind the cards",
    "pool.tail": "`[pool.tail]`: rare long waits of moves",
    "policy": "`[policy]`: limits",
    "workload": "`[workload]`: what is asked",
    "workload.mix": "`[workload.mix]`: sessions of personas",
    "workload.place": "`[[workload.place]]`: whose sessions are",
    "clients": "`[clients]`: how agents ask again",
    "fault.card_lost": '`[[fault]]` with `kind = "card_lost"`',
    "fault.partition_lost": '`[[fault]]` with `kind = "partition_lost"`',
    "fault.card_slow": '`[[fault]]` with `kind = "card_slow"`',
    "fault.link_lost": '`[[fault]]` with `kind = "link_lost"`',
    "fault.link_slow": '`[[fault]]` with `kind = "link_slow"`',
    "fault.link_slow.tail": "`[fault.tail]`: rare long waits of moves",
    "fault.tool_slow": '`[[fault]]` with `kind = "tool_slow"`',
    "fault.gateway_restarted": '`[[fault]]` with `kind = "gateway_restarted"`',
}
"""Title of each section, in the order of the page."""

NOTES = {
    "cards": (
        "Times come from a profile that was measured, or are estimated from the catalogue of models"
        " and cards. A value that the catalogue does not know is an error that names it. One card"
        " here is one engine: of a model on `tp` × `pp` chips, `count` counts groups of them,"
        " reports call each group a card, and losing one chip loses its group."
    ),
    "pool": (
        f"`link` is a link to a pool ({', '.join(f'`{name}`' for name in links())}; see"
        " [links](../concepts/links.md)), or the class or name of a link between cards, such as"
        " `NVLink4`."
    ),
    "clients": (
        "A refused or failed turn is asked again; what asking again cannot cure (a prompt that is"
        " too long) is not. With these values a client gives up after 31.5 s in which nobody"
        " answers, and after 44 s without a card, where the service asks for 5 s at least: an"
        " outage that lasts longer ends sessions, a shorter one only delays them."
    ),
    "policy": (
        "Further sections are those of [the configuration](configuration.md), in the same form:"
        " `[policy.lanes.interactive]`, `[policy.lanes.shared]`, `[policy.lanes.batch]`,"
        " `[[policy.tenant]]` and `[policy.defaults]`. The pool's size is that of `[pool]`."
    ),
    "workload": (
        "What is done to the sessions is done in the order of the keys. Gaps inside sessions stay"
        " as they are, whatever the rate."
    ),
    "workload.mix": "Personas are those of `bedplate workload`.",
    "fault.card_lost": "A card stops with all it holds, and comes back empty.",
    "fault.partition_lost": "All cards of a partition stop at once, as with its power.",
    "fault.card_slow": "Every step of a card lasts longer: a hot chip, a sick neighbour.",
    "fault.link_lost": "The cards of a partition do not reach the pool: stores and loads fail.",
    "fault.link_slow": "KV moves of a partition's cards are slower, and some wait long.",
    "fault.tool_slow": "Tool gaps that begin in this time last longer.",
    "fault.gateway_restarted": (
        "The service is gone, then recovers from its journal: cards come back empty, the pool keeps"
        " its entries, clients ask again."
    ),
}
SHARED = ("policy.lanes.", "policy.tenant.", "policy.defaults.")
"""Sections that stand in the configuration's page."""


def page() -> str:
    """Return the whole page."""
    found = [key for key in keys(ScenarioConfig) if not key.path.startswith(SHARED)]
    parts = [INTRODUCTION]
    for section, title in HEADINGS.items():
        parts.append(f"## {title}\n")
        if section in NOTES:
            parts.append(f"{NOTES[section]}\n")
        parts.append(table([row(key) for key in found if _section(key) == section]))
    parts.append("## Built-in scenarios\n")
    parts.append(
        "`bedplate sim NAME` runs them; each is a file in `src/bedplate/twin/scenarios/`.\n"
    )
    for name, path in built_in_scenarios().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        about = " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))
        parts.append(f"- `{name}`: {about}")
    return "\n".join(parts) + "\n"


def _section(key: Key) -> str:
    return key.path.rpartition(".")[0]


def main() -> int:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

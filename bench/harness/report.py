"""What the user reads: claims, then what was measured beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from bench.harness.claims import Claim, ClaimJson
from bench.harness.run import Bench, Figure


class ReportJson(TypedDict):
    """What `--json` prints."""

    bench: str
    claims: list[ClaimJson]


def as_json(bench: str, claims: Iterable[Claim]) -> ReportJson:
    """Return the document that `--json` prints."""
    return {"bench": bench, "claims": [claim.as_json() for claim in claims]}


def as_text(claims: Sequence[Claim], figures: Sequence[Figure]) -> str:
    """Return the table that people read."""
    rows = [("claim", "value", "target", "holds", "n", "against")]
    rows += [
        (
            claim.spec.name,
            f"{claim.value:,g} {claim.spec.unit}",
            claim.spec.target,
            "yes" if claim.holds else "NO",
            str(claim.measured.n),
            claim.measured.against,
        )
        for claim in claims
    ]
    lines = _aligned(rows)
    if figures:
        lines += ["", "Also measured:"]
        lines += _aligned([("  " + figure.name, figure.text) for figure in figures])
    return "\n".join(lines)


def listing(benches: Iterable[Bench]) -> str:
    """Return each bench with its claims, one line each."""
    lines: list[str] = []
    for bench in benches:
        lines.append(f"{bench.name}: {bench.summary}")
        lines += _aligned(
            [("  " + spec.name, f"{spec.target} {spec.unit}", spec.meaning) for spec in bench.specs]
        )
    return "\n".join(lines)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]

"""The record of an opening that sessions share. Plain data; `prefixes` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedplate.core.ids import ModelId

if TYPE_CHECKING:
    from bedplate.core.states import Entry


class Prefix:
    """An opening that prompts of one tenant and model begin with, and the pool's copy of it.

    `uses` counts turns that began with it, the last at `used_ns` in `lane`; `gap_ns` is the mean
    time between two. `area_pool` is the rent of its copy since a usage row had it, until `mark_ns`.
    """

    __slots__ = (
        "area_pool",
        "entry",
        "gap_ns",
        "id",
        "lane",
        "mark_ns",
        "model",
        "tokens",
        "used_ns",
        "uses",
    )

    def __init__(self, prefix: str, model: ModelId, tokens: int) -> None:
        self.id = prefix
        self.model = model
        self.tokens = tokens
        self.entry: Entry | None = None
        self.uses = 0
        self.used_ns = 0
        self.gap_ns = 0
        self.lane = 0
        self.area_pool = 0
        self.mark_ns = 0

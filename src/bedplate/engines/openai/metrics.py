"""Token totals out of a server's Prometheus page."""

from __future__ import annotations

import re
from typing import NamedTuple

from bedplate.engines.openai.servers import MetricNames

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')


class Totals(NamedTuple):
    """A server's own counters since it started; None where it exports no such metric.

    `prompt_tokens` includes `cached_tokens`, as in usage.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    out_tokens: int | None
    running: int | None
    kv_used_tokens: int | None


def read_totals(page: str, names: MetricNames, *, model: str, kv_tokens: int) -> Totals:
    """Read the totals of one model.

    Samples labelled with this model's name are taken; where none is, all samples of the metric
    (a server that shows the model under another name serves one). Lines that do not parse are
    another metric's trouble and are skipped.

    Args:
        page: Prometheus text.
        names: The server's metric names.
        model: Name of the model at the endpoint.
        kv_tokens: Size of its KV, for servers that give only a share.
    """
    samples = _samples(page, model)

    def first(wanted: tuple[str, ...]) -> float | None:
        return next((samples[name] for name in wanted if name in samples), None)

    used, share = first(names.kv_used_tokens), first(names.kv_used_share)
    if used is None and share is not None:
        used = share * kv_tokens
    prompt, cached = _whole(first(names.prompt_tokens)), _whole(first(names.cached_tokens))
    if names.computed_only and prompt is not None:
        prompt = prompt + cached if cached is not None else None
    return Totals(
        prompt,
        cached,
        _whole(first(names.out_tokens)),
        _whole(first(names.running)),
        _whole(used),
    )


def _samples(page: str, model: str) -> dict[str, float]:
    of_model: dict[str, float] = {}
    of_all: dict[str, float] = {}
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        name, labels, text = found.groups()
        try:
            value = float(text)
        except ValueError:
            continue
        named = _MODEL.search(labels or "")
        if named is not None and named.group(1) == model:
            of_model[name] = of_model.get(name, 0.0) + value
        of_all[name] = of_all.get(name, 0.0) + value
    return of_all | of_model


def _whole(value: float | None) -> int | None:
    """Return a count, None for one that floats cannot count to."""
    return round(value) if value is not None and 0 <= value < 2**53 else None

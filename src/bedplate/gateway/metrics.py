"""`/metrics` in Prometheus' text form, gathered at the scrape from counters of plain integers.

Labels are tenants, lanes, models, cards, codes: sets that an operator bounds. Never a session or a
turn. Every name begins with `bedplate_`; docs/reference/metrics.md lists them, and a test compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from bedplate.core.limits import LANE_NAMES
from bedplate.core.units import SECOND_NS
from bedplate.engines.base import Finished
from bedplate.runtime.stats import Histogram, Stats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499
"""Status counted for a call whose client left before the answer was whole."""


class Counts:
    """What the gateway counts itself."""

    def __init__(self) -> None:
        self._requests: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        self._tokens: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        self._unbelieved: defaultdict[str, int] = defaultdict(int)
        self.open = 0

    def request(self, endpoint: str, tenant: str, lane: str, status: int) -> None:
        """Count one request that ended."""
        self._requests[endpoint, tenant, lane, str(status)] += 1

    def tokens(self, tenant: str, lane: str, model: str, finished: Finished) -> None:
        """Count the tokens of one answer."""
        cached = finished.cached_tokens
        self._tokens[tenant, lane, model, "prompt"] += finished.prompt_tokens - cached
        self._tokens[tenant, lane, model, "cached"] += cached
        self._tokens[tenant, lane, model, "output"] += finished.out_tokens
        if finished.unbelieved_tokens:
            self._unbelieved[model] += finished.unbelieved_tokens

    def families(self) -> Iterator[Metric]:
        """Yield what was counted."""
        requests = CounterMetricFamily(
            "bedplate_requests",
            "HTTP requests that ended; 499 is a client that left.",
            labels=("endpoint", "tenant", "lane", "status"),
        )
        for key, number in self._requests.items():
            requests.add_metric(key, number)
        yield requests
        tokens = CounterMetricFamily(
            "bedplate_tokens",
            "Tokens of answered calls: prompt (computed), cached (not computed again), output.",
            labels=("tenant", "lane", "model", "kind"),
        )
        for key, number in self._tokens.items():
            tokens.add_metric(key, number)
        yield tokens
        unbelieved = CounterMetricFamily(
            "bedplate_unbelieved_tokens",
            "Tokens that engines counted beyond what request and answer can have: not billed.",
            labels=("model",),
        )
        for model, number in self._unbelieved.items():
            unbelieved.add_metric((model,), number)
        yield unbelieved
        yield GaugeMetricFamily("bedplate_requests_open", "HTTP requests in progress.", self.open)


class Metrics(Collector):
    """Renders the counters of the gateway and of other rooms.

    `sources` are called at each scrape; each yields metric families.
    """

    def __init__(self, *sources: Callable[[], Iterable[Metric]]) -> None:
        self._sources = sources
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of all sources, in order."""
        for source in self._sources:
            yield from source()

    def render(self) -> bytes:
        """Return the text of one scrape."""
        return generate_latest(self._registry)


def runtime_families(stats: Stats) -> Iterator[Metric]:
    """Yield the counters of the runtime."""
    for name, text, value in (
        ("bedplate_turns_live", "Turns accepted and not ended.", stats.turns_live),
        ("bedplate_turns_running", "Turns at an engine.", stats.turns_running),
        ("bedplate_slots_busy", "Slots in use by a turn or a KV move.", stats.slots_busy),
        ("bedplate_kv_moves", "KV moves between cards and pool in progress.", stats.kv_moves),
        ("bedplate_journal_backlog", "Records not durable yet.", stats.journal_backlog),
        ("bedplate_journal_stalled", "1 while commits are late.", int(stats.journal_stalled)),
        ("bedplate_journal_batch_max", "Largest commit, in records.", stats.commit_batch_max),
    ):
        yield GaugeMetricFamily(name, text, value)
    for name, text, total in (
        ("bedplate_events", "Events handled by the core.", stats.events),
        ("bedplate_notes", "Notes journaled.", stats.notes),
        ("bedplate_output_tokens", "Tokens that engines gave out.", stats.out_tokens),
        ("bedplate_core_seconds", "Time spent in the core.", stats.handle_ns / SECOND_NS),
        ("bedplate_journal_commits", "Commits.", stats.commits),
        ("bedplate_journal_records", "Records committed.", stats.commit_records),
        ("bedplate_journal_seconds", "Time in commits.", stats.commit_append_ns / SECOND_NS),
        ("bedplate_journal_failures", "Commits that failed.", stats.commit_failures),
    ):
        yield CounterMetricFamily(name, text, total)
    ended = CounterMetricFamily("bedplate_turns", "Turns that ended.", labels=("status",))
    for status, number in stats.turns_ended.items():
        ended.add_metric((status,), number)
    yield ended
    yield histogram_family("bedplate_ttft_seconds", "From arrival to the first token.", stats.ttft)
    yield histogram_family(
        "bedplate_queue_seconds", "From arrival to the first dispatch.", stats.queue
    )


def histogram_family(name: str, text: str, by_lane: Iterable[Histogram]) -> Metric:
    """Return one histogram a lane, in nanoseconds and by rank, as one family in seconds."""
    family = HistogramMetricFamily(name, text, labels=("lane",))
    for lane, histogram in zip(LANE_NAMES, by_lane, strict=True):
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
            total += count
            buckets.append((repr(bound / SECOND_NS), total))
        buckets.append(("+Inf", histogram.number))
        family.add_metric((lane,), buckets, histogram.sum_ns / SECOND_NS)
    return family

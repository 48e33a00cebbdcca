"""Is the endpoint up, and what do its own counters say: the card's events.

A probe asks `/models`. The first that succeeds brings CardUp; a refused connection or two failures
in a row bring CardDown; the next success CardUp again. Each good probe also reads the server's
counters, and a CardReport follows when they moved. Counters that fell mean that the server was
restarted between two probes: its cache is empty, so the card goes down and up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import orjson
from yarl import URL

from bedplate.core.events import CardDown, CardReport, CardUp, Event
from bedplate.core.ids import CardId
from bedplate.engines.openai.connection import Unreachable
from bedplate.engines.openai.http import FAILURES, Page, is_refused
from bedplate.engines.openai.metrics import Totals, read_totals
from bedplate.engines.openai.servers import MetricNames

_LOG = logging.getLogger(__name__)
FAILURES_MAX = 2
PAGE_BYTES_MAX = 4 << 20
NAME_SHOWN_MAX = 128


@dataclass(slots=True)
class Counters:
    """Tokens that this adapter saw since the card came up, and turns that run now."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    out_tokens: int = 0
    running: int = 0

    def add(self, prompt_tokens: int, cached_tokens: int, out_tokens: int) -> None:
        """Count one answer."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.out_tokens += out_tokens

    def restart(self) -> None:
        """Begin at nothing; running turns stay counted."""
        self.prompt_tokens = self.cached_tokens = self.out_tokens = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and what to probe. `metrics_url` is None for servers whose names are not known."""

    name: str
    model: str
    models_url: URL
    metrics_url: URL | None
    metric_names: MetricNames | None


class Probe(Protocol):
    """Get a page, or raise one of FAILURES; `HttpClient.probe`."""

    async def __call__(self, url: URL, *, size_max: int) -> Page:
        """Return status and body, of which no more than `size_max` bytes."""
        ...


class Health:
    """Watches one endpoint and tells the sink about its card."""

    def __init__(
        self,
        endpoint: Endpoint,
        card: CardUp,
        get: Probe,
        sink: Callable[[Event], None],
        *,
        counters: Counters,
        interval_s: float,
    ) -> None:
        self.up = False
        self.problem = ""
        """What was last found wrong since the card was last up; nothing before the first probe."""
        self._endpoint = endpoint
        self._card = card
        self._get = get
        self._sink = sink
        self._counters = counters
        self._interval_s = interval_s
        self._failures = 0
        self._base: Totals | None = None
        self._last: Totals | None = None
        self._reported: CardReport | None = None
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            await self.probe()

    def suspect(self, problem: str, *, refused: bool) -> None:
        """Probe soon: a turn lost its connection.

        One that was refused a connection takes the card down before the turn is tried again, so
        that it is not tried here.
        """
        if refused and self.up:
            self._failed(problem, at_once=True)
        self._hurry.set()

    async def probe(self) -> None:
        """Ask once, and tell what changed."""
        try:
            problem, refused = await self._ask(), False
        except Unreachable as error:
            problem, refused = f"takes no connection: {error}", is_refused(error)
        except TimeoutError:
            problem, refused = "did not answer the probe in time", False
        except FAILURES as error:
            problem, refused = f"broke off the probe: {type(error).__name__}", False
        if problem is not None:
            self._failed(problem, at_once=refused)
            return
        self._failures = 0
        totals = await self._totals()
        if self.up and _fell(self._last, totals):
            self._down("the server was restarted")
        self._last = totals
        if not self.up:
            self._came_up(totals)
        self.report()

    async def last_report(self) -> None:
        """Read the counters once more before the end; sent even if nothing moved."""
        totals = await self._totals()
        if not _fell(self._last, totals):
            self._last = totals
            self._reported = None
            self.report()

    def report(self) -> None:
        """Send a CardReport if anything moved since the last."""
        if not self.up:
            return
        report = self._report_now()
        if report != self._reported:
            self._reported = report
            self._sink(report)

    async def _ask(self) -> str | None:
        """Return what is wrong with the endpoint, or None."""
        endpoint = self._endpoint
        status, body = await self._get(endpoint.models_url, size_max=PAGE_BYTES_MAX)
        if status in (401, 403):
            return f"refuses this service's key (status {status}); check api_key_env"
        if status >= 500 or status == 429:
            return f"answers the probe with status {status}"
        served = _served(body) if status == 200 else ()
        if served and endpoint.model not in served:
            return f"does not serve {endpoint.model} but {_shown(served)}"
        return None

    async def _totals(self) -> Totals | None:
        endpoint = self._endpoint
        if endpoint.metrics_url is None or endpoint.metric_names is None:
            return None
        try:
            page = await self._get(endpoint.metrics_url, size_max=PAGE_BYTES_MAX)
        except FAILURES as error:
            _LOG.info("engine %s: no metrics: %s", endpoint.name, type(error).__name__)
            return None
        if page.status != 200:
            return None
        return read_totals(
            page.body.decode(errors="replace"),
            endpoint.metric_names,
            model=endpoint.model,
            kv_tokens=self._card.kv_tokens,
        )

    def _failed(self, problem: str, *, at_once: bool) -> None:
        self._failures += 1
        if problem != self.problem:
            self.problem = problem
            _LOG.warning("engine %s %s", self._endpoint.name, problem)
        if self.up and (at_once or self._failures >= FAILURES_MAX):
            self._down(problem)

    def _down(self, reason: str) -> None:
        self.up = False
        self._sink(CardDown(self._card.card, reason))

    def _came_up(self, totals: Totals | None) -> None:
        self.up = True
        self.problem = ""
        self._base = totals
        self._reported = None
        self._counters.restart()
        _LOG.info("engine %s is up", self._endpoint.name)
        self._sink(self._card)

    def _report_now(self) -> CardReport:
        """Put the server's counters, where it has them, over the adapter's own."""
        own, now, base = self._counters, self._last, self._base
        card: CardId = self._card.card
        if now is None or base is None:
            return CardReport(
                card, 0, own.running, own.prompt_tokens, own.cached_tokens, own.out_tokens
            )
        return CardReport(
            card,
            now.kv_used_tokens or 0,
            own.running if now.running is None else now.running,
            _since(base.prompt_tokens, now.prompt_tokens, own.prompt_tokens),
            _since(base.cached_tokens, now.cached_tokens, own.cached_tokens),
            _since(base.out_tokens, now.out_tokens, own.out_tokens),
        )


def _since(base: int | None, now: int | None, own: int) -> int:
    return own if base is None or now is None else now - base


def _fell(before: Totals | None, now: Totals | None) -> bool:
    if before is None or now is None:
        return False
    pairs = (
        (before.prompt_tokens, now.prompt_tokens),
        (before.cached_tokens, now.cached_tokens),
        (before.out_tokens, now.out_tokens),
    )
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _shown(names: tuple[str, ...]) -> str:
    """Return some of an endpoint's names of models, at a length that an event may hold."""
    return ", ".join(name[:NAME_SHOWN_MAX] for name in names[:5])


def _served(body: bytes) -> tuple[str, ...]:
    """Return the model names of a `/models` answer; none where it has another form."""
    try:
        models = orjson.loads(body).get("data") or ()
        return tuple(str(model["id"]) for model in models)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return ()

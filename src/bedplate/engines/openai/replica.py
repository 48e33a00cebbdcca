"""One endpoint: one card, with its own connections, counters and health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from yarl import URL

from bedplate.config.engines import OpenaiEngine
from bedplate.core.events import CardUp, Event
from bedplate.core.ids import CardId, ModelId
from bedplate.engines.base import JsonObject, TurnRun
from bedplate.engines.openai import body as bodies
from bedplate.engines.openai.connection import Reply
from bedplate.engines.openai.health import Counters, Endpoint, Health
from bedplate.engines.openai.http import HttpClient
from bedplate.engines.openai.servers import SERVERS, capabilities_of
from bedplate.errors import EngineProtocolError

_LOG = logging.getLogger(__name__)


class Replica:
    """An endpoint at one address. `counters` and `client` are for whoever runs turns on it."""

    def __init__(self, settings: OpenaiEngine, name: str, address: str) -> None:
        self.name = name
        self.card = CardId(name)
        self.counters = Counters()
        self._settings = settings
        self._kind = SERVERS[settings.server]
        self._capabilities = capabilities_of(settings)
        self._model = settings.upstream_model or settings.model
        base = address.rstrip("/")
        root = base.removesuffix("/v1")
        self._chat_url = URL(f"{base}/chat/completions")
        self._models_url = URL(f"{base}/models")
        self._metrics_url = URL(f"{root}/metrics")
        self.client = HttpClient(settings, self._chat_url.origin(), name, self._broken)
        self.embeddings_url = URL(f"{base}/embeddings")
        self.tokenize_url = URL(f"{root}/tokenize")
        self._left_out: frozenset[str] = frozenset()
        self._health: Health | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """True while its card is up."""
        return self._health is not None and self._health.up

    @property
    def problem(self) -> str:
        """Why its card is not up, in words; nothing while it is."""
        if self._health is None:
            return "is not watched: its engine is not started"
        return "" if self._health.up else self._health.problem

    async def start(self, sink: Callable[[Event], None], *, probe_interval_s: float) -> None:
        """Probe the endpoint and keep watching it; one that is down comes up when it answers."""
        assert self._health is None
        self.client.open()
        self._health = Health(
            self._endpoint(),
            self._card_up(),
            self.client.probe,
            sink,
            counters=self.counters,
            interval_s=probe_interval_s,
        )
        await self._health.probe()
        self._watch = asyncio.create_task(self._health.run(), name=f"health of {self.name}")

    async def stop(self) -> None:
        """Stop watching, send the last CardReport, close every connection."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
            self._watch = None
        if self._health is not None and self._health.up:
            await self._health.last_report()
        self._health = None
        self.client.close()

    async def post_chat(self, turn: TurnRun, *, salt: str) -> Reply:
        """Send the request; return the reply with a stream to read.

        A field of ours that the endpoint refuses is left out from then on, once the request went
        through without it.
        """
        left_out = self._left_out
        while True:
            body = bodies.chat_body(turn, self._model)
            bodies.add_service_fields(
                body, turn, self._kind, self._capabilities, salt=salt, left_out=left_out
            )
            reply = await self.client.post(
                self._chat_url,
                body,
                total_s=turn.deadline_s,
                prompt_tokens=turn.prompt.tokens + turn.resume_tokens,
            )
            if reply.status == 200:
                self._leave_out(left_out)
                return self._streaming(reply)
            refusal = await self.client.refusal(reply)
            refused = [
                name for name in bodies.OPTIONAL_FIELDS if name in body and refusal.names(name)
            ]
            if not refused:
                if "cache_salt" in body and refusal.names("cache_salt"):
                    raise EngineProtocolError(
                        f"engine {self.name} takes no cache_salt: set capabilities.salt to false"
                        " if its tenants may share cached prefixes"
                    )
                raise refusal.error(self.name)
            left_out = left_out | {*refused}

    async def post_json(self, url: URL, fields: JsonObject) -> JsonObject:
        """Send a call that is no turn, with the model's name there; return the answer."""
        return await self.client.post_json(url, {"model": self._model, **fields})

    def _leave_out(self, fields: frozenset[str]) -> None:
        for name in sorted(fields - self._left_out):
            _LOG.warning("engine %s takes no %s: it is left out from now on", self.name, name)
        self._left_out |= fields

    def _streaming(self, reply: Reply) -> Reply:
        kind = (reply.header(b"content-type") or "")[:128]
        if not kind.startswith("text/event-stream"):
            reply.close()
            raise EngineProtocolError(
                f"engine {self.name} does not stream: it answered with {kind or 'no type'}"
            )
        return reply

    def _endpoint(self) -> Endpoint:
        metrics = self._kind.metrics
        return Endpoint(
            name=self.name,
            model=self._model,
            models_url=self._models_url,
            metrics_url=self._metrics_url if metrics is not None else None,
            metric_names=metrics,
        )

    def _card_up(self) -> CardUp:
        settings = self._settings
        return CardUp(
            card=self.card,
            model=ModelId(settings.model),
            partition=settings.partition,
            kv=self._capabilities.kv,
            can_cut=self._capabilities.can_cut,
            slots=settings.slots,
            running_max=settings.running_max,
            kv_tokens=settings.kv_tokens,
            context_tokens=settings.context_tokens,
            kv_bytes_per_token=0,
            prompt_streams=settings.prompt_streams,
        )

    def _broken(self, problem: str, *, refused: bool) -> None:
        if self._health is not None:
            self._health.suspect(problem, refused=refused)

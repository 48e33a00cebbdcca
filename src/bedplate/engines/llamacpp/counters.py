"""What a card has done: the server's own counters, to be compared with what was metered."""

from __future__ import annotations

from typing import NamedTuple

from bedplate.errors import EngineProtocolError

_PREFIX = "llamacpp:"


class Counters(NamedTuple):
    """Totals of one server process. `prompt_tokens` counts cached ones too."""

    prompt_tokens: int
    cached_tokens: int
    out_tokens: int
    running: int

    def since(self, base: Counters) -> Counters:
        """Return what was added after `base`; `running` is a level and stays."""
        return Counters(
            self.prompt_tokens - base.prompt_tokens,
            self.cached_tokens - base.cached_tokens,
            self.out_tokens - base.out_tokens,
            self.running,
        )


def parse_metrics(text: str) -> Counters:
    """Read the server's Prometheus page.

    Raises:
        EngineProtocolError: a counter is missing, so that the page is of another build.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith(_PREFIX):
            name, _, value = line[len(_PREFIX) :].partition(" ")
            values[name] = int(float(value))
    try:
        cached = values["prompt_tokens_cached_total"]
        return Counters(
            values["prompt_tokens_total"] + cached,
            cached,
            values["tokens_predicted_total"],
            values["requests_processing"],
        )
    except KeyError as error:
        raise EngineProtocolError(f"the card's metrics lack {error}") from error

"""What the gateway counts itself, as a scrape shows it."""

from __future__ import annotations

from bedplate.engines.base import Finished
from bedplate.gateway.metrics import Counts, Metrics


def answer(*, exact: bool = True, unbelieved_tokens: int = 0) -> Finished:
    message = {"role": "assistant", "content": "yes"}
    return Finished(
        "stop", 10, 4, 3, 13, exact=exact, message=message, unbelieved_tokens=unbelieved_tokens
    )


def test_tokens_that_nobody_believes_are_counted_by_model_and_not_as_tokens() -> None:
    counts = Counts()
    counts.tokens("acme", "shared", "m", answer())
    assert b"bedplate_unbelieved_tokens_total{" not in Metrics(counts.families).render()
    counts.tokens("acme", "shared", "m", answer(exact=False, unbelieved_tokens=500))
    page = Metrics(counts.families).render().decode()
    assert 'bedplate_unbelieved_tokens_total{model="m"} 500.0' in page
    labels = 'lane="shared",model="m",tenant="acme"'
    assert f'bedplate_tokens_total{{kind="prompt",{labels}}} 12.0' in page

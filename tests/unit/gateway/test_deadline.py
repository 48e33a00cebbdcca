"""The header by which a client bounds its call."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bedplate.errors import InvalidRequest
from bedplate.gateway.deadline import due_at
from bedplate.gateway.http import Exchange


class Asked:
    """An exchange with one header."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def header(self, name: bytes) -> str | None:
        assert name == b"x-bedplate-deadline-seconds"
        return self.text


def exchange(text: str | None) -> Exchange:
    return cast("Exchange", Asked(text))


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("2.5", 2.5), ("86400", 86_400.0)])
async def test_a_number_of_seconds_counts_from_now(text: str, seconds: float) -> None:
    now = asyncio.get_running_loop().time()
    found = due_at(exchange(text))
    assert found is not None
    assert now + seconds <= found < now + seconds + 1


async def test_without_the_header_nothing_is_bounded() -> None:
    assert due_at(exchange(None)) is None


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1e3", "nan", "inf", "86401", "٣", "1,5", "0.0001"]
)
async def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="X-Bedplate-Deadline-Seconds must be") as caught:
        due_at(exchange(text))
    assert caught.value.param == "X-Bedplate-Deadline-Seconds"

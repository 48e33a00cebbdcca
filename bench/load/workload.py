"""What is asked: sessions of turns over real text, and what every answer must be.

A session's first message is the system prompt of one of the demo's agents, its second names the
case, so no two sessions are equal. The fake engine gives every turn the same 32 pieces, so the
whole history of a session is known before it begins and is rendered once.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files

import orjson

from tests.fakes.openai_answers import WORDS

MODEL = "fake"
CHUNKS = 32
LIMIT_TOKENS = 64
ANSWER = "".join(WORDS[i % len(WORDS)] for i in range(CHUNKS))
EVENTS_MIN = CHUNKS + 2
"""Pieces of content, the end with its reason, the usage; some servers send the role apart."""

_DOMAINS = ("wealth", "fraud", "compliance", "service")
_ASK = "Case {case}. Read the file of this client and say what the desk should do next, and why."
_MORE = (
    "Tool result {turn}: account 4-{turn:03d} shows no entry after the date. Go on with the case."
)


def system_prompts() -> tuple[str, ...]:
    """Return the system prompts of the demo's agents."""
    folder = files("bedplate.demo") / "fixtures"
    return tuple(
        str(tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))["system"]).strip()
        for name in _DOMAINS
    )


def text_hash() -> str:
    """Return a digest of all the text that is asked, for a run's meta data."""
    return hashlib.sha256("\n".join((*system_prompts(), _ASK, _MORE, ANSWER)).encode()).hexdigest()


def _message(role: str, content: str) -> bytes:
    return orjson.dumps({"role": role, "content": content})


@dataclass(slots=True)
class Workload:
    """Renders the body of any turn of any session. `label` keeps runs apart."""

    label: str
    _heads: tuple[bytes, ...] = field(init=False)
    _later: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Render what all sessions share."""
        options = orjson.dumps(
            {
                "model": MODEL,
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": LIMIT_TOKENS,
            }
        )
        self._heads = tuple(
            options[:-1] + b',"messages":[' + _message("system", prompt) + b","
            for prompt in system_prompts()
        )

    def body(self, session: int, turn: int) -> bytes:
        """Return the request of a session's turn; both count from 0."""
        while len(self._later) < turn:
            more = _message("user", _MORE.format(turn=len(self._later) + 1))
            self._later.append(b"," + _message("assistant", ANSWER) + b"," + more)
        ask = _message("user", _ASK.format(case=f"{self.label}-{session}"))
        head = self._heads[session % len(self._heads)]
        return head + ask + b"".join(self._later[:turn]) + b"]}"

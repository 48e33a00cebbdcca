"""Scripts: what an agent of the demonstration asks, and what its tools return.

A file has one tenant with its system prompt, its tools and some sessions. A session opens with a
question; each step is what a tool, or a colleague, says next. Steps are played in order whatever
the model answers, so that the demonstration has the same load with any model.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bedplate.engines.base import JsonObject

FIXTURES = "bedplate.demo.fixtures"


@dataclass(frozen=True, slots=True)
class Step:
    """What comes back after a turn, and from whom: a tool's name or a person's role."""

    tool: str
    result: str


@dataclass(frozen=True, slots=True)
class Script:
    """One session: `1 + len(steps)` turns."""

    tenant: str
    lane: str
    id: str
    system: str
    tools: tuple[JsonObject, ...]
    question: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Department:
    """One tenant of the demonstration: its name for people, its default lane, its sessions."""

    tenant: str
    lane: str
    title: str
    scripts: tuple[Script, ...]


def departments() -> tuple[Department, ...]:
    """Return all tenants by name, with their scripts in the order of the file."""
    files = [f for f in resources.files(FIXTURES).iterdir() if f.name.endswith(".toml")]
    return tuple(
        _department(tomllib.loads(file.read_text(encoding="utf-8")))
        for file in sorted(files, key=lambda file: file.name)
    )


def _department(raw: dict[str, Any]) -> Department:
    tools = tuple(_tool(tool) for tool in raw["tools"])
    scripts = tuple(
        Script(
            tenant=raw["tenant"],
            lane=raw["lane"],
            id=session["id"],
            system=raw["system"].strip(),
            tools=tools,
            question=session["question"].strip(),
            steps=tuple(Step(s["tool"], s["result"].strip()) for s in session["steps"]),
        )
        for session in raw["sessions"]
    )
    return Department(raw["tenant"], raw["lane"], raw["title"], scripts)


def _tool(raw: dict[str, Any]) -> JsonObject:
    return {
        "type": "function",
        "function": {
            "name": raw["name"],
            "description": raw["description"],
            "parameters": {
                "type": "object",
                "properties": raw["properties"],
                "required": sorted(raw["properties"]),
            },
        },
    }

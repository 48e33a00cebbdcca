"""A service in a process of its own, to be killed: python -m tests.integration.service_process FILE

It starts what the configuration FILE says, runs the turns that it reads as JSON lines from stdin
({"turn", "session", "text", "limit", "wait"}), and answers each with a line: "done TURN" when it
has ended (and the answer as JSON), or with `wait` false "begun TURN" when its first token is out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bedplate.config import load
from bedplate.core.ids import BranchId, SessionId, TenantId, TurnId
from bedplate.engines.base import ChatRequest, Delta, Finished, Lineage, Output
from bedplate.runtime.build import build_service
from bedplate.runtime.service import Service
from bedplate.runtime.turns import Call, TurnStream


async def submit(service: Service, order: dict[str, Any]) -> TurnStream:
    model = service.models()[0]
    lineage = Lineage(TenantId("acme"), SessionId(order["session"]), BranchId(0), -1, 0)
    request = ChatRequest(
        model=model,
        messages=tuple(order["messages"]),
        limit_tokens=order["limit"],
        temperature=0.0,
        extra=order.get("extra", {}),
    )
    prompt = await service.engine_for(model).prepare(request, lineage)
    return service.submit(Call(TurnId(order["turn"]), lineage, request, prompt))


def stream_end(outputs: Sequence[Output]) -> dict[str, Any]:
    assert isinstance(outputs[-1], Finished)
    return outputs[-1].message


async def main(file: Path) -> None:
    service = build_service(load(file))
    await service.start()
    print("ready", flush=True)
    held = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        stream = await submit(service, order)
        held.append(stream)
        async for outputs in stream:
            if not order["wait"] and any(isinstance(o, Delta) for o in outputs):
                print("begun", order["turn"], flush=True)
                break
        else:
            print("done", order["turn"], json.dumps(stream_end(outputs)), flush=True)
    await service.drain(5)
    await service.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

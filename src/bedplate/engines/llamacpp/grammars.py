"""Grammars of one engine: admitted before a card sees them, and checked against what came back.

The server compiles llguidance's Lark form; where that fails, at once or in the middle of an answer,
it warns in its log and generates without any constraint. So the same library tries every grammar
here first, and reads every constrained answer again at its end. Both happen in the `compiler`
process: a grammar that would take all memory ends that process and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

import orjson

from bedplate.core.ids import TenantId
from bedplate.engines.base import ChatRequest
from bedplate.engines.llamacpp.grammar import grammar_for, grammar_param
from bedplate.errors import EngineError, EngineTimeout, InvalidRequest, SchemaNotKept

KNOWN_MAX = 1_024
"""Grammars whose judgement is remembered: a digest and a short text each."""
WAIT_SECONDS = 20.0
"""Longest wait for the compiler, whose own limit is processor time."""
_SCRIPT = Path(__file__).with_name("compiler.py")
_TOO_MUCH = "it takes too much memory or time to compile"


class Grammars:
    """Judges grammars, one at a time; its process starts with the first.

    A tenant has one judged at a time, so that those of another wait for one of its, not for all.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._tenants: WeakValueDictionary[TenantId, asyncio.Lock] = WeakValueDictionary()

    async def admit(self, request: ChatRequest, tenant: TenantId) -> str | None:
        """Return the grammar that the answer must follow, None for free text.

        Raises:
            InvalidRequest: a schema that cannot be enforced.
            EngineTimeout: the compiler has too much to do.
        """
        grammar = grammar_for(request)
        if grammar is None:
            return None
        digest = hashlib.blake2b(grammar.encode(), digest_size=32).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
        else:
            problem = await self._ask(grammar, None, tenant)
            self._known[digest] = _TOO_MUCH if problem is None else problem
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        if self._known[digest]:
            raise InvalidRequest(
                f"this schema cannot be enforced: {self._known[digest]}",
                param=grammar_param(request),
            )
        return grammar

    async def check(self, grammar: str, answer: str, tenant: TenantId) -> None:
        """Check a constrained answer that the model ended itself.

        Raises:
            SchemaNotKept: the engine did not keep to the grammar, or it cannot be told.
            EngineTimeout: the compiler has too much to do.
        """
        problem = await self._ask(grammar, answer, tenant)
        if problem is None:
            raise SchemaNotKept("the answer could not be checked against its schema; simplify it")
        if problem:
            raise SchemaNotKept(
                f"the engine did not keep to the schema: {problem}; simplify the schema"
            )

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _ask(self, grammar: str, text: str | None, tenant: TenantId) -> str | None:
        """Return the compiler's judgement, None where it ended over it."""
        line = orjson.dumps({"grammar": grammar, "text": text}) + b"\n"
        own = self._tenants.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(WAIT_SECONDS), own, self._turn:
                done = False
                try:
                    answer = await self._exchange(line)
                    done = bool(answer)
                finally:
                    if not done:
                        # Ended, or cancelled in the middle: its next line would be another's.
                        await asyncio.shield(self._end())
        except TimeoutError:
            raise EngineTimeout("the grammar compiler did not answer in time") from None
        return str(orjson.loads(answer)["problem"]) if answer else None

    async def _exchange(self, line: bytes) -> bytes:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                str(_SCRIPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise EngineError("the grammar compiler does not start")
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return b""
        return await process.stdout.readline()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

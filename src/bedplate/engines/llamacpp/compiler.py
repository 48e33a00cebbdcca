"""The compiler process: tries grammars of clients where they can do no harm.

Started by path, so that it loads the compiler alone. Each line on stdin is a JSON object with a
`grammar` and a `text` or null; each line on stdout one with a `problem`, empty when there is none.
Memory and processor time of one grammar are limited; what passes a limit ends this process, and
its owner starts another. It ends when its stdin does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

import llguidance

MEMORY_BYTES_MAX = 1 << 30
SECONDS_MAX = 2.0
"""Processor time for one grammar: sixty tools of twenty parameters take 0.15 s."""


def problem_of(grammar: str, text: str | None, tokenizer: llguidance.LLTokenizer) -> str:
    """Return why a grammar cannot be enforced, or why `text` is no whole answer to it."""
    said = str(llguidance.LLMatcher.validate_grammar(grammar))
    if said:
        return said.partition("\n")[0].partition("): ")[2] or said
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    if text is None:
        # The first step is where a card would meet what only shows when it is used.
        matcher.compute_bitmask()
        return matcher.get_error().partition("\n")[0] if matcher.is_error() else ""
    given = text.encode()
    if matcher.try_consume_tokens(list(given)) < len(given):
        return "it breaks the grammar"
    return "" if matcher.is_accepting() else "it ends too early"


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer = llguidance.LLTokenizer("byte")
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
        problem = problem_of(job["grammar"], job["text"], tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps({"problem": problem[:300]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

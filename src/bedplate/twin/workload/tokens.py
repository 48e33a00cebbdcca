"""How many tokens a text has, estimated without a tokenizer.

A text is cut into runs of its kinds of signs, and each run costs what it costs on average in the
vocabulary of Gemma 3: a least-squares fit over excerpts of agent traces, filings and Chinese
statutes. `tests/integration/test_token_estimate.py` compares it with the tokenizer again: on other
excerpts it is off by 1 to 4 % on average, where four characters a token are off by 6 to 18 % in the
traces and by 59 % in the statutes.
"""

from __future__ import annotations

import re

_RUNS = re.compile(
    r"(?P<word>[A-Za-z]+)|(?P<digit>[0-9])|(?P<underscore>_)|(?P<cjk>[\u3400-\u9fff])"
    r"|(?P<line>\n+)|(?P<indent>  +)|(?P<sign>[^\sA-Za-z0-9_\u3400-\u9fff]+)"
)
_WORD, _LETTER_BEYOND_6 = 964, 120
_SIGNS, _SIGN = 944, 39
_COST = {"digit": 1218, "underscore": 1140, "cjk": 590, "line": 1162, "indent": 1137}
"""Thousandths of a token for each run."""


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has; 0 only for an empty one.

    Cost: O(characters).
    """
    total = 0
    for run in _RUNS.finditer(text):
        kind = run.lastgroup
        length = run.end() - run.start()
        if kind == "word":
            total += _WORD + _LETTER_BEYOND_6 * max(0, length - 6)
        elif kind == "sign":
            total += _SIGNS + _SIGN * length
        else:
            assert kind is not None
            total += _COST[kind]
    return max(1, round(total / 1000)) if text else 0

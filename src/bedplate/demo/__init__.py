"""The demonstration's own material: business texts and agents that play them over plain HTTP.

`fixtures/` holds the texts, `scripts.py` reads them, `answer.py` puts a streamed answer together,
`agents.py` plays a script against any OpenAI-compatible address. Nothing here knows the service
from inside: what an agent measures is what a client would.
"""

"""Load for anything that speaks OpenAI's chat completions, cheap enough to share a core.

`python -m bench.load` reads one job as JSON from stdin and prints what happened as JSON.
"""

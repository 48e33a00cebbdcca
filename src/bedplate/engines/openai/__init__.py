"""Engine adapter for OpenAI-compatible endpoints: vLLM, SGLang, MindIE, llama.cpp's server, others.

One endpoint is one card; an engine has one or several endpoints of its model. An endpoint's KV
cache is its own (`kv: hints`): nothing is stored or loaded, core models what the endpoint holds and
is corrected by the usage that it reports.

Reading order: `servers` (what each kind of server can do, as data), `engine` (a turn's way),
`replica` (one endpoint: its client, `http`, on `connection`, and who watches it),
`body` (the request sent), `sse` and `answer` (the stream read), `tool_calls`, `faults` (errors),
`prompts` (counting), `health` and `metrics` (is it up, and its own counters).
"""

from bedplate.engines.openai.engine import OpenAIEngine

__all__ = ["OpenAIEngine"]

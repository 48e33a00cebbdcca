"""The door: HTTP in OpenAI's terms, on top of the runtime.

Reading order: `app` (routes, error boundary) → `chat` (one chat call's journey) → `openai/` (what
the wire means: `wire` and its tables in, `stream` and `completion` out) → `door` (who is calling) →
`http` (one exchange: headers, bounded body, paced writes) → `server` (the process around it).
"""

"""The embedded engine: real llama.cpp in child processes, each a card of its own.

Reading order: `engine` (the life of a turn), `fleet`, `card` and `child` (processes), `client`
(HTTP), `prompting` with `template`, `special`, `grammar` and `transcript` (text to ids), `answer`
and `calls` (ids to text), `grammars` with `bounds` and `compiler` (what a schema may ask for),
`storing` and `slot_file` (KV and the pool), `model` and `gguf_header` (the file). Nothing is
imported here: a card's process starts with this package and needs little of it.
"""

r"""Chat rendering: messages to text, in parts that end where a message's content ends.

A part is the unit that is tokenised and remembered: the close of the message before, the opening of
this one, its content. A message that is known already is never rendered again; rendering `since` it
starts with its close. The default layout is ours: ChatML with tools in Hermes form, from one Jinja2
template for each part. `JinjaTemplate` takes the model's own instead, and says None where it cannot
tell a message's end in what it rendered.

    <|im_start|>system\n{text}                      part 0, ends message 0
    <|im_end|>\n<|im_start|>user\n{text}            part 1, ends message 1
    <|im_end|>\n<|im_start|>assistant\n             last part, opens the answer
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import jinja2
import jinja2.sandbox

from bedplate.engines.base import JsonObject
from bedplate.engines.llamacpp.bounds import DATA_DEPTH_MAX, too_deep
from bedplate.engines.llamacpp.model import Model
from bedplate.engines.llamacpp.special import Specials
from bedplate.errors import ConfigError, InvalidRequest

CHATML = ("<|im_start|>", "<|im_end|>")
_MARKERS = (CHATML, ("<start_of_turn>", "<end_of_turn>"))
"""Pairs that open and close a turn; the first that the vocabulary has as tokens is used."""

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_TOOLS = (
    "{% if text %}{{ text }}\n\n{% endif %}# Tools\n\n"
    "These functions can be called to help with the task. Their signatures, as JSON, one a line:\n"
    "<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n\n"
    "To call a function, write its name and arguments as a JSON object between tags, one a call:\n"
    '<tool_call>\n{"name": "its name", "arguments": {"argument": "value"}}\n</tool_call>'
)

_MESSAGE = (
    '{% if message.role == "tool" %}<tool_response>\n{{ message.content }}\n</tool_response>'
    "{% else %}{{ message.content }}{% for call in message.tool_calls %}"
    '{{ "\n" if message.content or not loop.first }}'
    '<tool_call>\n{"name": {{ call.function.name | tojson }}, '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endif %}"
)

_END = "\ue0ff"
"""Marks the end of a content while a foreign template renders it."""


class Part(NamedTuple):
    """Text up to the end of message `ends`.

    −1: up to where the answer begins, or to the end of what stands before the first message.
    """

    text: str
    ends: int


class Template(Protocol):
    """How one engine renders chats. `stops` end an answer where no control token does."""

    name: str
    stops: tuple[str, ...]

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, since: int
    ) -> list[Part] | None:
        """Render all from message `since` on, after the content of the message before it.

        Returns None when the template cannot continue from there. Messages are plain: content is a
        string, tool call arguments are JSON values.
        """
        ...


def make_template(choice: str, model: Model, specials: Specials) -> Template:
    """Return the template that the settings name.

    Raises:
        ConfigError: the model carries none, or the file cannot be used.
    """
    if choice == "chatml":
        return ChatTemplate(specials)
    if choice == "model":
        if model.chat_template is None:
            raise ConfigError(f"{model.path} has no chat template; set chat_template = chatml")
        return JinjaTemplate("model", model.chat_template, model)
    try:
        source = Path(choice).expanduser().read_text()
    except OSError as error:
        raise ConfigError(
            f"chat_template must be chatml, model or a file; {choice}: {error.strerror}"
        ) from error
    return JinjaTemplate(choice, source, model)


class ChatTemplate:
    """Our own layout, with the turn markers that the model's vocabulary has."""

    def __init__(self, specials: Specials) -> None:
        known = [pair for pair in _MARKERS if pair[0] in specials and pair[1] in specials]
        self._open, close = known[0] if known else CHATML
        self._close = f"{close}\n"
        self.name = f"chatml {self._open}"
        self.stops: tuple[str, ...] = () if known else (close,)
        environment = _environment()
        self._tools = environment.from_string(_TOOLS)
        self._message = environment.from_string(_MESSAGE)

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, since: int
    ) -> list[Part] | None:
        """Render from message `since` on; never None."""
        parts = []
        for index in range(since, len(messages)):
            message = messages[index]
            lead = self._close if index else ""
            content = self._content(message)
            if index == 0 and tools:
                system = message["role"] == "system"
                head = self._tools.render(text=content if system else "", tools=tools)
                if system:
                    content = head
                else:
                    parts.append(Part(f"{self._open}system\n{head}", -1))
                    lead = self._close
            parts.append(Part(f"{lead}{self._open}{message['role']}\n{content}", index))
        parts.append(Part(f"{self._close}{self._open}assistant\n", -1))
        return parts

    def _content(self, message: JsonObject) -> str:
        if message["role"] != "tool" and not message.get("tool_calls"):
            return str(message["content"])
        return self._message.render(message=message)


class JinjaTemplate:
    """A template of the model's or the operator's, in a sandbox."""

    def __init__(self, name: str, source: str, model: Model) -> None:
        self.name = name
        self.stops: tuple[str, ...] = ()
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template {name}: {error}") from error
        self._globals = {"bos_token": "", "eos_token": model.eos_text}

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, since: int
    ) -> list[Part] | None:
        """Render the whole chat and cut it where content ends.

        Known only for the message before `since`, the last one, and in a whole chat the last of the
        leading system messages.
        """
        whole = self._text(messages, tools)
        begin = 0
        if since:
            rest = self._after(messages, tools, since - 1)
            if rest is None or not whole.endswith(rest):
                return None
            begin = len(whole) - len(rest)
        parts = []
        leading = leading_system(messages)
        if not since and 0 < leading < len(messages):
            rest = self._after(messages, tools, leading - 1)
            if rest is not None and whole.endswith(rest):
                begin = len(whole) - len(rest)
                parts.append(Part(whole[:begin], leading - 1))
        tail = self._after(messages, tools, len(messages) - 1)
        if tail is None or not whole.endswith(tail) or len(whole) - len(tail) < begin:
            return [*parts, Part(whole[begin:], -1)]
        end = len(whole) - len(tail)
        return [*parts, Part(whole[begin:end], len(messages) - 1), Part(whole[end:], -1)]

    def _after(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], index: int
    ) -> str | None:
        """Return what follows the content of message `index`, None where that cannot be told."""
        marked = list(messages)
        marked[index] = {"role": messages[index]["role"], "content": _END}
        if "tool_call_id" in messages[index]:
            marked[index] = {**messages[index], "content": _END}
        before, found, after = self._text(marked, tools).partition(_END)
        return after if found and before and _END not in after else None

    def _text(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self._globals,
            )
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {error}",
                param="messages",
            ) from error


def leading_system(messages: Sequence[JsonObject]) -> int:
    """Return how many plain messages at the start are the system's."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    return count


def plain_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages as templates read them.

    Raises:
        InvalidRequest: content other than text, or a role that chat does not have.
    """
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role == "developer":
            role = "system"
        if role not in ("system", "user", "assistant", "tool"):
            raise InvalidRequest(f"{where}: unknown role {role!r}", param=f"{where}.role")
        one: JsonObject = {"role": role, "content": _text_of(message.get("content"), where)}
        if message.get("tool_calls"):
            one["tool_calls"] = [_plain_call(call, where) for call in message["tool_calls"]]
        for key in ("name", "tool_call_id"):
            if message.get(key):
                one[key] = message[key]
        plain.append(one)
    if not plain:
        raise InvalidRequest("messages must not be empty", param="messages")
    return plain


def _text_of(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "refusal"):
            raise InvalidRequest(
                f"{where}: this model takes text only, not {kind}", param=f"{where}.content"
            )
        texts.append(str(part.get(kind, "")))
    return "".join(texts)


def _plain_call(call: Any, where: str) -> JsonObject:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}: a tool call needs a function", param=f"{where}.tool_calls")
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, where)
    if too_deep(arguments):
        raise InvalidRequest(
            f"{where}: arguments may nest {DATA_DEPTH_MAX} levels", param=f"{where}.tool_calls"
        )
    return {
        "id": str(call.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _parsed(arguments: str, where: str) -> Any:
    """Return arguments as a value; what was cut at a limit comes back as the text that it was."""
    try:
        value = json.loads(arguments)
        if "\\u" in arguments:
            _to_json(value).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{where}: arguments hold half a character", param=f"{where}.tool_calls"
        ) from error
    except RecursionError as error:
        raise InvalidRequest(
            f"{where}: arguments may nest {DATA_DEPTH_MAX} levels", param=f"{where}.tool_calls"
        ) from error
    except ValueError:
        return arguments
    return value


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the sandbox. It has no clock: a date in a prompt would end its reuse at midnight."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _to_json(value: Any, indent: int | None = None, **_ignored: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

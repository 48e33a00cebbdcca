"""Rendering: the layout itself, and that a continuation is what the whole would have had there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bedplate.engines.llamacpp.fragments import Fragments
from bedplate.engines.llamacpp.model import Model
from bedplate.engines.llamacpp.special import Specials
from bedplate.engines.llamacpp.template import (
    ChatTemplate,
    JinjaTemplate,
    make_template,
    plain_messages,
)
from bedplate.errors import ConfigError, InvalidRequest

CHATML = Specials(["<|im_start|>", "<|im_end|>"])
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"city": "Zürich"}'},
}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "assistant", "content": "Rain."},
    {"role": "user", "content": "And tomorrow?"},
]
FOREIGN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} [/]\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def model(template: str | None = None) -> Model:
    return Model(
        path=Path("x.gguf"),
        digest="0",
        licence=None,
        architecture="llama",
        context_tokens=100,
        can_cut=True,
        kv_bytes_per_token=1,
        chat_template=template,
        special=frozenset(),
        fragments=Fragments(),
        token_characters=1,
        bos_text="<s>",
        eos_text="</s>",
    )


def text_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]], since: int = 0) -> str:
    parts = ChatTemplate(CHATML).render(plain_messages(messages), tools, since=since)
    assert parts is not None
    return "".join(part.text for part in parts)


def test_plain_chat_is_chatml() -> None:
    assert text_of(CHAT[:2], []) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_stand_in_the_system_message_and_calls_and_results_have_their_tags() -> None:
    text = text_of(CHAT, [TOOL])
    system, _, rest = text.partition("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '\n{"type": "function", "function": {"name": "look", ' in system
    assert (
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "look", "arguments": {"city": "Zürich"}}\n'
        "</tool_call><|im_end|>\n" in rest
    )
    assert "<|im_start|>tool\n<tool_response>\nrain\n</tool_response><|im_end|>\n" in rest


def test_tools_without_a_system_message_get_one() -> None:
    text = text_of(CHAT[1:2], [TOOL])
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_before_a_call_and_two_calls_stand_on_lines_of_their_own() -> None:
    message = {"role": "assistant", "content": "Look:", "tool_calls": [CALL, CALL]}
    text = text_of([CHAT[1], message], [TOOL])
    assert "Look:\n<tool_call>\n{" in text
    assert "</tool_call>\n<tool_call>\n{" in text


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("since", range(1, len(CHAT)))
def test_continuation_is_a_suffix_and_starts_with_the_close(
    since: int, tools: list[dict[str, Any]]
) -> None:
    rest = text_of(CHAT, tools, since)
    assert text_of(CHAT, tools).endswith(rest)
    assert rest.startswith("<|im_end|>\n<|im_start|>")


def test_parts_end_with_the_content_of_their_message() -> None:
    parts = ChatTemplate(CHATML).render(plain_messages(CHAT), [], since=4)
    assert parts is not None
    assert [part.ends for part in parts] == [4, 5, -1]
    assert parts[0].text.endswith("Rain.")


def test_markers_are_those_of_the_vocabulary() -> None:
    gemma = ChatTemplate(Specials(["<start_of_turn>", "<end_of_turn>"]))
    assert gemma.stops == ()
    parts = gemma.render(plain_messages(CHAT[1:2]), [], since=0)
    assert parts is not None
    assert parts[0].text == "<start_of_turn>user\nWeather?"
    assert ChatTemplate(Specials([])).stops == ("<|im_end|>",)


def test_foreign_template_is_cut_where_content_ends() -> None:
    template = JinjaTemplate("model", FOREIGN, model())
    parts = template.render(plain_messages(CHAT[:2]), [], since=0)
    assert parts == [
        ("[system] Be brief.", 0),
        (" [/]\n[user] Weather?", 1),
        (" [/]\n[assistant] ", -1),
    ]
    more = [*CHAT[:2], {"role": "assistant", "content": "Rain."}, CHAT[5]]
    parts = template.render(plain_messages(more), [], since=3)
    assert parts == [(" [/]\n[user] And tomorrow?", 3), (" [/]\n[assistant] ", -1)]


def test_foreign_template_that_changes_its_past_gives_nothing_to_continue() -> None:
    source = "{{ messages[-1].content }}{% for m in messages %}{{ m.content }};{% endfor %}"
    template = JinjaTemplate("model", source, model())
    plain = plain_messages([CHAT[0], CHAT[1], CHAT[4], CHAT[5]])
    assert template.render(plain, [], since=4 - 1) is not None
    short = JinjaTemplate("model", "{{ messages[0].content }}", model())
    assert short.render(plain, [], since=2) is None


def test_foreign_template_cannot_leave_its_sandbox() -> None:
    template = JinjaTemplate("x", "{{ messages.__class__.__mro__[1].__subclasses__() }}", model())
    with pytest.raises(InvalidRequest):
        template.render(plain_messages(CHAT[:1]), [], since=0)


def test_foreign_template_may_refuse_messages() -> None:
    template = JinjaTemplate("x", "{{ raise_exception('roles must alternate') }}", model())
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(plain_messages(CHAT[:1]), [], since=0)
    assert caught.value.param == "messages"


def test_choice_of_template(tmp_path: Path) -> None:
    assert make_template("chatml", model(), CHATML).name == "chatml <|im_start|>"
    assert make_template("model", model(FOREIGN), CHATML).name == "model"
    with pytest.raises(ConfigError, match="no chat template"):
        make_template("model", model(), CHATML)
    with pytest.raises(ConfigError, match="chatml, model or a file"):
        make_template(str(tmp_path / "none.jinja"), model(), CHATML)
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    with pytest.raises(ConfigError, match=r"broken\.jinja"):
        make_template(str(broken), model(), CHATML)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content"),
        ({"role": "wizard", "content": "x"}, "role"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, "tool_calls"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_messages([{"role": "user", "content": "x"}, message])
    assert caught.value.param == f"messages[1].{param}"


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        plain_messages([])


def test_text_parts_are_joined_and_developer_is_system() -> None:
    plain = plain_messages(
        [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ]
    )
    assert plain == [{"role": "system", "content": "ab"}]


def call(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("[" * 600 + "]" * 600, "64 levels"),
        ("[" * 65 + "]" * 65, "64 levels"),
        ("[" * 100_000, "64 levels"),
        (r'{"a":"\ud83d"}', "half a character"),
    ],
)
def test_arguments_that_nothing_can_render_are_refused(arguments: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        plain_messages(call(arguments))
    assert caught.value.param == "messages[0].tool_calls"


def test_arguments_that_can_be_rendered_stay_as_they_are() -> None:
    for arguments in ("[" * 64 + "]" * 64, r'{"a":"\ud83d\ude42"}', '{"a": 1'):
        parts = ChatTemplate(CHATML).render(plain_messages(call(arguments)), [], since=0)
        assert parts

"""Counting without a tokenizer: what was counted before is kept, the rest is estimated."""

from __future__ import annotations

from typing import Any

import pytest

from bedplate.core.ids import BranchId, ModelId, SessionId, TenantId
from bedplate.engines.base import ChatRequest, Finished, JsonObject, Lineage
from bedplate.engines.openai import prompts
from bedplate.engines.openai.prompts import Prompts, Ratio, items_of

SYSTEM = {"role": "system", "content": "You review claims."}
ASK = {"role": "user", "content": "What is due?"}
ANSWER = {"role": "assistant", "content": "Nothing."}


BANK, RIVAL = TenantId("bank"), TenantId("rival")


def lineage(
    branch: int = 0, fork_of: int = -1, session: str = "s", tenant: TenantId = BANK
) -> Lineage:
    return Lineage(tenant, SessionId(session), BranchId(branch), fork_of, 0)


def request(*messages: JsonObject, **fields: Any) -> ChatRequest:
    return ChatRequest(model=ModelId("m"), messages=messages, **fields)


def ended(prompt_tokens: int = 100, out_tokens: int = 20, message: JsonObject = ANSWER) -> Finished:
    total = prompt_tokens + out_tokens
    return Finished("stop", prompt_tokens, 0, out_tokens, total, True, message)


def after(*messages: JsonObject) -> Prompts:
    known = Prompts()
    known.ended(items_of(request(*messages)), lineage(), ended())
    return known


def test_an_extension_keeps_the_engines_count_and_estimates_the_rest() -> None:
    known = after(SYSTEM, ASK)
    more = items_of(request(SYSTEM, ASK, ANSWER, {"role": "user", "content": "x" * 400}))
    count = known.count(more, lineage())
    assert count.reuse_tokens == 120
    assert count.tokens == 120 + known.ratio(BANK).tokens(more.sizes[-1])


def test_an_answer_that_an_sdk_sends_back_in_its_own_form_is_the_same_answer() -> None:
    known = after(SYSTEM, ASK)
    parts = [{"type": "text", "text": "Nothing."}]
    sdk = {"content": parts, "role": "assistant", "tool_calls": [], "refusal": None}
    assert known.count(items_of(request(SYSTEM, ASK, sdk, ASK)), lineage()).reuse_tokens == 120


def test_the_same_prompt_again_reuses_all_but_a_token() -> None:
    count = after(SYSTEM, ASK).count(items_of(request(SYSTEM, ASK)), lineage())
    assert count == (100, 99, 100, 100)


def test_another_answer_reuses_the_prompt_only() -> None:
    other = {"role": "assistant", "content": "Something."}
    count = after(SYSTEM, ASK).count(items_of(request(SYSTEM, ASK, other, ASK)), lineage())
    assert count.reuse_tokens == 100


def test_a_divergence_reuses_its_share_of_what_was_counted() -> None:
    items = items_of(request(SYSTEM, ASK))
    count = after(SYSTEM, ASK).count(items_of(request(SYSTEM, ANSWER)), lineage())
    assert count.reuse_tokens == 100 * items.sizes[0] // items.size_bytes


def test_other_tools_are_another_prompt() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    count = after(SYSTEM, ASK).count(items_of(request(SYSTEM, ASK, tools=(tool,))), lineage())
    assert count.reuse_tokens == 0


def test_a_fork_looks_at_its_parent_and_another_session_at_nothing() -> None:
    known = after(SYSTEM, ASK)
    items = items_of(request(SYSTEM, ASK, ANSWER, ASK))
    assert known.count(items, lineage(branch=1, fork_of=0)).reuse_tokens == 120
    assert known.count(items, lineage(branch=1)).reuse_tokens == 0
    assert known.count(items, lineage(session="other")).reuse_tokens == 0
    known.forget(SessionId("s"))
    assert known.count(items, lineage()).reuse_tokens == 0


def test_an_answer_of_several_choices_is_not_the_branchs_own() -> None:
    known = Prompts()
    end = Finished("stop", 100, 0, 20, 100, True, ANSWER, ("stop",))
    known.ended(items_of(request(SYSTEM, ASK)), lineage(), end)
    count = known.count(items_of(request(SYSTEM, ASK, ANSWER, ASK)), lineage())
    assert count.reuse_tokens == 100


def test_a_prompt_has_at_least_one_token_to_compute() -> None:
    known = Prompts()
    count = known.count(items_of(request({"role": "user", "content": ""})), lineage())
    assert count.tokens >= 1
    assert count.reuse_tokens == 0


def test_the_ratio_moves_to_what_is_seen_and_stays_within_bounds() -> None:
    ratio = Ratio()
    for _ in range(60):
        ratio.learn(10_000, 2_000)
    assert abs(ratio.tokens(10_000) - 2_000) <= 5
    for _ in range(200):
        ratio.learn(10_000, 10**9)
    assert ratio.ppm == prompts.PPM_MAX
    for _ in range(200):
        ratio.learn(10_000, 0)
    assert ratio.ppm == prompts.PPM_MIN
    assert isinstance(ratio.ppm, int)


def test_what_one_tenant_sends_changes_no_count_of_another() -> None:
    known = Prompts()
    items = items_of(request({"role": "user", "content": "x" * 40_000}))
    before = known.count(items, lineage())
    dense = items_of(request({"role": "user", "content": "\U0001f9ff" * 300}))
    for _ in range(60):
        place = lineage(session="r", tenant=RIVAL)
        known.ended(dense, place, ended(prompt_tokens=1_200))
    assert known.count(items, lineage()) == before
    assert known.count(items, lineage(tenant=RIVAL)).tokens > 3 * before.tokens


def test_the_tenant_unused_for_longest_is_forgotten() -> None:
    known = Prompts()
    known.ratio(BANK).learn(10_000, 9_000)
    learned = known.ratio(BANK).ppm
    for number in range(prompts.TENANTS_MAX - 1):
        known.ratio(TenantId(f"t{number}"))
    assert known.ratio(BANK).ppm == learned
    for number in range(prompts.TENANTS_MAX):
        known.ratio(TenantId(f"u{number}"))
    assert known.ratio(BANK).ppm == prompts.START_PPM


@pytest.mark.parametrize("learned", [1, 10_000])
def test_bounds_hold_for_any_text_whatever_was_learned(learned: int) -> None:
    known = Prompts()
    for _ in range(200):
        known.ratio(BANK).learn(10_000, learned)
    size = len("\U0001f9ff" * 1_000) * 4
    count = known.count(
        items_of(request({"role": "user", "content": "\U0001f9ff" * 1_000})), lineage()
    )
    assert count.most_tokens >= size, "a token a byte"
    blanks = known.count(items_of(request({"role": "user", "content": " " * 8_000})), lineage())
    assert blanks.least_tokens <= 8_000 // 80 + 4, "runs of 80 blanks are a token each"
    assert blanks.least_tokens <= blanks.tokens <= blanks.most_tokens
    assert count.tokens >= size * prompts.PPM_MIN // 10**6


def test_what_the_engine_counted_is_no_estimate() -> None:
    known = after(SYSTEM, ASK)
    more = items_of(request(SYSTEM, ASK, ANSWER, {"role": "user", "content": "x" * 400}))
    count = known.count(more, lineage())
    assert count.least_tokens == 120 + more.sizes[-1] // prompts.TOKEN_BYTES_MAX
    assert count.most_tokens == 120 + more.sizes[-1]


def test_short_prompts_and_pictures_teach_nothing() -> None:
    known = Prompts()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000}}
    picture = {"role": "user", "content": [{"type": "text", "text": "see " * 200}, image]}
    for messages in ((ASK,), (picture,)):
        known.ended(items_of(request(*messages)), lineage(), ended(prompt_tokens=9_999))
    assert known.ratio(BANK).ppm == prompts.START_PPM


def test_a_picture_counts_by_itself_and_not_by_its_encoding() -> None:
    def size(data: str) -> int:
        image = {"type": "image_url", "image_url": {"url": data}}
        return items_of(request({"role": "user", "content": [image]})).size_bytes

    assert size("data:," + "A" * 10) == size("data:," + "A" * 100_000)


@pytest.mark.parametrize("text", ["claims and ledgers " * 20, "理赔审核与账本核对" * 20])
def test_sizes_are_bytes_so_that_scripts_count_alike(text: str) -> None:
    items = items_of(request({"role": "user", "content": text}))
    assert abs(items.size_bytes - len(text.encode())) < 60

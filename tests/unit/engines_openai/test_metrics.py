"""Token totals out of Prometheus pages as servers write them."""

from __future__ import annotations

import pytest

from bedplate.engines.openai.metrics import Totals, read_totals
from bedplate.engines.openai.servers import SERVERS, MetricNames
from tests.fakes.datasets import dataset

VLLM = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0 1700000000000
vllm:prompt_tokens_total{engine="0",model_name="other"} 9.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:generation_tokens_total{model_name="m"} 7.0
vllm:num_requests_running{model_name="m"} 2.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:request_latency_sum{model_name="m"} NaN
broken line
"""


def names(server: str) -> MetricNames:
    found = SERVERS[server].metrics
    assert found is not None
    return found


def test_samples_of_this_model_are_added_and_others_left_out() -> None:
    totals = read_totals(VLLM, names("vllm"), model="m", kv_tokens=1_000)
    assert totals == Totals(2_000, 64, 7, 2, 250)


def test_a_model_shown_under_another_name_is_the_only_one() -> None:
    page = 'vllm:prompt_tokens_total{model_name="/models/m"} 5\n'
    assert read_totals(page, names("vllm"), model="m", kv_tokens=1).prompt_tokens == 5


def test_newer_names_go_before_older_ones() -> None:
    page = "vllm:prefix_cache_hits_total 64\nvllm:prompt_tokens_cached_total 60\n"
    assert read_totals(page, names("vllm"), model="m", kv_tokens=1).cached_tokens == 60


def test_a_server_that_counts_computed_tokens_only_is_added_up() -> None:
    page = "llamacpp:prompt_tokens_total 18\n"
    old = read_totals(page, names("llamacpp"), model="m", kv_tokens=1)
    assert old.prompt_tokens is None, "what was cached is not known"
    page += "llamacpp:prompt_tokens_cached_total 7\n"
    new = read_totals(page, names("llamacpp"), model="m", kv_tokens=1)
    assert (new.prompt_tokens, new.cached_tokens) == (25, 7)


@pytest.mark.parametrize("page", ["", "<html>not metrics</html>", "x{} y", "vllm:x{", "a b c"])
def test_what_is_no_metrics_page_gives_nothing(page: str) -> None:
    assert read_totals(page, names("vllm"), model="m", kv_tokens=1) == Totals(*[None] * 5)


def test_numbers_that_count_nothing_are_none() -> None:
    page = "vllm:prompt_tokens_total NaN\nvllm:generation_tokens_total +Inf\n"
    totals = read_totals(page, names("vllm"), model="m", kv_tokens=1)
    assert (totals.prompt_tokens, totals.out_tokens) == (None, None)
    page = "vllm:prompt_tokens_total 9.2e18\nvllm:generation_tokens_total 1e15\n"
    totals = read_totals(page, names("vllm"), model="m", kv_tokens=1)
    assert (totals.prompt_tokens, totals.out_tokens) == (None, 10**15)


@pytest.mark.parametrize(
    ("server", "file", "model", "totals"),
    [
        (
            "vllm",
            "prom-vllm/dev/vllm_metrics_datadog.txt",
            "facebook/opt-125m",
            Totals(5, 64, 7, 0, 0),
        ),
        (
            "sglang",
            "prom-sglang/dev/sglang_docs_example.txt",
            "meta-llama/Llama-3.1-8B-Instruct",
            Totals(8_128_902, None, 7_557_572, 162, 123_859),
        ),
        (
            "mindie",
            "prom-mindie/dev/doc_example_llama3-8b.txt",
            "llama3-8b",
            Totals(9_564, None, 84_425, 0, 1_000),
        ),
    ],
)
def test_real_pages_are_read(server: str, file: str, model: str, totals: Totals) -> None:
    page = dataset(file).read_text(encoding="utf-8")
    assert read_totals(page, names(server), model=model, kv_tokens=1_000) == totals

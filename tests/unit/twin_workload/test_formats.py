"""Each reader on a source written by hand; expected values are worked out in the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bedplate.errors import BedplateError, ConfigError, InvalidRequest
from bedplate.twin.workload import source
from bedplate.twin.workload.form import Spawn, Turn
from bedplate.twin.workload.native import check
from bedplate.twin.workload.read import FORMATS, read_workload
from bedplate.twin.workload.tokens import estimate_tokens
from tests.unit.twin_workload import samples
from tests.unit.twin_workload.samples import write

SECOND = 10**9


def test_azure_rows_are_sessions_of_one_turn_in_order_of_time(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "a.csv", "\ufeff" + samples.AZURE))
    check(found)
    assert [session.start_ns for session in found.sessions] == [0, 3_519_410_000, 4_314_579_000]
    assert [session.turns for session in found.sessions] == [
        (Turn(0, "", -1, 374, 44),),
        (Turn(0, "", -1, 879, 55),),
        (Turn(0, "", -1, 396, 109),),
    ]
    assert "1 empty ones left out" in found.source


def test_burstgpt_without_sessions(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "b.csv", samples.BURST_1))
    assert [(s.start_ns, s.turns) for s in found.sessions] == [
        (0, (Turn(0, "", -1, 472, 18),)),
        (40 * SECOND, (Turn(0, "", -1, 1087, 230),)),
    ]


def test_burstgpt_sessions_count_gaps_from_the_end_of_an_answer(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "b.csv", samples.BURST_2))
    check(found)
    first, second, third = found.sessions
    assert (first.key, second.key, third.start_ns) == ("a", "b", 110_500_000_000)
    assert first.turns == (
        Turn(0, "", -1, 906, 446),
        # 200 − (110 + 43) s; 1,400 tokens hold the 1,352 before and 48 more
        Turn(47 * SECOND, "", -1, 48, 123),
        # 300 − (200 + 8) s; shorter than before: it begins anew
        Turn(92 * SECOND, "", 0, 200, 10),
    )


def test_mooncake_sessions_are_put_together_from_blocks(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "m.jsonl", samples.MOONCAKE))
    check(found)
    assert [len(session.turns) for session in found.sessions] == [2, 1, 1, 1, 1]
    first = found.sessions[0]
    # The answer of 100 tokens is taken to end at 2 s. Prompt and answer before are 1,600 tokens.
    assert first.turns == (Turn(0, "", -1, 1500, 100), Turn(28 * SECOND, "", -1, 50, 80))
    assert [session.start_ns for session in found.sessions] == [
        0,
        0,
        SECOND,
        60 * SECOND,
        90 * SECOND,
    ]


def test_mooncake_goes_on_from_the_newest_of_equal_prompts_that_is_answered(
    tmp_path: Path,
) -> None:
    text = "".join(
        samples.mooncake_row(at_ms, 1024, out, [0, 1])
        for at_ms, out in ((0, 50), (100, 50), (200, 5_000), (5_000, 7), (5_001, 8), (5_002, 9))
    )
    found = read_workload(write(tmp_path, "m.jsonl", text))
    outs = [[turn.out_tokens for turn in session.turns] for session in found.sessions]
    # At 5 s the third is still being answered; the second is newer than the first.
    assert outs == [[50, 8], [50, 7], [5_000], [9]]


def test_documents_nested_without_end_are_refused(tmp_path: Path) -> None:
    inner = '[{"t":1,"type":"subagent","requests":' * 20_000
    text = '{"id":"t","hash_id_scope":"local","block_size":64,"requests":' + inner
    with pytest.raises(InvalidRequest, match=r"t\.json: "):
        read_workload(write(tmp_path, "t.json", text))


def test_mooncake_edited_answer_keeps_the_prompt_only(tmp_path: Path) -> None:
    text = samples.mooncake_row(0, 1500, 400, [0, 1, 2]) + samples.mooncake_row(
        20_000, 1600, 5, [0, 1, 3, 4]
    )
    (session,) = read_workload(write(tmp_path, "m.jsonl", text)).sessions
    assert session.turns[1] == Turn(12 * SECOND, "", 1500, 100, 5)


def test_claude_code_sessions_with_a_sub_agent_that_is_waited_for(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "t.json", samples.claude_text()))
    check(found)
    main, agent = found.sessions
    assert main.turns == (
        Turn(0, "", -1, 640, 60),
        # Waits for the agent, which ended at 10.5 + 5 + 4 s: 50 − 19.5.
        Turn(30_500_000_000, "tool", -1, 200, 70),
        # Ended at 100 − 30; its reasoning is cut from the history: 900 kept, 60 new.
        Turn(30 * SECOND, "", 900, 60, 40),
        # The answer before, 40 tokens at 21 ms, has no api_time, so think_time counts from an older
        # one. Four blocks of 64 are left of the history.
        Turn(99_160_000_000, "", 256, 244, 10),
    )
    # It ended at 40 s after 29.5 s, so it began half a second behind the parent's answer.
    assert agent.spawn == Spawn(0, 0, joins=True)
    assert (agent.start_ns, agent.kind) == (500_000_000, "claude-code/Explore")
    assert agent.turns == (Turn(0, "", -1, 320, 20), Turn(3 * SECOND, "tool", -1, 60, 30))


def test_lmcache_rows_are_sorted_and_their_answers_found(tmp_path: Path) -> None:
    rows = [
        samples.lmcache_row(5_000_000, "user: Sum up.\n\nassistant: Done.\n\nuser: Why?", "So."),
        samples.lmcache_row(1_000_000, "user: Sum up.", "Done."),
    ]
    found = read_workload(write(tmp_path, "x__1.jsonl", "".join(rows)))
    check(found)
    (session,) = found.sessions
    assert session.kind == "x"
    (first, second) = session.turns
    assert first == Turn(0, "", -1, estimate_tokens("user: Sum up."), estimate_tokens("Done."))
    # Five characters of output at 1.41 ms each.
    assert second.gap_ns == 4 * SECOND - 5 * 1_410_000
    assert (second.keep_tokens, second.new_tokens) == (-1, estimate_tokens("\n\nuser: Why?"))


def test_lmcache_answers_that_no_prompt_holds_were_left_out(tmp_path: Path) -> None:
    (session,) = read_workload(write(tmp_path, "x.jsonl", samples.lmcache_text())).sessions
    assert session.turns[1].keep_tokens == -1
    assert session.turns[1].new_tokens == estimate_tokens("\n\na.py")


def test_lmcache_agents_of_one_run_become_sessions(tmp_path: Path) -> None:
    """An orchestrator asks a second agent once and goes on with what it said."""
    plan = "user: Plan the trip to Oslo and back, in May."
    rows = (
        samples.lmcache_row(1_000_000, plan, "Ask the surfer.")
        + samples.lmcache_row(4_000_000, "user: Find trains.", "Two trains.")
        + samples.lmcache_row(9_000_000, plan + "\n\nuser: Two trains.", "Take the first.")
    )
    found = read_workload(write(tmp_path, "x.jsonl", rows))
    check(found)
    main, other = found.sessions
    assert (len(main.turns), len(other.turns)) == (2, 1)
    assert other.spawn == Spawn(0, 0, joins=True)
    assert other.start_ns == 3 * SECOND - 15 * 1_410_000
    assert main.turns[1].gap_ns == 5 * SECOND - 11 * 1_410_000


def test_tau_bench_counts_what_came_since_the_last_answer(tmp_path: Path) -> None:
    found = read_workload(write(tmp_path, "t.json", samples.TAU))
    check(found)
    (session,) = found.sessions
    first, second = session.turns
    asked = [
        estimate_tokens(t) + 4 for t in ("You help customers of an airline.", "Cancel my flight.")
    ]
    assert first == Turn(0, "", -1, sum(asked), estimate_tokens('find_user {"a": 1}'))
    assert (second.tool, second.keep_tokens) == ("find_user", -1)
    assert second.new_tokens == estimate_tokens("not found") + 4
    assert 0 < second.gap_ns <= 60 * SECOND


def servegen(folder: Path) -> Path:
    write(folder, "c-trace.csv", samples.SERVEGEN_TRACE)
    write(folder, "c-dataset.json", samples.SERVEGEN_DATASET)
    return folder


def test_servegen_meets_rates_and_distributions(tmp_path: Path) -> None:
    found = read_workload(servegen(tmp_path))
    check(found)
    windows: list[list[Turn]] = [[], [], [], []]
    first = found.sessions[0].start_ns
    assert first == 0
    for session in found.sessions:
        windows[min(3, session.start_ns // (600 * SECOND))].append(session.turns[0])
    # Expected 1,200, 2,400, 0 and 600 requests; four standard deviations of a Poisson count.
    for window, expected in zip(windows, (1200, 2400, 0, 600), strict=True):
        assert abs(len(window) - expected) <= 4 * max(1, expected) ** 0.5 + 8
    assert {turn.new_tokens for turn in windows[0][:1000]} == {10, 20}
    assert {turn.new_tokens for turn in windows[1][10:]} == {100}
    eights = sum(turn.out_tokens == 8 for turn in windows[1][10:])
    assert 0.7 < eights / len(windows[1][10:]) < 0.8
    assert {session.tenant for session in found.sessions} == {"c"}


def test_either_file_of_a_servegen_client_names_it(tmp_path: Path) -> None:
    whole = read_workload(servegen(tmp_path), limit=50)
    assert len(whole.sessions) == 50
    assert read_workload(tmp_path / "c-trace.csv", limit=50) == whole
    assert read_workload(tmp_path / "c-dataset.json", limit=50) == whole
    (tmp_path / "c-trace.csv").unlink()
    with pytest.raises(InvalidRequest, match=r"c-trace\.csv: is missing"):
        read_workload(tmp_path / "c-dataset.json")


def test_sources_without_starts_get_a_rate(tmp_path: Path) -> None:
    for number in range(40):
        text = samples.claude_text().replace("trace_1", f"trace_{number}")
        write(tmp_path, f"{number:02}.json", text)
    found = read_workload(tmp_path)
    starts = [session.start_ns for session in found.sessions if session.spawn is None]
    assert len(starts) == 40
    assert 200 < starts[-1] / SECOND < 800  # 0.1 a second: 400 s, 63 s standard deviation
    faster = read_workload(tmp_path, starts_per_s=1.0, rate_scale=2.0)
    last = [session.start_ns for session in faster.sessions if session.spawn is None][-1]
    assert last == pytest.approx(starts[-1] / 20, rel=1e-6)
    assert read_workload(tmp_path, seed=2) != found


def test_a_limit_takes_the_earliest_sessions(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", samples.AZURE)
    assert [s.turns[0].new_tokens for s in read_workload(path, limit=2).sessions] == [374, 879]
    with pytest.raises(InvalidRequest, match="at least one"):
        read_workload(path, limit=0)


def test_an_unknown_source_names_the_formats(tmp_path: Path) -> None:
    path = write(tmp_path, "x.txt", "hello\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidRequest, match="no known workload format") as caught:
        read_workload(path)
    assert all(f"  {known.name}: " in caught.value.message for known in FORMATS)
    with pytest.raises(
        InvalidRequest, match=r"no workload format 'csv'; there are bedplate, .*azure"
    ):
        read_workload(path, format="csv")
    with pytest.raises(InvalidRequest, match="folder without files"):
        read_workload(empty)


def test_a_folder_of_two_formats_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", samples.AZURE)
    write(tmp_path, "b.csv", samples.BURST_1)
    with pytest.raises(InvalidRequest, match=r"b\.csv: is not of the format azure as a\.csv is"):
        read_workload(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2023-11-16 18:15:46.68,374\n", "line 2: 2 cells instead of 3"),
        ("2023-11-16 18:15:46.68,-3,4\n", "line 2: ContextTokens is -3"),
        ("2023-11-16 18:15:46.68,nan,4\n", "line 2: ContextTokens is 'nan'"),
        ("2023-11-16 18:15:46.68,4,1e3\n", "line 2: GeneratedTokens is '1e3'"),
        ("2023-11-16 18:15:46.68,1_0,4\n", "line 2: ContextTokens is '1_0'"),
        ("2023-11-16 18:15:46.68,\u0661,4\n", "line 2: ContextTokens is '\u0661'"),
        ("2023-11-16 18:15,4,4\n", "line 2: TIMESTAMP is '2023-11-16 18:15'"),
        ("2023-11-16 18:15:46.68,4,99999999999\n", "line 2: GeneratedTokens is 99999999999"),
        ("", "holds no session"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + text)
    with pytest.raises(InvalidRequest) as caught:
        read_workload(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"timestamp": 0, "input_length": 5, "outp', "line 2: "),
        ('{"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": [0]}', ">= 0"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": [0]}', "line 2"),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0, 1]}',
            "2 hash_ids",
        ),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}', "hash_ids"),
    ],
)
def test_bad_json_lines_are_named_by_file_and_line(tmp_path: Path, row: str, said: str) -> None:
    text = samples.mooncake_row(0, 5, 1, [0]) + row + "\n"
    with pytest.raises(InvalidRequest, match="line 2") as caught:
        read_workload(write(tmp_path, "m.jsonl", text))
    assert said in caught.value.message


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write(tmp_path, "a.csv", samples.AZURE)
    rows = write(tmp_path, "m.jsonl", samples.MOONCAKE)
    document = write(tmp_path, "t.json", samples.claude_text())
    for path in (table, rows, document):
        assert read_workload(path).sessions
    monkeypatch.setattr(source, "ROWS_MAX", 3)
    monkeypatch.setattr(source, "DOCUMENT_BYTES_MAX", 1000)
    with pytest.raises(InvalidRequest, match=r"a\.csv, line 4: more than 3 rows"):
        read_workload(table)
    with pytest.raises(InvalidRequest, match=r"m\.jsonl, line 4: more than 3 lines"):
        read_workload(rows)
    with pytest.raises(InvalidRequest, match=r"t\.json: [\d,]+ bytes are more than"):
        read_workload(document)
    monkeypatch.setattr(source, "LINE_BYTES_MAX", 40)
    with pytest.raises(InvalidRequest, match=r"m\.jsonl, line 1: the line is longer"):
        read_workload(rows)


def test_documents_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    trace = samples.claude_trace()
    trace["requests"][3]["t"] = 10.0
    path = write(tmp_path, "t.json", json.dumps(trace, separators=(",", ":")))
    with pytest.raises(InvalidRequest, match=r"t\.json: request 2 of trace_1 begins before"):
        read_workload(path)
    trace["requests"][3]["t"] = -1
    write(tmp_path, "t.json", json.dumps(trace, separators=(",", ":")))
    with pytest.raises(InvalidRequest, match=r"t\.json: .*requests\[3\]\.t"):
        read_workload(path)


def test_a_mix_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    for text, said in (
        (samples.MIX.replace("120", "0"), "sessions_per_hour"),
        (samples.MIX.replace("hour =", "hours ="), "sessions_per_hours"),
        (samples.MIX.replace("loan_parser", "loan_pareser"), "no persona 'loan_pareser'"),
        (samples.MIX + "[persona.x]\n", "unknown table"),
        (samples.MIX + "[personas.customer_service]\nlane = 'fast'\n", "fast"),
        (samples.MIX + "[personas.loan_writer]\nnext = 'loan_parser'\n", "never ends"),
        ("[mix]\n=\n", "line 2"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_workload(write(tmp_path, "mix.toml", text))
        assert said in caught.value.message
        assert isinstance(caught.value, BedplateError)


def test_times_that_lie_a_lifetime_apart_are_refused(tmp_path: Path) -> None:
    rows = "0001-01-01 00:00:00,10,10\n9999-12-31 23:59:59,10,10\n"
    path = write(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    with pytest.raises(InvalidRequest, match=r"azure-2 begins 3\.\d+e\+11 s after the first"):
        read_workload(path)

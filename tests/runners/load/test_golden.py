"""The meter against a server whose true times are known."""

from __future__ import annotations

from typing import Any

import pytest

from results.records.schemas import RequestStatus
from runners.load.prompts import token_ids
from tests.runners.load.cells import RATE_PER_S, Measure, assert_golden, seconds
from tests.servers.truth_server import TruthServer


def test_ttft_tpot_e2e_and_throughput_are_the_servers(measure: Measure) -> None:
    cell = measure({"ttft_ms": 30, "itl_ms": 5}, min_duration_s=1.5)
    assert_golden(cell)
    outcome = cell.outcome
    begin, end = outcome.t_window_start_ns, outcome.t_window_end_ns
    true = sum(begin <= truth.t_writes_ns[-1] < end for truth in cell.truth.values()) / outcome.window_s
    assert outcome.completed_in_window / outcome.window_s == pytest.approx(true, abs=2.5 / outcome.window_s)
    assert true == pytest.approx(RATE_PER_S, rel=0.25)
    assert outcome.wrong_length == 0


def test_every_request_is_the_one_that_the_schedule_and_the_seed_fix(measure: Measure) -> None:
    cell = measure(cell_index=3)
    assert [row.index for row in cell.rows] == list(range(len(cell.rows)))
    for row in cell.rows:
        expected = token_ids(seed=11, cell_index=3, index=row.index, count=24, low=0, high=256).tolist()
        assert cell.truth[row.index].prompt == expected
        assert cell.truth[row.index].max_tokens == 12
        assert row.t_intended_ns - cell.outcome.t_start_ns == round(row.index * 1e9 / 40)
        assert row.warmup == (row.index < 8)
        assert row.prompt_tokens == 24
        assert row.http_status == 200
        assert row.finish_reason == "length"


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param({"role_ms": 5, "chat": 1, "ids": 0}, id="role-only first chunk"),
        pytest.param({"empty_text": 1}, id="every token's text empty"),
        pytest.param({"empty_text": 3}, id="every third token's text empty"),
        pytest.param({"per_chunk": 5}, id="five tokens in a chunk"),
        pytest.param({"per_chunk": 4, "ids": 0, "usage": 1}, id="four tokens in a chunk without ids"),
        pytest.param({"usage": 0}, id="no usage"),
        pytest.param({"split_ms": 2}, id="every chunk split over two segments"),
        pytest.param({"merge": 4}, id="four events in a segment"),
        pytest.param({"merge": 3, "split_ms": 1, "per_chunk": 2}, id="merged and split"),
        pytest.param({"crlf": 1, "comments": 1}, id="CRLF, comments and other fields"),
        pytest.param({"close": 1}, id="a connection per response"),
        pytest.param({"until_eof": 1}, id="a body that ends with its connection"),
    ],
)
def test_the_numbers_hold_however_the_stream_is_dressed(scenario: dict[str, float], measure: Measure) -> None:
    cell = measure({"ttft_ms": 20, "itl_ms": 3, **scenario})
    assert cell.outcome.failed == 0
    assert cell.outcome.completed == cell.outcome.sent == len(cell.truth)
    assert_golden(cell)
    for row, truth in cell.pairs():
        assert row.chunks == len(truth.t_writes_ns)


def test_an_engine_that_gives_another_length_is_counted(measure: Measure) -> None:
    cell = measure({"tokens": 5})
    assert cell.outcome.wrong_length == cell.outcome.completed > 0
    assert {row.completion_tokens for row in cell.ok} == {5}


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ({"status": 500}, "HTTP 500: asked for 500"),
        ({"drop": 1}, "connection closed before any byte of the response"),
        ({"drop_headers": 1}, "connection closed mid-response"),
        ({"drop_after": 4}, "connection closed mid-response (after 4 token chunks)"),
        ({"error_after": 4}, "the engine reported an error in the stream: the engine is dead (after 4 token chunks)"),
        ({"abort_after": 4}, "the engine ended it with finish_reason 'abort' (after 4 token chunks)"),
        ({"garbage_after": 4}, "malformed chunk"),
        ({"bad_framing_after": 4}, "malformed HTTP response"),
        ({"no_done": 1, "usage": 0}, "the stream ended without [DONE] (after 12 token chunks)"),
        ({"not_http": 1}, "malformed HTTP response"),
    ],
)
def test_a_request_that_fails_becomes_a_record_that_says_why(
    scenario: dict[str, float], words: str, measure: Measure
) -> None:
    cell = measure({"itl_ms": 1, **scenario}, min_completed=0, min_duration_s=0.3)
    assert cell.outcome.failed == cell.outcome.sent == len(cell.rows) > 0
    assert cell.outcome.completed == 0
    for row in cell.rows:
        assert row.status is RequestStatus.ERROR
        assert words in (row.error or "")
        assert seconds(row.t_end_ns, row.t_send_ns) >= 0


def test_what_came_before_a_drop_is_kept(measure: Measure) -> None:
    cell = measure({"itl_ms": 1, "drop_after": 4}, min_completed=0, min_duration_s=0.3)
    for row in cell.rows:
        assert row.chunks == row.completion_tokens == 4
        assert seconds(row.t_last_token_ns, row.t_first_token_ns) >= 0


@pytest.mark.parametrize(
    ("served", "limits", "error"),
    [
        (
            {"itl_ms": 1, "stall_after": 3},
            {"stall_timeout_s": 0.4},
            "timed out: the stream stalled, nothing came for 0.4 s (after 3 token chunks)",
        ),
        (
            {"ttft_ms": 1e6},
            {"request_timeout_s": 0.4, "stall_timeout_s": 9},
            "timed out: not finished 0.4 s after the send",
        ),
    ],
)
def test_a_request_that_takes_too_long_ends_as_an_error(
    served: dict[str, float], limits: dict[str, Any], error: str, measure: Measure
) -> None:
    cell = measure(served, min_completed=0, min_duration_s=0.3, **limits)
    assert cell.outcome.failed == cell.outcome.sent > 0
    assert all(one.startswith(error) for one in cell.errors())


def test_a_stale_connection_is_tried_once_more_and_keeps_its_first_send(measure: Measure) -> None:
    cell = measure({"itl_ms": 1, "stale": 1})
    assert cell.outcome.failed == 0
    assert cell.outcome.retried > 0
    for row, truth in cell.pairs():  # of two arrivals, the truth kept is the second one's
        assert seconds(truth.t_recv_ns, row.t_send_ns) >= 0


def test_connections_are_reused(measure: Measure, server: TruthServer) -> None:
    before = server.connections()
    cell = measure({"itl_ms": 1, "ttft_ms": 5}, rate_per_s=20.0)
    assert cell.outcome.completed >= 10
    assert server.connections() - before <= 10  # the spares, those in use, and the two that ask the server


def test_a_running_count_serves_where_ids_do_not(measure: Measure) -> None:
    cell = measure({"ids": 0, "itl_ms": 2, "running": 1, "per_chunk": 3}, token_evidence="usage")
    assert cell.outcome.failed == 0
    assert_golden(cell)
    assert {row.chunks for row in cell.ok} == {4}

"""A cell's numbers are those that were put into its artifacts, over its measured window only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from results.connector_tax.measurements import Load as JudgedLoad
from results.connector_tax.measurements import Measurements
from results.connector_tax.read import analyze_cell, headline, measure_cell, read_cell_record, read_step_samples
from results.connector_tax.summary import CellSummary
from results.measures.step_durations import STEP_SERIES, estimate_step_values
from results.measures.summary import Lost
from results.records.errors import ArtifactError
from results.records.layout import ConfigLayout, sha256
from results.records.schemas import RequestRecord, RequestStatus
from tests.results.connector_tax.synthetic import SIGMA, Z90, Behavior, Cell, Load, request_records, write_cell
from tests.results.statistics.in_memory import bounds, covers

CONNECTOR = Behavior(callbacks_us=(1.5, 150.0, 3.0))
PLAIN = Cell("plain", Behavior(), Load())
REQUESTS = tuple(request_records(PLAIN, PLAIN.rng()))
"""Of PLAIN."""


@pytest.fixture
def folder(tmp_path: Path) -> ConfigLayout:
    return ConfigLayout(tmp_path / "results" / "20260131_x")


def _analyze(folder: ConfigLayout, cell: Cell) -> CellSummary:
    return analyze_cell(write_cell(folder, cell))


def _write_with(folder: ConfigLayout, records: list[RequestRecord], cell: Cell = PLAIN) -> Path:
    """Write the cell with other requests, and a checksum that fits; returns the record's path."""
    path = write_cell(folder, cell)
    (requests,) = path.parent.glob("requests_*.jsonl")
    requests.write_bytes(msgspec.json.Encoder().encode_lines(records))
    _edit(path, lambda row: row["checksums"].update({requests.name: sha256(requests)}))
    return path


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    row = json.loads(path.read_text())
    change(row)
    path.write_text(json.dumps(row))


def test_the_true_latencies_lie_in_their_intervals(folder: ConfigLayout) -> None:
    truth = Behavior(ttft_p50_s=0.2, tpot_p50_s=0.01)
    summary = _analyze(folder, Cell("plain", truth, Load(requests=1000, rate_per_s=20)))
    assert covers(summary.estimate("ttft_p50_s"), 0.2)
    assert covers(summary.estimate("ttft_p90_s"), truth.ttft_p90_s)
    assert covers(summary.estimate("tpot_p50_s"), 0.01)
    assert covers(summary.estimate("e2e_p50_s"), 0.2 + 255 * 0.01)
    assert summary.estimate("ttft_p90_s").n == 1000
    assert summary.gaps == ()


def test_each_latency_is_computed_from_its_own_stamps(folder: ConfigLayout) -> None:
    begin, _ = PLAIN.window_ns
    one = replace(
        REQUESTS[50],
        warmup=False, t_intended_ns=begin, t_send_ns=begin + 3_000_000, t_first_token_ns=begin + 103_000_000,
        t_last_token_ns=begin + 603_000_000, t_end_ns=begin + 604_000_000, completion_tokens=11,
    )  # fmt: skip
    summary = analyze_cell(_write_with(folder, [one]))
    assert summary.value("ttft_p50_s") == pytest.approx(0.100)  # from the send, not from the intended time
    assert summary.value("tpot_p50_s") == pytest.approx(0.050)  # ten gaps
    assert summary.value("e2e_p50_s") == pytest.approx(0.600)


def test_warm_up_is_cut(folder: ConfigLayout) -> None:
    """A cold start of ten seconds in the warm-up leaves no trace in the latencies."""
    before = _analyze(folder, PLAIN)
    slow = [replace(row, t_first_token_ns=(row.t_first_token_ns or 0) + row.warmup * 10**10) for row in REQUESTS]
    after = analyze_cell(_write_with(folder, slow))
    assert after.estimate("ttft_p99_s") == before.estimate("ttft_p99_s")
    assert after.counts["warmup"] == 20


def test_requests_that_did_not_end_well_are_counted_apart(folder: ConfigLayout) -> None:
    statuses = {
        30: RequestStatus.ERROR, 31: RequestStatus.ERROR, 40: RequestStatus.DROPPED, 50: RequestStatus.CUT,
        2: RequestStatus.ERROR,
    }  # fmt: skip
    summary = _analyze(folder, Cell("plain", Behavior(), Load(), statuses=statuses))
    assert summary.counts["completed"] == 196
    assert (summary.counts["failed"], summary.counts["dropped"], summary.counts["cut"]) == (2, 1, 1)
    assert summary.estimate("e2e_p50_s").n == 197  # of the one that was cut it is known that it took longer
    assert summary.estimate("ttft_p50_s").n == 197  # the one that was cut had its first token


def test_throughput_counts_what_ended_inside_the_window(folder: ConfigLayout) -> None:
    begin, end = PLAIN.window_ns
    ends = {0: begin - 1, 1: begin, 100: end - 1, 101: end, 102: end + 10**9}
    ended = [replace(REQUESTS[index], t_end_ns=t_ns) for index, t_ns in ends.items()]
    summary = analyze_cell(_write_with(folder, ended))
    assert summary.value("effective_throughput_per_s") == pytest.approx(2 / 50)  # 1 (sent in the warm-up) and 100
    assert summary.value("throughput_ratio") == pytest.approx(2 / 50 / 4)
    assert summary.value("requested_throughput_per_s") == 4
    assert summary.value("offered_throughput_per_s") == pytest.approx(3 / 50)


def _cut_after(record: RequestRecord, waited_s: float) -> RequestRecord:
    """The request without a token, cut when it had been waited for so long."""
    assert record.t_send_ns is not None
    return replace(
        record, status=RequestStatus.CUT, t_first_token_ns=None, t_last_token_ns=None,
        t_end_ns=record.t_send_ns + round(waited_s * 1e9), completion_tokens=None, chunks=0,
    )  # fmt: skip


def test_requests_that_the_drain_cut_are_slow_and_not_absent(folder: ConfigLayout) -> None:
    """An engine that leaves a fifth of its requests without a token has no fast p90."""
    path = _write_with(folder, [_cut_after(row, 30.0) if row.index % 5 == 0 else row for row in REQUESTS])
    summary = analyze_cell(path)
    p90 = summary.estimate("ttft_p90_s")
    assert (p90.value, p90.n) == (None, 200)
    assert p90.low == pytest.approx(30)
    assert p90.reason == "40 of 200 requests were cut by the end of the drain or timed out: p90 is at least 30 s"
    p50 = summary.estimate("ttft_p50_s")
    answered = [row for row in REQUESTS if not row.warmup and row.index % 5]
    known = sorted((row.t_first_token_ns or 0) - (row.t_send_ns or 0) for row in answered)
    assert p50.value == pytest.approx((known[99] + known[100]) / 2e9, rel=1e-3)  # of 200, the slow ones after them
    assert summary.estimate("e2e_p90_s").value is None
    assert np.isinf(measure_cell(path)[1]["ttft_s"]).sum() == 40
    cohort = summary.estimate("cohort_ratio")
    assert cohort.value is None
    assert cohort.high is not None
    assert cohort.high < 1


def test_requests_that_timed_out_are_slow_and_not_absent(folder: ConfigLayout) -> None:
    """A fifth waits for 30 s in vain, another request stalls after its first token: both count as slow."""
    rows = [_cut_after(row, 30.0) if row.index % 5 == 0 else row for row in REQUESTS]
    rows[31] = replace(rows[31], status=RequestStatus.CUT, t_last_token_ns=None)
    cut = analyze_cell(_write_with(folder, rows))
    late = "timed out: not finished 30 s after the send"
    timed_out = [replace(row, status=RequestStatus.ERROR, error=late) if row.status == "cut" else row for row in rows]
    timed_out[32] = replace(rows[32], status=RequestStatus.ERROR, error="HTTP 500: no")
    path = _write_with(folder, timed_out)
    summary = analyze_cell(path)
    assert (summary.counts["failed"], summary.counts["cut"]) == (42, 0), "they are still counted as failed"
    for name in ("ttft_p90_s", "e2e_p90_s"):
        assert summary.estimate(name).value is None
        assert summary.estimate(name).low == pytest.approx(cut.estimate(name).low, rel=0.05)
    assert summary.estimate("ttft_p50_s").n == 199, "all but the one that the engine refused"
    assert np.isinf(measure_cell(path)[1]["ttft_s"]).sum() == 40


def _cut_decoding(record: RequestRecord, waited_s: float) -> RequestRecord:
    """The request cut this long after its first token."""
    assert record.t_first_token_ns is not None
    return replace(
        record, status=RequestStatus.CUT, t_end_ns=record.t_first_token_ns + round(waited_s * 1e9),
        completion_tokens=None,
    )  # fmt: skip


def test_requests_cut_between_tokens_are_slow_and_not_absent(folder: ConfigLayout) -> None:
    """An eighth is cut 300 s after the first of 256 tokens: 1.2 s a token at least, where the others take 10 ms."""
    path = _write_with(folder, [_cut_decoding(row, 300.0) if row.index % 8 == 0 else row for row in REQUESTS])
    summary = analyze_cell(path)
    p90 = summary.estimate("tpot_p90_s")
    assert (p90.value, p90.n) == (None, 200)
    assert p90.low == pytest.approx(300 / 255, rel=0.01)
    assert p90.reason == "25 of 200 requests were cut by the end of the drain or timed out: p90 is at least 1.18 s"
    whole = sorted(
        ((row.t_last_token_ns or 0) - (row.t_first_token_ns or 0)) / 255e9
        for row in REQUESTS if not row.warmup and row.index % 8
    )  # fmt: skip
    assert summary.value("tpot_p50_s") == pytest.approx((whole[99] + whole[100]) / 2, rel=1e-3)
    assert np.isinf(measure_cell(path)[1]["tpot_s"]).sum() == 25
    assert summary.value("ttft_p90_s") is not None, "all of them had their first token"


@pytest.mark.parametrize(("every", "lost"), [(20, 10), (10, 20)])
def test_of_requests_cut_before_a_token_no_tpot_is_known(folder: ConfigLayout, every: int, lost: int) -> None:
    """One in twenty moves p90 less than its own spread; of one in ten the others are perhaps the faster ones."""
    path = _write_with(folder, [_cut_after(row, 300.0) if row.index % every == 0 else row for row in REQUESTS])
    summary = analyze_cell(path)
    p90 = summary.estimate("tpot_p90_s")
    assert summary.counts["cut"] == lost, "their number stands beside it"
    if lost == 10:
        assert (p90.n, p90.reason) == (190, None)
        assert p90.value == pytest.approx(Behavior().tpot_p50_s * math.exp(SIGMA * Z90), rel=0.1)
        return
    assert (p90.value, p90.n) == (None, 200)
    assert p90.reason == "20 of 200 requests were cut or timed out before their first token and have no TPOT"
    assert p90.low is not None
    assert p90.low < Behavior().tpot_p50_s * math.exp(SIGMA * Z90), "the least it can be"
    measurements = Measurements([summary], lambda _: measure_cell(path)[1])
    taken = measurements.get(JudgedLoad("A", 4.0, summary.shape), "plain", "tpot_s")
    assert (dict(taken.trials), taken.reason) == ({}, f"plain: {p90.reason}"), "no tax uses it"


@pytest.mark.parametrize(("every", "lost"), [(20, 10), (10, 20)])
def test_where_many_requests_failed_no_latency_is_known(folder: ConfigLayout, every: int, lost: int) -> None:
    """Of an engine that refuses one request in ten the others met a lighter load."""
    refused = dict.fromkeys(range(0, 220, every), RequestStatus.ERROR)
    path = write_cell(folder, Cell("plain", Behavior(), Load(), statuses=refused))
    summary = analyze_cell(path)
    assert summary.counts["failed"] == lost
    for name, title in (("ttft_p90_s", "TTFT"), ("tpot_p90_s", "TPOT"), ("e2e_p90_s", "E2E")):
        p90 = summary.estimate(name)
        if lost == 10:
            assert (p90.value is None, p90.n, p90.reason) == (False, 190, None)
        else:
            assert (p90.value, p90.n, p90.reason) == (None, 200, f"20 of 200 requests failed and have no {title}")
            assert p90.low is not None, "the least it can be"
    measurements = Measurements([summary], lambda _: measure_cell(path)[1])
    taken = measurements.get(JudgedLoad("A", 4.0, summary.shape), "plain", "ttft_s")
    assert bool(taken.trials) == (lost == 10), "no tax uses it"
    assert Lost(1, 1).describe() == "failed or were cut or timed out before their first token"


def test_a_request_cut_early_leaves_the_percentile_between_bounds(folder: ConfigLayout) -> None:
    path = _write_with(folder, [_cut_after(row, 0.001) if row.index == 100 else row for row in REQUESTS])
    p50 = analyze_cell(path).estimate("ttft_p50_s")
    low, high = bounds(p50)
    assert p50.value is None
    assert low < high


def test_the_cohort_is_followed_until_its_last_request_completes(folder: ConfigLayout) -> None:
    """E2E of 15 s in a window of 50 s: fewer completions inside it than were sent, and an engine that keeps up."""
    summary = _analyze(folder, Cell("plain", Behavior(tpot_p50_s=15 / 255, sigma=0.001), Load()))
    specified, cohort = summary.value("throughput_ratio"), summary.value("cohort_ratio")
    assert specified is not None
    assert specified < 0.95
    assert cohort == pytest.approx(1, abs=0.01)
    assert headline(summary)["saturated"] is False


def test_one_slow_request_at_the_end_is_no_saturation(folder: ConfigLayout) -> None:
    cell = Cell("plain", Behavior(sigma=0.01), Load(requests=60, rate_per_s=10))
    *rows, last = request_records(cell, cell.rng())
    late = replace(last, t_end_ns=(last.t_end_ns or 0) + 10**9)
    summary = analyze_cell(_write_with(folder, [*rows, late], cell))
    cohort = summary.estimate("cohort_ratio")
    assert cohort.value is not None
    assert cohort.high is not None
    assert cohort.value < 0.95 < cohort.high
    assert headline(summary)["saturated"] is False


def test_dropped_requests_were_due_all_the_same(folder: ConfigLayout) -> None:
    dropped = dict.fromkeys(range(100, 200), RequestStatus.DROPPED)
    cell = Cell("plain", Behavior(sigma=0.001), Load(), statuses=dropped)
    assert _analyze(folder, cell).value("cohort_ratio") == pytest.approx(0.5, abs=0.02)


def test_gauges_are_of_the_window_and_counters_are_differences(folder: ConfigLayout) -> None:
    summary = _analyze(folder, Cell("plain", Behavior(knee_per_s=4), Load()))
    assert summary.value("waiting_p50") == 9.0
    assert summary.value("running_p50") == 3.0
    assert summary.value("prefix_cache_hit_tokens") == 0.0  # 128 hits lie before the window
    assert summary.value("generation_tokens_per_s") == pytest.approx(1000)
    assert summary.value("prompt_tokens_per_s") == pytest.approx(5000)


def test_a_counter_that_went_back_is_not_a_number(folder: ConfigLayout) -> None:
    path = write_cell(folder, Cell("plain", Behavior(), Load()))
    metrics = path.with_name("metrics_A_r4.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows[30:]:
        row["values"]["vllm:generation_tokens_total"] -= 25_000
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _edit(path, lambda row: row["checksums"].update({metrics.name: sha256(metrics)}))
    estimate = analyze_cell(path).estimate("generation_tokens_per_s")
    assert estimate.value is None
    assert "went back" in str(estimate.reason)


def test_steps_with_work_count_and_empty_ones_are_counted(folder: ConfigLayout) -> None:
    summary = _analyze(folder, Cell("mooncake_both", CONNECTOR, Load()))
    assert (summary.counts["steps"], summary.counts["empty_steps"]) == (450, 50)
    assert summary.value("step_duration_p50_us") == pytest.approx(40, rel=0.02)
    assert summary.value("engine_step_p50_us") == pytest.approx(1500, rel=0.02)
    assert summary.value("get_finished_p50_us") == pytest.approx(150, rel=0.02)
    assert summary.value("connector_total_p50_us") == pytest.approx(154.5, rel=0.02)
    p90 = summary.value("engine_step_p90_us")
    assert p90 is not None
    assert p90 < 2000  # the empty ones take 15000
    assert summary.estimate("engine_step_p50_us").n == 450


def test_steps_that_hold_prefill_tokens_are_averaged_apart(folder: ConfigLayout) -> None:
    record = read_cell_record(write_cell(folder, Cell("mooncake_both", CONNECTOR, Load())))
    steps = pd.DataFrame(
        {name: [1.0] * 4 for name in STEP_SERIES}
        | {"engine_step_us": [1000.0, 5000.0, 7000.0, 90.0], "all_callbacks_us": [10.0, 500.0, 700.0, 1.0]}
        | {"prefill_tokens": [0, 512, 512, 0], "decode_tokens": [3, 3, 0, 0]}
    )
    values = estimate_step_values(steps, record)
    assert (values["engine_step_prefill_mean_us"].value, values["engine_step_prefill_mean_us"].n) == (6000, 2)
    assert values["all_callbacks_prefill_mean_us"].value == 600
    none = estimate_step_values(steps.assign(prefill_tokens=0), record)["engine_step_prefill_mean_us"]
    assert (none.value, none.reason) == (None, "no step with prefill tokens has it")


def test_without_a_connector_the_callbacks_are_null_with_the_reason(folder: ConfigLayout) -> None:
    summary = _analyze(folder, Cell("plain", Behavior(), Load()))
    for name in ("build_meta_p50_us", "connector_total_p50_us", "all_callbacks_p50_us"):
        assert summary.value(name) is None
        assert "no KV connector" in str(summary.estimate(name).reason)
    assert summary.value("engine_step_p50_us") is not None


def test_without_step_timing_everything_else_stands(folder: ConfigLayout) -> None:
    """The fallback of the specification: client-side numbers only, and no gap for what was not promised."""
    summary = _analyze(folder, Cell("plain", Behavior(), Load(), steps=0))
    assert summary.value("engine_step_p50_us") is None
    assert summary.estimate("engine_step_p50_us").reason == "no step timing: no probe"
    assert summary.counts["steps"] is None
    assert summary.value("ttft_p90_s") is not None
    assert summary.gaps == ()


def test_without_token_counts_idle_steps_cannot_be_told_apart(folder: ConfigLayout) -> None:
    timing = {"unavailable_fields": {"decode_tokens": "SchedulerOutput has changed"}}
    summary = _analyze(folder, Cell("plain", Behavior(), Load(), step_timing=timing))
    assert summary.value("engine_step_p50_us") is None
    assert "SchedulerOutput has changed" in str(summary.estimate("engine_step_p50_us").reason)
    assert summary.counts["steps"] is None


@pytest.mark.parametrize(
    ("artifact", "lost", "kept"),
    [
        ("requests_A_r4.jsonl", "ttft_p90_s", "waiting_p50"),
        ("metrics_A_r4.jsonl", "waiting_p50", "ttft_p90_s"),
        ("engine_step_A_r4.jsonl", "engine_step_p50_us", "ttft_p90_s"),
    ],
)
@pytest.mark.parametrize("damage", ["removed", "truncated", "altered"])
def test_a_lost_artifact_costs_its_own_numbers_and_is_named(
    folder: ConfigLayout, artifact: str, lost: str, kept: str, damage: str
) -> None:
    path = write_cell(folder, Cell("mooncake_both", CONNECTOR, Load()))
    target = path.with_name(artifact)
    target.with_suffix(".parquet").unlink(missing_ok=True)
    data = target.read_bytes()
    target.unlink()
    if damage == "truncated":
        target.write_bytes(data[: len(data) // 2])
    if damage == "altered":
        target.write_bytes(data.replace(b"1", b"2", 1))
    summary = analyze_cell(path)
    assert summary.value(lost) is None
    assert summary.estimate(lost).reason
    assert summary.value(kept) is not None
    (gap,) = summary.gaps
    assert gap.artifact == f"results/20260131_x/{artifact}"
    assert gap.reason
    headline(summary)


def test_a_record_that_cannot_be_read_is_an_error_with_a_remedy(folder: ConfigLayout) -> None:
    path = write_cell(folder, Cell("plain", Behavior(), Load()))
    _edit(path, lambda row: row["load"].pop("rate_per_s"))
    with pytest.raises(ArtifactError, match="does not state rate_per_s"):
        analyze_cell(path)
    path.write_text('{"cell": ')
    with pytest.raises(ArtifactError, match=r"results/20260131_x/cell_A_r4\.json is damaged") as caught:
        analyze_cell(path)
    assert caught.value.remedy


def test_the_summary_survives_json(folder: ConfigLayout) -> None:
    summary = _analyze(folder, Cell("mooncake_both", CONNECTOR, Load(), degraded="client used 0.97 of a core"))
    assert msgspec.json.decode(msgspec.json.encode(summary), type=CellSummary) == summary
    assert summary.degraded == "client used 0.97 of a core"


def test_completions_of_other_lengths_degrade_a_cell_beside_a_client_that_fell_behind(folder: ConfigLayout) -> None:
    path = write_cell(folder, Cell("plain", Behavior(), Load(), degraded="slow client"))
    _edit(path, lambda row: row.update({"client": {"wrong_length": 2}}))
    assert analyze_cell(path).degraded == "slow client; 2 completions had other lengths than asked for"


def test_the_headline_is_small_flat_and_plain(folder: ConfigLayout) -> None:
    found = headline(_analyze(folder, Cell("mooncake_both", CONNECTOR, Load())))
    assert found["saturated"] is False
    assert found["ttft_p90_low_s"] < found["ttft_p90_s"] < found["ttft_p90_high_s"]
    assert found["step_p50_us"] == pytest.approx(1500, rel=0.02)
    assert all(value is None or isinstance(value, int | float) for value in found.values())
    assert json.loads(json.dumps(found)) == found
    assert headline(_analyze(folder, Cell("plain", Behavior(knee_per_s=4), Load())))["saturated"] is True
    assert headline(_analyze(folder, Cell("plain", Behavior(), Load(), degraded="slow")))["saturated"] is None


def test_samples_come_in_order_and_empty_where_there_are_none(folder: ConfigLayout) -> None:
    path = write_cell(folder, Cell("plain", Behavior(), Load()))
    assert len(measure_cell(path)[1]["ttft_s"]) == 200
    steps = read_step_samples(path)
    assert len(steps["engine_step_us"]) == 450
    assert len(steps["connector_total_us"]) == 0
    for artifact in ("requests_A_r4.jsonl", "engine_step_A_r4.jsonl"):
        path.with_name(artifact).unlink()
        path.with_name(artifact).with_suffix(".parquet").unlink(missing_ok=True)
    assert len(measure_cell(path)[1]["ttft_s"]) == 0
    assert len(read_step_samples(path)["engine_step_us"]) == 0

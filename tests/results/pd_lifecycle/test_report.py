"""The files of a run: summary, every figure with its numbers or a reason, and what is missing is named."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from results.pd_lifecycle.analyze import LifecycleAnalysis, analyze
from results.pd_lifecycle.bandwidth_curve import make_unknown_knee
from results.pd_lifecycle.consistency import measure_drifts
from results.pd_lifecycle.draw import DRAWERS
from results.pd_lifecycle.figures import BANDWIDTH, BREAKDOWN, COST, build_figures
from results.pd_lifecycle.report import build_report, list_limits
from results.pd_lifecycle.summary import COLUMNS, DURATIONS, build_summary_rows, collect_config_values
from results.pd_lifecycle.tables import build_tables
from results.pd_lifecycle.write import write_results
from results.records.layout import LifecycleLayout, RunLayout, write_indented_json
from results.records.lifecycle import Colo, LifecycleRecord, RequestConfig
from results.report.document import render_markdown
from results.report.output import write_frame
from tests.results.overlaps import overlaps
from tests.results.pd_lifecycle.synthetic import T0_NS, Truth, grid, seen, write_run
from tests.results.statistics.in_memory import bounds
from tests.results.undrawn import nothing_drawn

SPECIFIED = (
    "prior_context,new_tokens,output_length,p_prefill_ms,rdma_transfer_ms,transfer_total_ms,d_decode_ms,e2e_ms,"
    "bytes_GB,bw_gbps,ttft_overhead_ms"
)
ONE = RequestConfig(0, 512, 1)
SMALL = tuple(grid(Truth(), contexts=(0,), sizes=(512,), lengths=(1,)))


@pytest.fixture(scope="module")
@nothing_drawn()
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-pd-lifecycle-cpu-tiny"
    write_run(root, tuple(grid(Truth(), sizes=(512, 8192, 32768))), analysis={"link_gbps": 12.5})
    write_results(root)
    return root


@pytest.fixture(scope="module")
def analysis(root: Path) -> LifecycleAnalysis:
    return analyze(root)


@pytest.fixture
def small(tmp_path: Path) -> LifecycleLayout:
    """A run of one configuration."""
    return LifecycleLayout(write_run(tmp_path, SMALL))


def _text(analysis: LifecycleAnalysis) -> str:
    return render_markdown("Run", build_report(analysis))


@pytest.mark.parametrize(("launches", "spread"), [(1, True), (3, False)])
def test_bounds_within_a_launch_are_called_a_spread_and_never_an_interval(
    launches: int, spread: bool, analysis: LifecycleAnalysis
) -> None:
    of = replace(analysis, launches=launches)
    figure = next(one for one in build_figures(of) if one.number == BANDWIDTH)
    notes = " ".join(table.note for table in build_tables(of))
    assert ("95 % spread within the launch where" in figure.caption) == spread
    assert ("95 % interval where" in figure.caption) != spread
    assert ("has their spreads" in notes) == spread
    assert ("has their intervals" in notes) != spread


def test_the_summary_begins_with_the_specifications_columns(root: Path) -> None:
    lines = LifecycleLayout(root).summary_csv.read_text().splitlines()
    assert lines[0].startswith(SPECIFIED + ",")
    assert len(lines) == 1 + 2 * 3 * 2
    assert set(next(csv.reader(lines))) == {*COLUMNS, "d_promotion_less_half_step"}


def test_the_summary_of_known_requests(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(noise=0.0, jitter_ms=0.0), (4096,), (8192,), (32,))))
    write_frame(tmp_path / "summary.csv", build_summary_rows(analyze(tmp_path).configs, half_step=False))
    with (tmp_path / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    actual = {name: round(float(row[name]), 3) for name in SPECIFIED.split(",")}
    assert actual == {
        "prior_context": 4096.0,
        "new_tokens": 8192.0,
        "output_length": 32.0,
        "p_prefill_ms": 81.92,
        "rdma_transfer_ms": 3.855,
        "transfer_total_ms": 16.755,
        "d_decode_ms": 46.5,
        "e2e_ms": 156.575,
        "bytes_GB": 0.004,
        "bw_gbps": 8.703,
        "ttft_overhead_ms": 28.155,
    }
    assert (row["counted"], row["warmups"], row["discarded"]) == ("3", "2", "0")
    rest = {"d_block_alloc_ms": 3.8, "d_schedule_ms": 0.2, "d_first_decode_ms": 4.8, "num_rdma_ops": 2.0,
            "num_blocks": 64.0, "build_params_ms": 0.25, "d_step_ms": 2.0, "zmq_handshake_ms": 12.6,
            "zmq_after_metadata_ms": 0.6}  # fmt: skip
    assert {name: float(row[name]) for name in rest} == pytest.approx(rest)
    assert set(rest) < set(row)
    assert row["client_ttft_median_ms"] == row["client_ttft_ms"]
    assert row["d_promotion_less_half_step"] == "False"


def test_medians_stand_beside_the_means_of_every_duration(tmp_path: Path) -> None:
    """One repetition of three waits for half a second: that moves a mean, not a median."""
    run_analysis = analyze(write_run(tmp_path, [*SMALL[:4], seen(Truth(wait_ms=512.0), ONE, 5).record()]))
    rows = {table.title: dict(zip(table.columns, table.rows[0], strict=True)) for table in build_tables(run_analysis)}
    assert rows["Medians of the phases"]["zmq_handshake"] == "12.6"
    assert float(rows["Phases"]["zmq_handshake"]) > 100
    assert float(rows["Totals"]["client_ttft"]) > 100 + float(rows["Medians of the totals"]["client_ttft"])
    (summary,) = build_summary_rows(run_analysis.configs, half_step=False).to_dict("records")
    assert summary["zmq_handshake_median_ms"] == pytest.approx(12.6)
    durations = {f"{name}_ms": f"{name}_median_ms" for name in (*DURATIONS, "colo_ttft", "plain_ttft")}
    assert {median for mean, median in durations.items() if mean in COLUMNS} < set(COLUMNS)


def test_a_bandwidth_lies_within_its_own_interval() -> None:
    """One slow transfer: all bytes over all time is far below the mean of the single bandwidths."""
    records = [seen(Truth(noise=0.0), ONE, n).record() for n in range(3, 9)]
    slow = seen(Truth(noise=0.0, alpha_ms=200.0), ONE, 9).record()
    bandwidth = collect_config_values([*records, slow], 1)["bw_gbps"]
    moved = 7 * 512 * 512
    took_ms = sum(record.breakdown_ms["rdma_transfer"] or 0.0 for record in (*records, slow))
    low, high = bounds(bandwidth)
    assert bandwidth.value is not None
    assert bandwidth.value == pytest.approx(8 * moved / took_ms / 1e6)
    assert low < bandwidth.value < high


def test_stacked_phases_reach_the_mean_of_e2e(analysis: LifecycleAnalysis) -> None:
    table = build_figures(analysis)[0].table
    whole = table[table["panel"] == "whole request"]
    for row in analysis.configs:
        config = row.config
        own = whole[
            (whole["prior_context"] == config.prior_context)
            & (whole["new_tokens"] == config.current_new_tokens)
            & (whole["output_length"] == config.output_length)
        ]
        assert own["ms"].sum() == pytest.approx(row.value("e2e").value)


def test_only_what_is_counted_is_judged_in_one_launch(root: Path, analysis: LifecycleAnalysis) -> None:
    verdicts = json.loads((root / "verdicts.json").read_bytes())["criteria"]
    assert [(one["name"], one["outcome"]) for one in verdicts] == [
        ("1", "holds"), ("2", "undecided"), ("3", "undecided"), ("4", "holds"), ("5", "undecided"),
    ]  # fmt: skip
    markdown = (root / "report.md").read_text()
    for one in analysis.criteria:
        assert one.rule.replace("|", r"\|") in markdown


def test_what_was_left_out_is_in_the_manifest_and_a_gap(root: Path, analysis: LifecycleAnalysis) -> None:
    rows = pd.read_csv(root / "MANIFEST.tsv", sep="\t", keep_default_na=False)
    assert set(rows["status"]) == {"ran", "SKIP"}
    (left,) = rows[rows["status"] == "SKIP"].to_dict("records")
    assert left["prior_context"] == 131_072
    assert left["skip_reason"] == "longer than the model's context"
    gaps = [(gap.artifact, gap.reason) for gap in analysis.gaps]
    assert gaps == [("sweep/C131072_N8192_O32", "not measured: longer than the model's context")]


@nothing_drawn()
def test_a_cell_that_failed_says_why_and_what_it_threw_away(tmp_path: Path, small: LifecycleLayout) -> None:
    failed = small.failed(RequestConfig(131_072, 8192, 32))
    failed.parent.mkdir(parents=True)
    thrown = [{"repetition": 3, "reason": "the prefix was gone"}, {"repetition": 3, "reason": "the prefix was gone"}]
    failed.write_text(json.dumps({"cell": "x", "attempt": 1, "reason": "2 preemptions", "discarded": thrown}))
    run_analysis = write_results(tmp_path)
    rows = pd.read_csv(tmp_path / "MANIFEST.tsv", sep="\t", keep_default_na=False)
    (row,) = rows[rows["status"] == "FAILED"].to_dict("records")
    assert (row["prior_context"], row["skip_reason"], row["discarded"]) == (131_072, "2 preemptions", 2)
    assert len(run_analysis.discards) == 2
    failed.write_text("{")
    assert any("failed.json cannot be read" in gap.reason for gap in analyze(tmp_path).gaps)


@pytest.mark.parametrize(
    ("measured", "stated_gbps", "lines", "text"),
    [
        ({"gbps": 9.5, "low": 9, "high": 10, "method": "TCP", "from": "measured"}, None, {"link, measured here": 9.5},
         "The link carries 9.50 Gbit/s (measured here, 9.00 to 10.0: TCP)."),
        ({"gbps": 9.5, "from": "measured"}, 12.5, {"link, given": 12.5, "link, measured here": 9.5},
         "The link carries 12.5 Gbit/s (given) and 9.50 Gbit/s (measured here)."),
        ({"gbps": None, "reason": "no port"}, None, {},
         "The link's bandwidth was not stated, and measuring it failed: no port."),
    ],
)  # fmt: skip
def test_the_links_limit_is_drawn_with_who_says_so(
    tmp_path: Path, measured: dict[str, object], stated_gbps: float | None, lines: dict[str, float], text: str
) -> None:
    run = tuple(grid(Truth(), contexts=(0,), sizes=(512, 2048, 4096), lengths=(1,)))
    write_run(tmp_path, run, analysis={"link_gbps": stated_gbps})
    LifecycleLayout(tmp_path).link.write_text(json.dumps(measured))
    run_analysis = analyze(tmp_path)
    figure = build_figures(run_analysis)[1]
    assert {name: level for name, level in figure.lines.items() if "link" in name} == lines
    assert text in figure.caption
    assert text in next(table.note for table in build_tables(run_analysis) if table.title == "Bandwidth by size")
    point = run_analysis.costs.curve[0]
    expected = None if not lines else (point.gbps.value or 0.0) / next(iter(lines.values()))
    assert point.of_link == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("number", [BANDWIDTH, COST])
def test_marks_are_named_where_they_are_and_only_stacked_parts_in_a_legend(
    analysis: LifecycleAnalysis, number: int
) -> None:
    figures = {figure.number: figure for figure in build_figures(analysis)}
    drawing = DRAWERS[number](figures[number])
    assert [axes.get_legend() for axes in drawing.axes] == [None] * len(drawing.axes)
    assert overlaps(drawing) == []
    assert "transfer" in [text.get_text() for text in drawing.axes[-1].texts]
    stacked = DRAWERS[BREAKDOWN](figures[BREAKDOWN])
    assert sum(axes.get_legend() is not None for axes in stacked.axes) == 1


def test_a_preemption_within_a_cell_and_the_share_of_the_cache_are_a_check(
    tmp_path: Path, small: LifecycleLayout, analysis: LifecycleAnalysis
) -> None:
    mark = small.cell(ONE)
    load = {side: {"begin": {"preemptions": 3}, "end": {"preemptions": 3 + count}}
            for side, count in (("prefill", 0), ("decode", 2))}  # fmt: skip
    engines = {side: {"block_tokens": 128, "kv_capacity_tokens": 5130} for side in ("prefill", "decode")}
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"load": load, "engines": engines}))
    read = analyze(tmp_path)
    (check,) = (one for one in read.checks if "preempted" in one.what)
    assert (check.agree, check.of) == (0, 1)
    assert check.text == "the largest request takes 10.0 % of the smallest KV cache"
    assert not any("preempted" in one.what for one in analysis.checks)


def test_what_idle_engines_held_is_not_shown_even_where_an_older_run_has_it(
    tmp_path: Path, small: LifecycleLayout
) -> None:
    """KV usage: it was read between requests only."""
    mark = small.cell(ONE)
    idle = {"kv_usage": 0.4321, "preemptions": 0}
    load = {side: {"begin": idle, "end": idle} for side in ("prefill", "decode")}
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"load": load}))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    write_results(tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in before]
    assert RunLayout(tmp_path).report_md in written
    for path in written:
        content = path.read_bytes().lower()
        shown = [form for form in (b"kv usage", b"kv_usage", b"0.4321", b"43.2 %") if form in content]
        assert shown == [], path.name


def test_checks_that_can_fail_do(tmp_path: Path, analysis: LifecycleAnalysis) -> None:
    assert [(one.agree, one.of) for one in analysis.checks] == [(216, 216), (36, 36), (36, 36)]
    wrong = [
        replace(record, counts=replace(record.counts, external_tokens=1024), colo=replace(record.colo, ttft_ms=1.0))
        for record in SMALL
    ]
    turned = replace(
        wrong[-1], more_ms={**wrong[-1].more_ms, "p_reply": None}, gaps={"p_reply": "a precedes b by 1 ms"}
    )
    run_analysis = analyze(write_run(tmp_path, [*wrong[:-1], turned]))
    assert [(one.agree, one.of) for one in run_analysis.checks] == [(17, 18), (0, 3), (0, 3)]
    assert "a precedes b by 1 ms" in run_analysis.checks[0].text


def test_bytes_that_are_not_their_blocks_are_a_gap(tmp_path: Path) -> None:
    records = [seen(Truth(), ONE, n).record(kv_bytes_per_token=256) for n in range(3, 6)]
    (gap,) = (gap for gap in analyze(write_run(tmp_path, records)).gaps if gap.artifact == "C0_N512_O1")
    assert gap.reason.startswith(
        "3 transfers: bytes are not blocks x block tokens x KV bytes per token, but 2 to 2 times"
    )


def test_a_machine_that_gets_slower_is_detected_from_three_launches_on() -> None:
    def slowed(record: LifecycleRecord, by: float) -> LifecycleRecord:
        return replace(record, colo=replace(record.colo, ttft_ms=(record.colo.ttft_ms or 0.0) * by))

    usual = [
        replace(one, trial=trial)
        for trial in range(3)
        for one in grid(Truth(), contexts=(0, 4096), sizes=(512, 2048, 8192), lengths=(1, 8, 32), seed=trial)
    ]
    start = usual[0].timestamps_ns.t0_proxy_recv or 0
    slow = [slowed(one, 1 + ((one.timestamps_ns.t0_proxy_recv or 0) - start) / 1e12) for one in usual]
    for run, verdict in ((usual, "not detected"), (slow, "detected")):
        drift = measure_drifts(run)[0]
        assert (drift.series, str(drift.verdict)) == ("colo_ttft_ms", verdict)
    assert drift.over_run.value == pytest.approx(0.09, rel=0.1), "of 90 requests, one a second"
    (one_launch, _) = measure_drifts([one for one in slow if not one.trial])
    assert str(one_launch.verdict) == "not testable"
    assert "needs 3" in one_launch.reason


def test_a_figure_without_its_line_says_why(analysis: LifecycleAnalysis) -> None:
    figures = build_figures(analysis)
    assert "Line: zero overhead" in figures[3].caption
    assert "asymptote" in figures[1].lines
    single = replace(analysis, overheads=tuple(one for one in analysis.overheads if (one.overhead_ms.value or 0) > 0))
    assert "No line: the overhead has one sign everywhere" in build_figures(single)[3].caption
    knee = make_unknown_knee(0.9, "pieces cost time")
    limitless = build_figures(replace(analysis, costs=replace(analysis.costs, knee=knee)))[1]
    assert not {"asymptote", "knee"} & set(limitless.lines)
    assert "No line, asymptote or knee: pieces cost time." in limitless.caption
    assert set(limitless.table["kind"]) == {"transfer", "median"}


def test_different_numbers_of_operations_are_said(analysis: LifecycleAnalysis) -> None:
    assert not any("write operations at different C" in text for text in list_limits(analysis))
    more = replace(analysis.volumes[0], operations_by_context=((0, 2.0), (4096, 8.0)))
    changed = replace(analysis, volumes=(more, *analysis.volumes[1:]))
    assert any("write operations at different C (N = 512)" in text for text in list_limits(changed))


def test_half_a_step_is_said_wherever_it_is_taken_off(tmp_path: Path, analysis: LifecycleAnalysis) -> None:
    records = tuple(grid(Truth(noise=0.0), contexts=(0,), sizes=(512, 2048, 4096), lengths=(32,)))
    run_analysis = analyze(write_run(tmp_path, records, analysis={"subtract_half_step": True}))
    assert run_analysis.records[0].breakdown_ms["d_promotion"] == pytest.approx(2.2 - 1.0)
    assert records[0].breakdown_ms["d_promotion"] == pytest.approx(2.2), "the record keeps the whole"
    record = run_analysis.records[0]
    assert record.residual_share == pytest.approx(1.0 / (record.breakdown_ms["e2e"] or 0.0))
    sentence = "Half of the decode instance's median step is subtracted from d_promotion"
    assert sentence in _text(run_analysis)
    assert sentence in build_figures(run_analysis)[0].caption
    assert sentence not in _text(analysis)


def test_settings_that_make_no_sense_are_a_gap(tmp_path: Path) -> None:
    run_analysis = analyze(write_run(tmp_path, SMALL, analysis={"link_gbps": "fast"}))
    assert run_analysis.settings.link_gbps is None
    assert any(gap.artifact == "plan.json" and "link_gbps" in gap.reason for gap in run_analysis.gaps)


def test_an_unfinished_cell_does_not_count(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(), contexts=(0,), sizes=(512, 2048), lengths=(1,))))
    LifecycleLayout(tmp_path).cell(ONE).unlink()
    run_analysis = analyze(tmp_path)
    assert {record.config.current_new_tokens for record in run_analysis.records} == {2048}
    reasons = {gap.artifact: gap.reason for gap in run_analysis.gaps}
    assert reasons["C0_N512_O1"] == "the cell was not finished: its records are not counted"
    assert reasons["sweep/C0_N512_O1"] == "not measured"


def test_a_record_that_was_changed_damaged_or_lost_does_not_count(tmp_path: Path, small: LifecycleLayout) -> None:
    write_indented_json(small.record(ONE, 3), replace(SMALL[2], transport="nixl"))
    small.record(ONE, 4).write_bytes(b"{")
    small.record(ONE, 5).unlink()
    write_indented_json(small.record(ONE, 6), replace(SMALL[2], repetition=6))
    run_analysis = analyze(tmp_path)
    assert [record.repetition for record in run_analysis.records] == [1, 2]
    reasons = {gap.artifact: gap.reason for gap in run_analysis.gaps}
    assert reasons["results/lifecycle/C0_N512_O1_rep3.json"] == "differs from the checksum in its cell's commit mark"
    assert "is damaged" in reasons["results/lifecycle/C0_N512_O1_rep4.json"]
    assert reasons["results/lifecycle/C0_N512_O1_rep5.json"] == "is missing"
    assert "not listed in its cell" in reasons["results/lifecycle/C0_N512_O1_rep6.json"]


def test_discarded_measurements_are_counted_and_reported(tmp_path: Path) -> None:
    write_run(tmp_path, [*SMALL[:3], replace(SMALL[3], discarded="evicted"), SMALL[4]])
    mark = LifecycleLayout(tmp_path).cell(ONE)
    mark_content = json.loads(mark.read_text()) | {"discarded": [{"repetition": 5, "reason": "the prefix was gone"}]}
    mark.write_text(json.dumps(mark_content))
    run_analysis = analyze(tmp_path)
    (row,) = run_analysis.configs
    assert (row.counted, row.warmups, row.discarded) == (2, 2, 2)
    shown = _text(run_analysis)
    assert "evicted" in shown
    assert "the prefix was gone" in shown


def test_a_run_without_a_baseline_or_a_probe_says_so(tmp_path: Path) -> None:
    one = seen(Truth(), ONE)
    blind = replace(one.prefill, events=())
    records = [replace(one.record(prefill=blind, colo=Colo(reason="not asked for")), repetition=n) for n in range(1, 6)]
    run_analysis = write_results(write_run(tmp_path, records))
    missing = {figure.number: figure.missing for figure in build_figures(run_analysis)}
    assert "not asked for" in missing[4]
    assert missing[2]
    assert missing[3]
    assert missing[5]
    assert "Not drawn" in (tmp_path / "report.html").read_text()
    assert any(gap.artifact == "p_prefill" and "5 requests lack it" in gap.reason for gap in run_analysis.gaps)


@pytest.mark.parametrize("end_from", ["telemetry", "poll"])
def test_a_read_that_ends_when_the_worker_looks_is_said_to(tmp_path: Path, end_from: str) -> None:
    """NIXL's own account of a read ends when it is asked, too."""
    one = seen(Truth(), ONE).record()
    run_analysis = analyze(write_run(tmp_path, [replace(one, counts=replace(one.counts, write_end_from=end_from))]))
    limit = "In 1 requests the end of the transfer is the worker's next poll"
    assert any(limit in text for text in list_limits(run_analysis))
    assert not any("next poll" in text for text in list_limits(replace(run_analysis, records=(one,))))


def test_two_hosts_are_set_against_each_other_by_all_exchanges(tmp_path: Path) -> None:
    far = 10**15
    early, late = (Truth(noise=0.0, offset_ns=far + step, prefill_boot="host-b") for step in (0, 50_000_000))
    config = RequestConfig(0, 8192, 32)
    records = [seen(early if n < 12 else late, config, n, start_ns=T0_NS + n * 10**9).record() for n in range(3, 20)]
    run_analysis = analyze(write_run(tmp_path, records))
    assert len(run_analysis.clock_steps) == 1
    assert any(gap.artifact == "clocks" and "was set by about +50 ms" in gap.reason for gap in run_analysis.gaps)
    first = run_analysis.records[0]
    assert first.breakdown_ms["p_queue"] == pytest.approx(4.0, abs=first.error_ms["p_queue"])
    beside = [record for record in run_analysis.records if record.breakdown_ms["p_queue"] is None]
    assert 2 <= len(beside) <= 6
    assert all("was set" in record.gaps["p_queue"] for record in beside)
    assert all(record.breakdown_ms["p_prefill"] == pytest.approx(81.92) for record in run_analysis.records)
    assert "a clock was set" in _text(run_analysis)


def test_an_empty_run_has_a_summary_without_rows(tmp_path: Path) -> None:
    assert write_results(tmp_path).records == ()
    assert LifecycleLayout(tmp_path).summary_csv.read_text().startswith(SPECIFIED)

"""The files of a run: summary, every figure with its numbers or a reason, and what is missing is named."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pandas as pd
import pytest
from rich.console import Console

from results.errors import ResultsError
from results.figures.files import draw
from results.lifecycle.analysis import aggregate, analyse_lifecycle, terminal_tables
from results.lifecycle.draw import DRAWERS
from results.lifecycle.figures import figures
from results.lifecycle.findings import LifecycleAnalysis, analyse
from results.lifecycle.record import Colo, LifecycleLayout, RequestConfig, write_record
from results.lifecycle.report import limits
from results.lifecycle.summary import COLUMNS, flat, values_of
from results.lifecycle.tables import tables
from results.output import write_frame
from tests.results.lifecycle.synthetic import T0_NS, Truth, grid, seen, write_run
from tests.results.test_html import Balance

SPECIFIED = (
    "prior_context,new_tokens,output_length,p_prefill_ms,rdma_transfer_ms,transfer_total_ms,d_decode_ms,e2e_ms,"
    "bytes_GB,bw_gbps,ttft_overhead_ms"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-pd-lifecycle-cpu-tiny"
    root.mkdir()
    write_run(root, tuple(grid(Truth(), sizes=(512, 8192, 32768))), analysis={"link_gbps": 12.5})
    analyse_lifecycle(root)
    return root


@pytest.fixture(scope="module")
def analysis(root: Path) -> LifecycleAnalysis:
    return analyse(root)


def _text(analysis: LifecycleAnalysis) -> str:
    console = Console(width=250, record=True, file=None, force_terminal=False)
    with console.capture() as found:
        console.print(terminal_tables(analysis))
    return found.get()


def test_the_summary_begins_with_the_specifications_columns(root: Path) -> None:
    lines = LifecycleLayout(root).summary_csv.read_text().splitlines()
    assert lines[0].startswith(SPECIFIED + ",")
    assert len(lines) == 1 + 2 * 3 * 2
    assert set(next(csv.reader(lines))) == {*COLUMNS, "d_promotion_less_half_step"}


def test_the_summary_of_known_requests(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(noise=0.0, jitter_ms=0.0), (4096,), (8192,), (32,))))
    write_frame(tmp_path / "summary.csv", flat(analyse(tmp_path).configs, half_step=False))
    with (tmp_path / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    found = {name: round(float(row[name]), 3) for name in SPECIFIED.split(",")}
    assert found == {
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
    assert row["d_promotion_less_half_step"] == "False"


def test_a_bandwidth_lies_within_its_own_interval() -> None:
    """One slow transfer: all bytes over all time is far below the mean of the single bandwidths."""
    records = [seen(Truth(noise=0.0), RequestConfig(0, 512, 1), n).record() for n in range(3, 9)]
    slow = seen(Truth(noise=0.0, alpha_ms=200.0), RequestConfig(0, 512, 1), 9).record()
    found = values_of([*records, slow])["bw_gbps"]
    moved = 7 * 512 * 512
    took_ms = sum(record.breakdown_ms["rdma_transfer"] or 0.0 for record in (*records, slow))
    assert found.value is not None
    assert found.value == pytest.approx(8 * moved / took_ms / 1e6)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_every_figure_is_there_as_png_svg_and_numbers(root: Path, analysis: LifecycleAnalysis) -> None:
    found = figures(analysis)
    assert [figure.number for figure in found] == [1, 2, 3, 4, 5]
    for figure in found:
        assert not figure.missing
        assert (root / "figures" / f"{figure.stem}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.fromstring((root / "figures" / f"{figure.stem}.svg").read_text())
        written = pd.read_csv(root / "figures" / f"{figure.stem}.csv")
        assert list(written.columns) == list(figure.table.columns)
        assert len(written) == len(figure.table) > 0


def test_the_same_folder_gives_the_same_bytes(root: Path, analysis: LifecycleAnalysis) -> None:
    last = figures(analysis)[-1]
    for form, image in draw(last, DRAWERS).items():
        assert (root / "figures" / f"{last.stem}.{form}").read_bytes() == image
    assert msgspec.json.decode((root / "aggregate.json").read_bytes()) == msgspec.json.decode(
        msgspec.json.encode(aggregate(analysis))
    )


def test_stacked_phases_reach_the_mean_of_e2e(analysis: LifecycleAnalysis) -> None:
    table = figures(analysis)[0].table
    whole = table[table["panel"] == "whole request"]
    for row in analysis.configs:
        config = row.config
        own = whole[
            (whole["prior_context"] == config.prior_context)
            & (whole["new_tokens"] == config.current_new_tokens)
            & (whole["output_length"] == config.output_length)
        ]
        assert own["ms"].sum() == pytest.approx(row.value("e2e").value)


def test_the_page_is_well_formed_and_fetches_nothing(root: Path, analysis: LifecycleAnalysis) -> None:
    text = (root / "report.html").read_text()
    page = Balance()
    page.feed(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {address.split(":")[0] for address in page.addresses if not address.startswith("#")} == {"data"}
    assert not re.search(r"<script|@import|url\(", text)
    for table in tables(analysis):
        assert table.title in text


def test_markdown_and_terminal_hold_every_table_and_verdict(root: Path, analysis: LifecycleAnalysis) -> None:
    markdown, shown = (root / "report.md").read_text(), _text(analysis)
    for table in tables(analysis):
        assert f"## {table.title}" in markdown
        assert table.title in shown
    verdicts = json.loads((root / "verdicts.json").read_bytes())["criteria"]
    assert [(one["number"], one["outcome"]) for one in verdicts] == [
        (1, "holds"), (2, "fails"), (3, "holds"), (4, "holds"), (5, "holds"),
    ]  # fmt: skip
    for one in analysis.criteria:
        assert one.rule.replace("|", r"\|") in markdown
    assert "CPU build" in shown
    assert "half of the decode" not in shown


def test_the_manifest_names_what_was_left_out_and_why(root: Path) -> None:
    rows = pd.read_csv(root / "MANIFEST.tsv", sep="\t", keep_default_na=False)
    assert set(rows["status"]) == {"ran", "SKIP"}
    (left,) = rows[rows["status"] == "SKIP"].to_dict("records")
    assert left["prior_context"] == 131_072
    assert left["skip_reason"] == "longer than the model's context"


def test_what_was_left_out_is_a_gap_with_its_reason(analysis: LifecycleAnalysis) -> None:
    assert [(gap.artifact, gap.reason) for gap in analysis.gaps] == [
        ("sweep/C131072_N8192_O32", "not measured: longer than the model's context")
    ]


def test_half_a_step_is_said_wherever_it_is_taken_off(tmp_path: Path, analysis: LifecycleAnalysis) -> None:
    records = tuple(grid(Truth(noise=0.0), contexts=(0,), sizes=(512, 2048, 4096), lengths=(32,)))
    write_run(tmp_path, records, analysis={"subtract_half_step": True})
    found = analyse(tmp_path)
    assert found.records[0].breakdown_ms["d_promotion"] == pytest.approx(2.2 - 1.0)
    assert records[0].breakdown_ms["d_promotion"] == pytest.approx(2.2), "the record keeps the whole"
    assert found.records[0].residual_share == pytest.approx(1.0 / (found.records[0].breakdown_ms["e2e"] or 0.0))
    said = "d_promotion is less half of the decode instance's median step"
    assert said in _text(found)
    assert said in figures(found)[0].caption
    assert said not in _text(analysis)


def test_settings_that_make_no_sense_are_a_gap(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(), contexts=(0,), sizes=(512,), lengths=(1,))), analysis={"link_gbps": "fast"})
    found = analyse(tmp_path)
    assert found.settings.link_gbps is None
    assert any(gap.artifact == "plan.json" and "link_gbps" in gap.reason for gap in found.gaps)


def test_an_unfinished_cell_does_not_count(tmp_path: Path) -> None:
    write_run(tmp_path, tuple(grid(Truth(), contexts=(0,), sizes=(512, 2048), lengths=(1,))))
    layout = LifecycleLayout(tmp_path)
    layout.cell(RequestConfig(0, 512, 1)).unlink()
    found = analyse(tmp_path)
    assert {record.config.current_new_tokens for record in found.records} == {2048}
    reasons = {gap.artifact: gap.reason for gap in found.gaps}
    assert reasons["C0_N512_O1"] == "the cell was not finished: its records are not counted"
    assert reasons["sweep/C0_N512_O1"] == "not measured"


def test_a_record_that_was_changed_or_damaged_does_not_count(tmp_path: Path) -> None:
    records = tuple(grid(Truth(), contexts=(0,), sizes=(512,), lengths=(1,)))
    write_run(tmp_path, records)
    layout = LifecycleLayout(tmp_path)
    config = RequestConfig(0, 512, 1)
    write_record(layout.record(config, 3), replace(records[2], transport="nixl"))
    layout.record(config, 4).write_bytes(b"{")
    write_record(layout.record(config, 6), replace(records[2], repetition=6))
    found = analyse(tmp_path)
    assert [record.repetition for record in found.records] == [1, 2, 5]
    reasons = {gap.artifact: gap.reason for gap in found.gaps}
    assert reasons["results/lifecycle/C0_N512_O1_rep3.json"] == "differs from the checksum its cell was finished with"
    assert "is damaged" in reasons["results/lifecycle/C0_N512_O1_rep4.json"]
    assert "not among the records" in reasons["results/lifecycle/C0_N512_O1_rep6.json"]


def test_discarded_measurements_are_counted_and_told(tmp_path: Path) -> None:
    records = [*grid(Truth(), contexts=(0,), sizes=(512,), lengths=(1,))]
    records[3] = replace(records[3], discarded="evicted")
    write_run(tmp_path, records)
    mark = LifecycleLayout(tmp_path).cell(RequestConfig(0, 512, 1))
    said = json.loads(mark.read_text()) | {"discarded": [{"repetition": 5, "reason": "the prefix was gone"}]}
    mark.write_text(json.dumps(said))
    found = analyse(tmp_path)
    (row,) = found.configs
    assert (row.counted, row.warmups, row.discarded) == (2, 2, 2)
    shown = _text(found)
    assert "evicted" in shown
    assert "the prefix was gone" in shown


def test_a_run_without_a_baseline_or_a_probe_says_so(tmp_path: Path) -> None:
    config = RequestConfig(0, 512, 1)
    one = seen(Truth(), config)
    blind = replace(one.prefill, events=())
    records = [replace(one.record(prefill=blind, colo=Colo(reason="not asked for")), repetition=n) for n in range(1, 6)]
    write_run(tmp_path, records)
    found = analyse_lifecycle(tmp_path)
    missing = {figure.number: figure.missing for figure in figures(found)}
    assert "not asked for" in missing[4]
    assert missing[2]
    assert missing[3]
    assert missing[5]
    assert "Not drawn" in (tmp_path / "report.html").read_text()
    assert any(gap.artifact == "p_prefill" and "5 requests lack it" in gap.reason for gap in found.gaps)


@pytest.mark.parametrize("end_from", ["telemetry", "poll"])
def test_a_read_that_ends_when_the_worker_looks_is_said_to(tmp_path: Path, end_from: str) -> None:
    """NIXL's own account of a read ends when it is asked, too."""
    one = seen(Truth(), RequestConfig(0, 512, 1)).record()
    write_run(tmp_path, [replace(one, counts=replace(one.counts, write_end_from=end_from))])
    found = analyse(tmp_path)
    assert any("In 1 requests the end of the transfer is when the worker next looked" in text for text in limits(found))
    assert not any("next looked" in text for text in limits(replace(found, records=(one,))))


def test_two_hosts_are_set_against_each_other_by_all_exchanges(tmp_path: Path) -> None:
    far = 10**15
    early, late = (Truth(noise=0.0, offset_ns=far + step, prefill_boot="host-b") for step in (0, 50_000_000))
    config = RequestConfig(0, 8192, 32)
    records = [seen(early if n < 12 else late, config, n, start_ns=T0_NS + n * 10**9).record() for n in range(3, 20)]
    write_run(tmp_path, records)
    found = analyse(tmp_path)
    assert len(found.steps) == 1
    assert any(gap.artifact == "clocks" and "was set by about +50 ms" in gap.reason for gap in found.gaps)
    first = found.records[0]
    assert first.breakdown_ms["p_queue"] == pytest.approx(4.0, abs=first.error_ms["p_queue"])
    beside = [record for record in found.records if record.breakdown_ms["p_queue"] is None]
    assert 2 <= len(beside) <= 6
    assert all("was set" in record.gaps["p_queue"] for record in beside)
    assert all(record.breakdown_ms["p_prefill"] == pytest.approx(81.92) for record in found.records)
    assert "a clock was set" in _text(found)


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    found = analyse_lifecycle(tmp_path)
    assert found.records == ()
    assert (tmp_path / "report.html").is_file()
    assert LifecycleLayout(tmp_path).summary_csv.read_text().startswith(SPECIFIED)
    with pytest.raises(ResultsError):
        analyse(tmp_path / "nowhere")

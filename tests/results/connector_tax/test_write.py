"""A run folder becomes its tables; whatever is missing or damaged in it has a name in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from results.connector_tax.analyze import analyze
from results.connector_tax.figures import build_figures
from results.connector_tax.tables import build_tables
from results.connector_tax.write import write_results
from results.records.layout import RunLayout
from tests.results.connector_tax.synthetic import (
    DATE,
    Behavior,
    Cell,
    Load,
    Run,
    report_text,
    write_cell,
    write_measured_run,
    write_run,
)
from tests.results.undrawn import nothing_drawn

RUN = Run(
    configs={
        "plain": Behavior(),
        "mooncake_both": Behavior(ttft_p50_s=0.29, callbacks_us=(1.7, 152.0, 3.1), knee_per_s=4),
    },
    rates_per_s=(1, 2, 4),
    shapes=((512, 64),),
    ref_safe_per_s=2.0,
    skipped={"lmcache_only": "verify_lmcache_only: no hit in the second request"},
    requests=80,
    steps=200,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-connector-tax-cpu-tiny"
    write_measured_run(root, RUN)
    analyze(root)  # makes the Parquet files once for all copies of it
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / original.name))


def _gaps(root: Path) -> dict[str, str]:
    return {gap.artifact: gap.reason for gap in analyze(root).gaps}


def test_a_whole_run_has_no_gap(root: Path) -> None:
    assert _gaps(root) == {}


@nothing_drawn()
def test_the_manifest_has_a_row_per_config_skips_included(root: Path) -> None:
    write_results(root)
    rows = pd.read_csv(root / "MANIFEST.tsv", sep="\t", dtype=str, keep_default_na=False).set_index("config")
    assert list(rows.index) == ["lmcache_only", "mooncake_both", "plain"]
    skipped, plain = rows.loc["lmcache_only"], rows.loc["plain"]
    assert (skipped["status"], skipped["skip_reason"]) == ("SKIP", "verify_lmcache_only: no hit in the second request")
    assert (plain["status"], plain["date"], plain["result_directory"]) == ("ran", DATE, f"results/{DATE}_plain")
    assert (plain["vllm_version"], plain["vllm_sha"], plain["mooncake_version"]) == ("0.32.0", "abc1234", "0.3.13")
    assert plain["nixl_version"] == "1.5.1"  # from the plan, where the environment capture does not say
    assert plain["launch_command"].endswith("--model 'tiny model'")
    assert (plain["cells_done"], plain["cells_failed"], plain["cells_dropped"]) == ("4", "0", "0")
    assert plain["step_timing_available"] == "true"


def test_a_cell_without_step_timing_shows_in_the_manifest(root: Path) -> None:
    write_cell(RunLayout(root).config(DATE, "plain"), Cell("plain", Behavior(), Load(2.0), steps=0))
    row = next(row for row in analyze(root).manifest if row.config == "plain")
    assert (row.step_timing_available, row.step_timing_reason) == (False, "no probe")


def test_cells_that_failed_or_were_never_tried_are_counted(root: Path) -> None:
    layout = RunLayout(root)
    folder = layout.config(DATE, "plain")
    for stem in ("A_r2", "A_r4"):
        for path in folder.root.glob(f"*_{stem}.*"):
            path.unlink()
    layout.attempt("phase-a/plain/r2", 1).mkdir(parents=True)
    row = next(row for row in analyze(root).manifest if row.config == "plain")
    assert (row.cells_done, row.cells_failed, row.cells_dropped) == (2, 1, 1)
    assert _gaps(root)["plain, phase A"] == "not measured: r2, r4"


def _artifacts() -> list[str]:
    """Every file of one config, one of each kind, and every file of the run itself."""
    folder = f"results/{DATE}_mooncake_both"
    own = ("config.json", "launch.sh", "vllm_stdout.log", "vllm_stderr.log", "env.txt")
    of_cells = (
        "requests_A_r2.jsonl", "metrics_A_r2.jsonl", "engine_step_A_r2.jsonl", "cell_A_r2.json", "cell_B_512x64.json",
        "requests_B_512x64.jsonl",
    )  # fmt: skip
    return ["plan.json", "preflight/preflight_status.json", *(f"{folder}/{name}" for name in (*own, *of_cells))]


@pytest.mark.parametrize("artifact", _artifacts())
def test_removing_any_one_artifact_gives_a_gap_that_names_it(root: Path, artifact: str) -> None:
    (root / artifact).unlink()
    (root / artifact).with_suffix(".parquet").unlink(missing_ok=True)
    analysis = analyze(root)
    assert artifact in {gap.artifact for gap in analysis.gaps}
    assert artifact in report_text(analysis, build_figures(analysis, root))


@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage", b'{"a": ', b"null"])
@pytest.mark.parametrize(
    "artifact", [name for name in _artifacts() if name.endswith((".json", ".jsonl")) and "B_" not in name]
)
def test_corrupting_any_one_artifact_gives_a_gap_that_names_it(root: Path, artifact: str, content: bytes) -> None:
    (root / artifact).write_bytes(content)
    (root / artifact).with_suffix(".parquet").unlink(missing_ok=True)
    analysis = analyze(root)
    assert artifact in {gap.artifact for gap in analysis.gaps}
    report_text(analysis)


@nothing_drawn()
def test_nothing_lost_becomes_zero(root: Path) -> None:
    folder = root / "results" / f"{DATE}_mooncake_both"
    for name in ("requests_A_r2.jsonl", "metrics_A_r2.jsonl", "engine_step_A_r2.jsonl"):
        (folder / name).unlink()
        (folder / name).with_suffix(".parquet").unlink(missing_ok=True)
    analysis = write_results(root)
    cell = next(cell for cell in analysis.cells if cell.cell == "phase-a/mooncake_both/r2")
    measured = {name for name, estimate in cell.values.items() if estimate.value is not None}
    assert measured == {"requested_throughput_per_s"}
    assert all(cell.values[name].reason for name in cell.values if name not in measured)
    assert all(value is None for value in cell.counts.values())
    row = pd.read_csv(root / "aggregate.csv").set_index("cell").loc["phase-a/mooncake_both/r2"]
    assert row[["ttft_p90_s", "throughput_ratio", "waiting_p50", "completed", "steps"]].isna().all()


def test_the_rates_the_run_used_stand_and_a_contradiction_is_named(root: Path) -> None:
    layout = RunLayout(root)
    folder = layout.config(DATE, "mooncake_both")
    write_cell(folder, Cell("mooncake_both", Behavior(knee_per_s=2), Load(2.0)))
    analysis = analyze(root)
    assert analysis.rates.ref_safe_per_s == 2.0
    assert "says ref_safe = 2 req/s, but the cells now give 1 req/s" in {gap.reason for gap in analysis.gaps}


def test_the_rates_that_the_specification_would_choose_stand_beside_ours(tmp_path: Path) -> None:
    """A request of 13 s in a warm-up of 5 s: its throughput ratio falls below 0.95 from 2 req/s on."""
    slow = Behavior(tpot_p50_s=0.05, sigma=0.01)
    write_measured_run(tmp_path, Run({"plain": slow, "nixl_both": slow}, (1, 2, 4), steps=0))
    (table,) = (table for table in build_tables(analyze(tmp_path)) if table.title == "Reference rates")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["rate"] for row in rows] == ["4 req/s", "4 req/s"]
    assert [row["by the specification's rules"] for row in rows] == ["1 req/s", "1 req/s"]


def test_lost_or_damaged_reference_rates_are_made_again_and_named(root: Path) -> None:
    path = RunLayout(root).reference_rates
    path.write_bytes(b"{")
    analysis = analyze(root)
    assert analysis.rates.ref_safe_per_s == 2.0
    assert "reference_rates.json" in {gap.artifact for gap in analysis.gaps}
    path.unlink()
    analysis = analyze(root)
    assert analysis.rates.ref_safe_per_s == 2.0
    assert "reference_rates.json" in {gap.artifact for gap in analysis.gaps}


def test_a_folder_with_nothing_in_it_is_a_report_of_gaps(tmp_path: Path) -> None:
    analysis = write_results(tmp_path)
    assert analysis.cells == ()
    assert {gap.artifact for gap in analysis.gaps} == {"plan.json", "preflight/preflight_status.json"}
    assert "plain was not measured" in (tmp_path / "report.md").read_text()


def test_a_run_without_a_plan_is_analyzed_all_the_same(root: Path) -> None:
    whole = analyze(root)
    RunLayout(root).plan.unlink()
    bare = analyze(root)
    assert bare.cells == whole.cells
    assert bare.taxes == whole.taxes


@nothing_drawn()
def test_the_report_names_skipped_configs_and_degraded_cells(root: Path) -> None:
    layout = RunLayout(root).config(DATE, "plain")
    write_cell(layout, Cell("plain", Behavior(), Load(4.0), degraded="client used 0.97 of a core"))
    write_results(root)
    text = (root / "report.md").read_text()
    for part in (
        "no verdict",
        "| lmcache_only | SKIP | verify_lmcache_only: no hit in the second request |",
        "client used 0.97 of a core",
    ):
        assert part in text


def test_a_tax_of_too_few_requests_is_shown_without_a_verdict(tmp_path: Path) -> None:
    run = Run({"plain": Behavior(), "nixl_both": Behavior(ttft_p50_s=0.5)}, (2,), requests=20, steps=0)
    text = report_text(analyze(write_run(tmp_path, run).root))
    (line,) = [line for line in text.splitlines() if line.startswith("| ref_safe | 2 | nixl_both | +")]
    assert "(n = 20: no spread)" in line
    assert "higher" not in line

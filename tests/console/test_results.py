"""The Results panel: the tables of `tracon report` for every experiment, during a run and after it."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.export import save_file
from console.findings import EVERY_S, WHOLE, Analyst, Findings, analyze_folder, list_sections
from console.panels.results import ResultsPanel
from console.widgets.rate_plot import make_log_axis, make_rate_axis
from results.connector_tax.analyze import analyze
from results.connector_tax.curve_figures import make_latency_by_rate
from results.connector_tax.write import write_results
from results.records.estimate import Estimate
from results.records.events import CellState, RunChanged, RunState
from results.records.percent import format_percent
from results.report.table import Table
from state.store import RunStore
from tests.console import demo
from tests.console.conftest import (
    LIFECYCLE_RUN,
    NARROW,
    ROUTING_RUN,
    RUN,
    WIDE,
    press_and_see,
    sees,
    shown,
    until,
    watching,
)
from tests.results.connector_tax.synthetic import Behavior
from tests.results.connector_tax.synthetic import Run as TaxTruth
from tests.results.connector_tax.synthetic import write_run as write_taxes
from tests.results.pd_lifecycle import synthetic as lifecycle
from tests.results.routing import synthetic as routing

ROOT = Path(__file__).parents[2]
CALLBACKS = (5.0, 3.0, 8.0)
TAXES = "substrate-tax-phase-a-shape"


@pytest.fixture(scope="session")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a known tax, a knee and a degraded nothing, and the files its analysis wrote."""
    folder = tmp_path_factory.mktemp("analyzed") / RUN
    demo.write(folder)
    configs = {
        "plain": Behavior(knee_per_s=8.0),
        "mooncake_both": Behavior(ttft_p50_s=0.300, knee_per_s=8.0, callbacks_us=CALLBACKS),
        "noop_connector": Behavior(ttft_p50_s=0.200, knee_per_s=8.0, callbacks_us=CALLBACKS),
    }
    write_taxes(folder, TaxTruth(configs, requests=120, steps=60, skipped={"nixl_both": "no RDMA device on this host"}))
    write_results(folder)
    return folder


@pytest.fixture
def measured_run(analyzed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(analyzed, tmp_path / "ws" / RUN))


@pytest.fixture(scope="module")
def finished(analyzed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each experiment."""
    root = tmp_path_factory.mktemp("ws")
    routed, measured = root / ROUTING_RUN, root / LIFECYCLE_RUN
    demo.write(routed, tale=demo.ROUTING)
    world = routing.World(sessions=6, turns=3, trials=2)
    routing.write_run(routed, world, (routing.Truth("lmetric", ttft_s=0.1), routing.Truth("sticky", ttft_s=0.2)))
    demo.write(measured, tale=demo.LIFECYCLE)
    cells = tuple(lifecycle.grid(lifecycle.Truth(), sizes=(512, 8192), lengths=(32,)))
    lifecycle.write_run(measured, cells, analysis={"link_gbps": 12.5})
    return {"connector-tax": analyzed, "routing": routed, "pd-lifecycle": measured}


def panel_of(pilot: Pilot[None]) -> ResultsPanel:
    return pilot.app.screen.query_one(ResultsPanel)


async def opened(pilot: Pilot[None], section: str = "") -> ResultsPanel:
    """The panel with its analysis done, at this section (empty = the first)."""
    await press_and_see(pilot, "6")
    panel = panel_of(pilot)
    await until(pilot, lambda: panel.report is not None, "no analysis")
    await open_section(pilot, section or panel.section)
    return panel


async def open_section(pilot: Pilot[None], section: str) -> None:
    panel = panel_of(pilot)
    panel.open(section)
    panel.post_message(panel.Redraw())
    await sees(pilot, f" {list_sections(panel.report)[section]} ")


@pytest.mark.parametrize("experiment", ["connector-tax", "routing", "pd-lifecycle"])
async def test_each_table_of_the_report_is_a_section_and_nothing_is_cut_off(
    finished: dict[str, Path], experiment: str
) -> None:
    report = analyze_folder(finished[experiment], experiment).report
    assert report is not None
    async with watching(finished[experiment], NARROW) as pilot:
        panel = await opened(pilot, next(iter(report.sections)))
        await until(pilot, lambda: report.text.opening in " ".join(" ".join(panel.table.text()).split()), "no opening")
        for table in report.text.tables[:3]:
            await sees(pilot, table.title)
            assert not any("…" in line for line in panel.table.text()), table.title
            await pilot.press("right")
        await open_section(pilot, WHOLE)
        await sees(pilot, "Profile cpu-tiny")


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_taxes_are_those_of_tax_json(measured_run: Path, size: tuple[int, int]) -> None:
    taxes = json.loads((measured_run / "tax.json").read_bytes())["taxes"]
    async with watching(measured_run, size) as pilot:
        panel = await opened(pilot, TAXES)
        await sees(pilot, "ref_safe")
        lines = panel.table.text()
    wanted = [tax for tax in taxes if tax["metric"] in ("tax_ttft_p90", "tax_tpot_p90") and tax["phase"] == "A"]
    assert wanted
    for tax in wanted:
        value = re.escape(format_percent(tax["value"], 1, signed=True))
        row = f"{tax['config']}.*{value} .*{tax['verdict'] or 'no verdict'}"
        assert re.search(row, " ".join(lines)), (tax, lines)
    assert all(len(line) <= size[0] for line in lines)


@pytest.mark.parametrize("size", [NARROW, WIDE])
@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ("page", ["Noise floor", "mooncake_both", "no verdict", "Undecided", "H1"]),
        ("hypotheses", ["H1", "no verdict, one launch per config", "The substrate tax persists"]),
        ("reference-rates", ["ref_safe 4 req/s", "ref_load 4 req/s", "saturated at 8 req/s"]),
        ("ttft", ["TTFT p90, ms, over the send rate", "┤", "mooncake_both", "x"]),
        ("tpot", ["TPOT p90, ms per token", "┤"]),
        ("throughput", ["Completed, req/s", "┤"]),
        ("configs", ["nixl_both", "no RDMA device on this host"]),
        ("report", ["Hypotheses"]),
    ],
)
async def test_each_kind_of_section_is_readable(
    measured_run: Path, size: tuple[int, int], section: str, parts: list[str]
) -> None:
    async with watching(measured_run, size) as pilot:
        await opened(pilot, section)
        for part in parts:
            await sees(pilot, part)
        assert len(shown(pilot.app)) == size[1]


async def test_the_page_ends_with_its_setting_and_what_to_do_next(measured_run: Path) -> None:
    async with watching(measured_run, NARROW) as pilot:
        await opened(pilot, "page")
        await pilot.press("end")
        for part in ("cpu-tiny (demo)", "tracon report"):
            await sees(pilot, part)


async def test_enter_opens_a_verdict_with_its_rule_and_a_cell_with_all_its_numbers(measured_run: Path) -> None:
    async with watching(measured_run) as pilot:
        panel = await opened(pilot, "hypotheses")
        await pilot.press("down", "enter")
        for part in ("prior", "Rules", "about"):
            await sees(pilot, part)
        await pilot.press("escape")
        await open_section(pilot, next(name for name in list_sections(panel.report) if name.startswith("phase-a")))
        await sees(pilot, "waiting")
        await pilot.press("enter")
        await sees(pilot, "ttft_p99_s")


async def test_export_saves_the_open_table(measured_run: Path) -> None:
    async with watching(measured_run, NARROW) as pilot:
        panel = await opened(pilot, TAXES)
        assert panel.report is not None
        table = panel.report.sections[TAXES]
        await pilot.press("e")
        await until(pilot, lambda: any((measured_run / "exports").glob(f"{TAXES}-*.csv")), "nothing was saved")
    (file,) = (measured_run / "exports").glob(f"{TAXES}-*.csv")
    assert isinstance(table, Table)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["config"] for row in rows] == [row[2] for row in table.rows]
    tax = table.values[0][3]
    assert isinstance(tax, Estimate)
    saved = [float(rows[0][f"TTFT p90 vs plain{part}"]) for part in ("", " low", " high")]
    assert saved == [tax.value, tax.low, tax.high], "in full precision"


async def test_read_only_saves_nothing_in_the_run(
    measured_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with watching(measured_run, NARROW, read_only=True) as pilot:
        await opened(pilot, TAXES)
        await pilot.press("e")
        await until(pilot, lambda: any(tmp_path.glob(f"{TAXES}-*.csv")), "nothing was saved")
    assert not (measured_run / "exports").exists()


async def test_a_filter_keeps_the_rows_of_one_config(measured_run: Path) -> None:
    async with watching(measured_run, NARROW) as pilot:
        panel = await opened(pilot, TAXES)
        await pilot.press("slash", *"mooncake", "enter")
        assert panel.table.rows
        assert not any("noop_connector" in line for line in panel.table.text())


async def test_the_report_is_searched_by_the_filter_and_the_page_is_not(measured_run: Path) -> None:
    async with watching(measured_run, NARROW, notifications=True) as pilot:
        panel = await opened(pilot, WHOLE)
        await pilot.press("slash", *"what this does", "enter")
        await until(pilot, lambda: len(panel.table.rows) == 1, "the report is not searched")
        await pilot.press("escape")
        await open_section(pilot, "page")
        await press_and_see(pilot, "slash", "nothing here has rows to filter")


async def test_while_nothing_is_measured_it_says_so(tmp_path: Path) -> None:
    folder = tmp_path / RUN
    demo.write(folder, seconds=5)
    async with watching(folder, NARROW) as pilot:
        await pilot.press("6")
        await sees(pilot, "nothing is measured yet")


async def test_a_run_without_artifacts_says_what_is_missing(ended_run: Path) -> None:
    async with watching(ended_run, NARROW) as pilot:
        await opened(pilot)
        await sees(pilot, "plan.json")


async def test_a_run_that_ends_while_it_is_watched_ends_on_its_page(live_run: Path) -> None:
    async with watching(live_run, NARROW) as pilot:
        await sees(pilot, "▶ running")
        with RunStore.open(live_run) as store:
            store.append(RunChanged(RunState.DONE))
        await sees(pilot, "Page  ")
        assert panel_of(pilot).section == "page"


async def test_in_ascii_curves_are_letters(measured_run: Path) -> None:
    async with watching(measured_run, ascii=True) as pilot:
        await opened(pilot, "ttft")
        await sees(pilot, "a plain")
        text = "\n".join(shown(pilot.app))
    assert text.isascii(), {character for character in text if not character.isascii()}


class Recorder:
    """Stands in for the panel: what an analyst posted, and when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.posted: list[Findings] = []
        self.done = threading.Event()

    def post(self, findings: Findings) -> None:
        self.posted.append(findings)
        self.done.set()

    def settle(self, analyst: Analyst) -> None:
        assert self.done.wait(60)
        self.done.clear()
        thread = analyst._thread
        assert thread is not None
        thread.join(60)


def test_a_run_is_analyzed_when_more_is_measured_and_not_more_often(measured_run: Path) -> None:
    seen = Recorder()
    analyst = Analyst(measured_run, seen.post, clock=lambda: seen.now)
    with RunStore.open(measured_run, read_only=True) as store:
        view = store.view()
    analyst.analyze_if_due(view)
    seen.settle(analyst)
    analyst.analyze_if_due(view)
    assert not analyst.busy, "nothing changed"
    failed = next(cell for cell in view.cells.values() if cell.state is CellState.FAILED)
    again = replace(failed, attempt=failed.attempt + 1)
    later = replace(view, cells={**view.cells, failed.cell: again})
    seen.now = EVERY_S / 2
    analyst.analyze_if_due(later)
    assert not analyst.busy, "too soon"
    seen.now = EVERY_S + 1
    analyst.analyze_if_due(later)
    seen.settle(analyst)
    assert [findings.trouble for findings in seen.posted] == ["", ""]


def test_opening_the_console_imports_nothing_that_analyzes() -> None:
    heavy = ("pandas", "scipy", "pyarrow", "numpy", "matplotlib")
    code = f"import sys, console.__main__, console.app; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_goes_where_the_console_was_started_if_the_runs_folder_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").touch()
    saved = save_file(b"1", "a.csv", tmp_path / "run" / "exports")
    assert saved.read_bytes() == b"1"
    assert saved.samefile(tmp_path / "a.csv")


def test_a_screenshot_needs_no_terminal_and_keeps_its_spaces(measured_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.svg"
    command = [sys.executable, "-m", "console", str(measured_run), "--screenshot", str(file)]
    command += ["--press", "6,right"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, stdin=subprocess.DEVNULL)
    svg = file.read_text(encoding="utf-8")
    assert "undecided" in svg
    texts = re.findall(r"<text [^>]*>", svg)
    assert texts
    assert all('xml:space="preserve"' in text for text in texts)


def test_a_folder_without_records_is_reported_not_raised(tmp_path: Path) -> None:
    findings = analyze_folder(tmp_path / "nowhere", "pd-lifecycle")
    assert findings.report is None
    assert findings.trouble


def test_axes_hold_every_value_and_label_what_was_measured() -> None:
    axis = make_log_axis([15.0, 4565.0], 12)
    assert 10**axis.lower < 15.0
    assert 10**axis.upper > 4565.0
    assert 2 <= len(axis.labels) <= 12
    assert make_rate_axis([8.0, 2.0, 4.0, 4.0]).labels == ("2", "4", "8")
    assert make_rate_axis([4.0]).lower < make_rate_axis([4.0]).upper


def test_a_chart_has_the_numbers_of_the_figure(measured_run: Path) -> None:
    report = analyze_folder(measured_run, "connector-tax").report
    assert report is not None
    table = make_latency_by_rate(analyze(measured_run), 1, "TTFT").table
    points = [(line.name, point.x, point.value, point.mark) for line in report.charts[0].lines for point in line.points]
    marks = ["saturated" if saturated is True else "" for saturated in table["saturated"]]
    values = table["ttft_p90_s"] * 1e3
    assert points == list(zip(table["config"], table["rate_per_s"], values, marks, strict=True))
    assert "saturated" in marks

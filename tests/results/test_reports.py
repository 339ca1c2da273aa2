"""What the report of every experiment keeps to: figures with their numbers, a page that stands alone, no table lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from rich.console import Console

from results.records.errors import ResultsError
from results.records.layout import RunLayout
from results.registry import find_results
from results.report.content import ReportText
from results.report.document import make_rich_tables, render_markdown
from tests.results.connector_tax import synthetic as tax_runs
from tests.results.pd_lifecycle import synthetic as lifecycle_runs
from tests.results.routing import synthetic as routing_runs

HOSTILE = "<b>no & hit</b>"
VOID = {"meta", "img", "br", "hr", "link", "input"}


def write_tax_run(root: Path) -> None:
    mooncake = tax_runs.Behavior(0.29, callbacks_us=(1.7, 152.0, 3.1), knee_per_s=4)
    run = tax_runs.Run(
        configs={"plain": tax_runs.Behavior(), "mooncake_both": mooncake}, rates_per_s=(1, 2, 4), shapes=((512, 64),),
        ref_safe_per_s=2.0, skipped={"lmcache_only": HOSTILE}, requests=80, steps=200,
    )  # fmt: skip
    tax_runs.write_run(root, run)


def write_routing_run(root: Path) -> None:
    policies = [routing_runs.Truth(name, slope_s=0.01) for name in ("round_robin", "sticky", "unified")]
    routing_runs.write_run(root, routing_runs.World(sessions=24, turns=5, gap_s=0.5), policies, planned=(HOSTILE,))
    routing_runs.write_interference(root, {256: 1.4, 1024: 3.0, 4096: 9.0})


def write_lifecycle_run(root: Path) -> None:
    records = list(lifecycle_runs.grid(lifecycle_runs.Truth(), sizes=(512, 8192, 32768)))
    records[3] = replace(records[3], discarded=HOSTILE)
    lifecycle_runs.write_run(root, records, analysis={"link_gbps": 12.5})


@dataclass(frozen=True)
class Expected:
    write_raw: Callable[[Path], None]
    drawn: frozenset[str]
    """Labels of the figures that can be drawn."""
    missing: frozenset[str] = frozenset()


EXPERIMENTS: Mapping[str, Expected] = {
    "connector-tax": Expected(write_tax_run, frozenset("123456"), frozenset("78")),
    "routing": Expected(
        write_routing_run,
        frozenset({"1", "3", "4a", "4b", "4c", "4d", "6", "6_full", "8"}),
        frozenset({"5", "7", "9", "9b", "10"}),
    ),
    "pd-lifecycle": Expected(write_lifecycle_run, frozenset("12345")),
}


@dataclass(frozen=True)
class Written:
    """A run whose analysis was written."""

    experiment: str
    root: Path
    analysis: Any
    text: ReportText
    expected: Expected


@pytest.fixture(scope="module", params=EXPERIMENTS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("runs") / f"20260131-120000-{request.param}-cpu-tiny"
    expected = EXPERIMENTS[request.param]
    expected.write_raw(root)
    results = find_results(request.param)
    analysis = results.write(root)
    return Written(request.param, root, analysis, results.report(analysis), expected)


class Balance(HTMLParser):
    """Tags that were opened and not closed, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_figure_that_can_be_drawn_is_there_as_png_svg_and_numbers(written: Written) -> None:
    folder = RunLayout(written.root).figures
    labels = written.expected.drawn
    assert {path.name for path in folder.iterdir()} == {
        f"figure_{label}.{form}" for label in labels for form in ("png", "svg", "csv")
    }
    for label in labels:
        assert (folder / f"figure_{label}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(folder / f"figure_{label}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert len(pd.read_csv(folder / f"figure_{label}.csv"))


def test_the_page_is_well_formed_and_fetches_nothing(written: Written) -> None:
    text = (written.root / "report.html").read_text()
    page = Balance()
    page.feed(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {address.split(":")[0] for address in page.addresses if not address.startswith("#")} == {"data"}
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)
    assert not re.search(r"<script|@import|url\(", text)
    assert HOSTILE not in text
    assert escape(HOSTILE) in text


def test_every_form_of_the_report_has_every_table_figure_and_limit(written: Written) -> None:
    markdown, page = (written.root / "report.md").read_text(), (written.root / "report.html").read_text()
    console = Console(width=250, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(make_rich_tables(written.text))
    for table in written.text.tables:
        assert f"\n### {table.title}\n" in markdown
        assert f"<h3>{escape(table.title)}</h3>" in page
        assert table.title in capture.get()
    for limit in written.text.limits:
        assert f"- {limit}\n" in markdown
        assert escape(limit) in page.replace("<code>", "`").replace("</code>", "`")
    shown = [one for one in find_results(written.experiment).page(written.analysis).figures if one]  # type: ignore[misc]
    assert page.count("data:image/svg+xml;base64,") == len(written.expected.drawn) + len(shown)
    assert page.count("Not drawn: ") == markdown.count("not drawn: ") == len(written.expected.missing)
    for label in written.expected.drawn:
        assert f"](figures/figure_{label}.svg)" in markdown


@pytest.mark.parametrize("width", [80, 200])
def test_the_terminal_shows_the_report_within_its_width(written: Written, width: int) -> None:
    console = Console(width=width, file=None, no_color=True)
    with console.capture() as capture:
        console.print(make_rich_tables(written.text))
    assert max(len(line) for line in capture.get().splitlines()) <= width


def test_every_markdown_table_is_as_wide_as_its_header(written: Written) -> None:
    first = written.text.tables[0]
    piped = replace(first, rows=(*first.rows, tuple("a | pipe\nand a line" for _ in first.columns)))
    lines = render_markdown("Run", replace(written.text, tables=(piped, *written.text.tables[1:]))).splitlines()
    width = 0
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following.startswith("|---"):
            width = line.replace("\\|", "").count("|")
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == width


def test_a_second_analysis_writes_the_same_bytes(written: Written) -> None:
    first = {path: path.read_bytes() for path in written.root.rglob("*") if path.is_file()}
    assert {"aggregate.csv", "aggregate.parquet", "verdicts.json", "MANIFEST.tsv"} <= {path.name for path in first}
    find_results(written.experiment).write(written.root)
    assert {path: path.read_bytes() for path in written.root.rglob("*") if path.is_file()} == first


def test_what_the_host_did_is_the_first_limit(written: Written) -> None:
    note = "The host was disturbed."
    disturbed = replace(written.analysis, facts=replace(written.analysis.facts, host_notes=(note,)))
    report = find_results(written.experiment).report
    assert report(disturbed).limits == (note, *written.text.limits)
    assert "Profile cpu-tiny (demo), on a CPU build of the engine" in written.text.opening
    assert any("CPU build" in limit and "GPU" in limit for limit in written.text.limits)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_run_without_anything_lists_every_figure_with_a_reason(experiment: str, tmp_path: Path) -> None:
    results, expected = find_results(experiment), EXPERIMENTS[experiment]
    results.write(tmp_path)
    assert (tmp_path / "report.html").read_text().count("Not drawn") == len(expected.drawn | expected.missing)
    assert (tmp_path / "report.md").is_file()
    with pytest.raises(ResultsError) as refused:
        results.analyze(tmp_path / "nowhere")
    assert refused.value.remedy
    assert refused.value.exit_code == 2

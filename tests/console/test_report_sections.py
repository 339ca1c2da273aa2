"""Tables, charts and sections of a report, whatever its experiment."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.export import export_content
from console.findings import PAGE, WHOLE, Report, list_sections
from console.rows.report import (
    Section,
    list_row_facts,
    make_chart_table,
    make_report_section,
    make_table_section,
    parse_row_number,
)
from console.widgets.section_bar import label_sections
from console.widgets.table import count_columns
from results.records.estimate import Estimate
from results.report.chart import Chart, Line, Point
from results.report.content import ReportText
from results.report.document import APPENDIX, LIMITS_TITLE
from results.report.page import Page
from results.report.table import Column, Table, make_table

TABLES = (
    Table("Policies", ("policy", "TTFT p90, ms"), (("lmetric", "412"), ("sticky, 2", '1"9'))),
    Table("Differences", ("policy", "verdict"), (("sticky", "slower"),), note="paired by turn"),
)
CURVES = Chart("TTFT", "req/s", "TTFT p90, ms", (Line("plain", (Point(2.0, 20.0, 18.0, 22.0), Point(4.0, 41.5))),))
REPORT = Report(ReportText("Two policies.", TABLES, ("nothing about a GPU",)), (CURVES,))
PAGED = Report(REPORT.text, (CURVES,), Page("Which policy is best?", ("On two cores.",), "Noise floor: none.", (), ()))


def test_the_page_every_table_every_chart_and_the_whole_report_are_sections() -> None:
    parts = {"policies": "Policies", "differences": "Differences", "ttft": "TTFT", WHOLE: "Report"}
    assert dict(list_sections(REPORT)) == parts
    assert list(list_sections(PAGED)) == [PAGE, *parts]
    twice = Report(ReportText("", (TABLES[0], TABLES[0]), ()))
    assert len(twice.sections) == 2


def test_a_table_is_saved_in_full_precision_with_its_bounds() -> None:
    columns: tuple[Column[tuple[str, Estimate]], ...] = (
        Column("policy", lambda row: row[0]), Column("TTFT p90", lambda row: row[1], "ms", scale=1e3),
    )  # fmt: skip
    rows: list[tuple[str, Estimate]] = [("ear", Estimate(0.123456789, 0.1, 0.2)), ("sticky", Estimate(None))]
    table = make_table("Policies", columns, rows)
    assert table.rows[0] == ("ear", "123.5 [100.0, 200.0]")
    _, data = export_content(Report(ReportText("", (table,), ())), "policies")
    assert data.decode().splitlines() == [
        "policy,TTFT p90 ms,TTFT p90 ms low,TTFT p90 ms high", "ear,123.456789,100.0,200.0", "sticky,,,",
    ]  # fmt: skip


def test_a_table_and_a_chart_are_saved_as_csv_and_the_report_as_markdown() -> None:
    ending, data = export_content(REPORT, "policies")
    assert ending == "csv"
    assert [tuple(row) for row in csv.reader(io.StringIO(data.decode()))] == [TABLES[0].columns, *TABLES[0].rows]
    ending, data = export_content(REPORT, "ttft")
    assert (ending, data.decode().splitlines()[1:]) == ("csv", ["plain,2.0,20.0,18.0,22.0,", "plain,4.0,41.5,,,"])
    ending, data = export_content(REPORT, WHOLE)
    assert ending == "md"
    for part in ("Two policies.", "## Policies", "## Differences", "paired by turn", "nothing about a GPU"):
        assert part in data.decode()


def test_a_label_that_a_spreadsheet_would_execute_is_escaped() -> None:
    table = Table("Policies", ("policy", "change"), (("=1+1", "-3.0 % [-5.0, -1.0]"),))
    _, data = export_content(Report(ReportText("", (table,), ())), "policies")
    assert list(csv.reader(io.StringIO(data.decode())))[1] == ["'=1+1", "-3.0 % [-5.0, -1.0]"]


@pytest.mark.parametrize("section", [PAGE, WHOLE])
def test_a_report_with_a_page_is_saved_with_it(section: str) -> None:
    ending, data = export_content(PAGED, section)
    page, _, appendix = data.decode().partition(f"## {APPENDIX}\n")
    assert ending == "md"
    assert "**Which policy is best?**" in page
    assert "Noise floor: none." in page
    assert "### Policies" in appendix


titles = st.dictionaries(st.text(min_size=1, max_size=6), st.text(min_size=1, max_size=30), min_size=1, max_size=12)


def test_the_last_section_is_named_where_there_is_room_for_one_alone() -> None:
    assert label_sections({"a": "A", "b": "B" * 16}, "b", 20) == {"b": "B" * 16}


@given(titles, st.integers(20, 200), st.data())
def test_the_open_section_is_always_named(sections: dict[str, str], width: int, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(sorted(sections)))
    shown = label_sections(sections, section, width)
    assert shown[section] == sections[section]
    if sum(len(label) + 2 for label in sections.values()) <= width:
        assert dict(shown) == sections
    else:
        numbers = {name: str(n) for n, name in enumerate(sections, 1)}
        assert all(shown[name] == numbers[name] for name in shown if name != section)
        assert len(shown) == 1 or sum(len(label) + 2 for label in shown.values()) <= width


def laid_out(table: Table, width: int, paragraph: str = "") -> Section:
    return make_table_section(table, width, lambda name: "series-0" if name == "plain" else "", paragraph)


def lines(section: Section) -> list[str]:
    return ["  ".join("".join(text for text, _ in content) for content in row.cells).rstrip() for row in section.rows]


def test_a_table_that_fits_stands_as_it_is() -> None:
    section = laid_out(TABLES[0], 60)
    assert [(column.title, column.unit) for column in section.columns] == [
        ("policy", ""),
        ("TTFT", "p90, ms"),
        ("", ""),
    ]
    assert lines(section) == ["lmetric  412", 'sticky, 2  1"9']


WIDE_TABLE = Table(
    "End to end",
    ("policy", "TTFT p90 ms", "E2E p90 s"),
    (("lmetric", "183 [174, 191]", "0.34 [0.31, 0.36]"), ("sticky", "378 [360, 391]", "0.54 [0.51, 0.56]")),
)


def test_one_that_does_not_fit_compares_policies_column_by_column() -> None:
    assert lines(laid_out(WIDE_TABLE, 38)) == [
        "TTFT p90 ms",
        "lmetric  183 [174, 191]",
        "sticky  378 [360, 391]",
        "",
        "E2E p90 s",
        "lmetric  0.34 [0.31, 0.36]",
        "sticky  0.54 [0.51, 0.56]",
    ]


def test_what_has_no_room_in_other_tables_stands_beneath_its_row() -> None:
    taxes = Table(
        "Taxes",
        ("reference", "config", "TTFT vs plain", "why", "none"),
        (("ref_safe", "plain", "+12 % [-4, +28] higher", "it is " + "very " * 12 + "short", ""),),
    )
    section = laid_out(taxes, 39)
    assert lines(section) == [
        "ref_safe  plain",
        "  TTFT vs plain  +12 % [-4, +28] higher",
        "  why  it is very very very very very",
        "    very very very very very very very",
        "    short",
    ]
    assert [tone for row in section.rows[:2] for content in row.cells for _, tone in content] == [
        "", "series-0", "", "", "dim", "warn"
    ]  # fmt: skip
    assert {parse_row_number(row.key) for row in section.rows} == {0}
    named = Table("Checks", ("check", "n"), (("what was counted twice, by two clocks", "7"),))
    assert lines(laid_out(named, 30)) == ["what was counted twice, by two", "clocks", "  n  7"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_whole_report_is_lines_of_the_width_with_every_table(width: int) -> None:
    text = ReportText("Two policies. " * 9, (*TABLES, WIDE_TABLE), ("nothing about a GPU " * 8,))
    section = make_report_section(text, width, lambda name: "")
    report = lines(section)
    assert all(count_columns(row.cells[0]) <= width for row in section.rows)
    for table in text.tables:
        at = report.index(table.title)
        assert all(part in " ".join(report[at:]) for row in table.rows for part in row)
    assert report[report.index(LIMITS_TITLE) + 1].startswith("- nothing about a GPU")
    assert all(parse_row_number(row.key) is None for row in section.rows)


def test_the_paragraph_stands_below_and_an_empty_table_has_no_rows() -> None:
    section = laid_out(TABLES[0], 60, "Two policies.")
    assert lines(section)[-2:] == ["", "Two policies."]
    assert parse_row_number(section.rows[-1].key) is None
    assert laid_out(Table("Degraded cells", ("cell", "why"), ()), 60, "words").rows == ()


def test_a_row_opens_with_all_that_is_known_of_its_name() -> None:
    verdicts = Table("Hypotheses", ("", "outcome"), (("H1", "holds"), ("H2", "open")), facts=((("n", "3"),), ()))
    rules = Table("Rules", ("", "about", "rule"), (("H1", "TTFT", "above 0"), ("H2", "TPOT", "above 5")))
    facts = list_row_facts((verdicts, rules), verdicts, 0)
    wanted = [("", "H1"), ("outcome", "holds"), ("n", "3"), ("Rules", ""), ("about", "TTFT"), ("rule", "above 0")]
    assert facts == wanted
    repeated = Table("Cells", ("", "n"), (("H1", "1"), ("H1", "2")))
    assert list_row_facts((verdicts, repeated), repeated, 1) == [("", "H1"), ("n", "2")]


@pytest.mark.parametrize(("mark", "text"), [("", "41.5"), ("saturated", "41.5 x"), ("degraded", "41.5 o")])
def test_a_chart_has_its_points_as_a_table(mark: str, text: str) -> None:
    chart = Chart("TTFT", "req/s", "ms", (*CURVES.lines, Line("nixl", (Point(4.0, 41.5, mark=mark),))), "how to read")
    table = make_chart_table(chart)
    assert table.columns == ("", "2 req/s", "4 req/s")
    assert table.rows == (("plain", "20.0", "41.5"), ("nixl", "-", text))


cells = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=60)


@given(st.integers(2, 5).flatmap(lambda n: st.lists(st.tuples(*[cells] * n), max_size=5)), st.integers(40, 120))
def test_every_row_has_a_cell_for_every_column(rows: list[tuple[str, ...]], width: int) -> None:
    titles = tuple(f"column {n}" for n in range(len(rows[0]) if rows else 2))
    section = laid_out(Table("T", titles, tuple(rows)), width)
    assert sum(column.width + 1 for column in section.columns) - 1 <= width
    assert all(len(row.cells) == len(section.columns) for row in section.rows)
    assert len({row.key for row in section.rows}) == len(section.rows)

"""Results of an experiment whose sections are the tables of its report."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from console.export import export_content
from console.findings import FIRST, SECTIONS, WHOLE, Report, list_sections
from console.rows.report import table_section
from console.rows.sections import Section
from console.widgets.section_bar import labels
from results.report.table import Table

TABLES = (
    Table("Policies", ("policy", "TTFT p90, ms"), (("lmetric", "412"), ("sticky, 2", '1"9'))),
    Table("Differences", ("policy", "verdict"), (("sticky", "slower"),), note="paired by turn"),
)
REPORT = Report("Two policies.", TABLES, ("nothing about a GPU",))


def test_every_table_is_a_section_and_the_whole_report_the_last() -> None:
    assert list(list_sections(REPORT, "routing").items()) == [
        ("table-1", "Policies"), ("table-2", "Differences"), (WHOLE, "Report")
    ]  # fmt: skip


def test_the_section_that_is_open_before_the_analysis_is_there_after_it() -> None:
    before = list_sections(None, "routing")
    assert next(iter(before)) == FIRST in list_sections(REPORT, "routing")
    assert WHOLE in before
    assert list_sections(None, "connector-tax") is SECTIONS


def test_a_table_is_saved_as_csv_and_the_report_as_markdown() -> None:
    ending, data = export_content(REPORT, "table-1")
    assert ending == "csv"
    assert [tuple(row) for row in csv.reader(io.StringIO(data.decode()))] == [TABLES[0].columns, *TABLES[0].rows]
    ending, data = export_content(REPORT, WHOLE)
    assert ending == "md"
    for part in ("Two policies.", "## Policies", "## Differences", "paired by turn", "nothing about a GPU"):
        assert part in data.decode()


titles = st.dictionaries(st.text(min_size=1, max_size=6), st.text(min_size=1, max_size=30), min_size=1, max_size=12)


@given(titles, st.integers(20, 200), st.data())
def test_the_open_section_is_always_named(sections: dict[str, str], width: int, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(sorted(sections)))
    shown = labels(sections, section, width)
    assert list(shown) == list(sections)
    assert shown[section] == sections[section]
    if sum(len(label) + 2 for label in sections.values()) <= width:
        assert dict(shown) == sections
    else:
        assert all(shown[name] == str(n) for n, name in enumerate(sections, 1) if name != section)


def lines(section: Section) -> list[str]:
    return ["  ".join("".join(text for text, _ in content) for content in row.cells).rstrip() for row in section.rows]


def test_a_table_that_fits_stands_as_it_is() -> None:
    section = table_section(TABLES[0], 60)
    assert [(column.title, column.unit) for column in section.columns] == [("policy", ""), ("TTFT", "p90, ms")]
    assert lines(section) == ["lmetric  412", 'sticky, 2  1"9']


WIDE_TABLE = Table(
    "End to end",
    ("policy", "TTFT p90 ms", "E2E p90 s"),
    (("lmetric", "183 [174, 191]", "0.34 [0.31, 0.36]"), ("sticky", "378 [360, 391]", "0.54 [0.51, 0.56]")),
)


def test_one_that_does_not_fit_compares_policies_column_by_column() -> None:
    assert lines(table_section(WIDE_TABLE, 38)) == [
        "TTFT p90 ms",
        "lmetric  183 [174, 191]",
        "sticky  378 [360, 391]",
        "",
        "E2E p90 s",
        "lmetric  0.34 [0.31, 0.36]",
        "sticky  0.54 [0.51, 0.56]",
    ]


def test_rows_of_one_name_and_pairs_with_a_long_text_become_one_block_each() -> None:
    twice = Table("Instances", ("policy", "instance", "TTFT"), (("a", "e0", "1" * 30), ("a", "e1", "2")))
    assert lines(table_section(twice, 40)) == [
        "a",
        "instance  e0",
        "TTFT  " + "1" * 30,
        "",
        "a",
        "instance  e1",
        "TTFT  2",
    ]
    gaps = Table("Gaps", ("artifact", "what is wrong"), (("trial_0/cell.json", "it is " + "very " * 12 + "short"),))
    section = table_section(gaps, 40)
    assert lines(section)[0] == "trial_0/cell.json"
    assert all(len(line) <= 42 for line in lines(section))
    assert " ".join(" ".join(lines(section)).split()).endswith("very short")


def test_the_paragraph_stands_below_and_an_empty_table_says_so() -> None:
    assert lines(table_section(TABLES[0], 60, "Two policies."))[-2:] == ["", "Two policies."]
    empty = table_section(Table("Degraded cells", ("cell", "why"), ()), 60, "words")
    assert (empty.rows, empty.empty) == ((), "none")


cells = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=60)


@given(st.integers(2, 5).flatmap(lambda n: st.lists(st.tuples(*[cells] * n), max_size=5)), st.integers(40, 120))
def test_every_row_has_a_cell_for_every_column(rows: list[tuple[str, ...]], width: int) -> None:
    titles = tuple(f"column {n}" for n in range(len(rows[0]) if rows else 2))
    section = table_section(Table("T", titles, tuple(rows)), width)
    assert sum(column.width + 1 for column in section.columns) - 1 <= width
    assert all(len(row.cells) == len(section.columns) for row in section.rows)
    assert len({row.key for row in section.rows}) == len(section.rows)

"""Results of an experiment whose sections are the tables of its report."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from console.export import content
from console.findings import FIRST, SECTIONS, WHOLE, Report, sections_of
from console.widgets.results import labels
from results.table import Table

TABLES = (
    Table("Policies", ("policy", "TTFT p90, ms"), (("lmetric", "412"), ("sticky, 2", '1"9'))),
    Table("Differences", ("policy", "verdict"), (("sticky", "slower"),), note="paired by turn"),
)
REPORT = Report("Two policies.", TABLES, ("nothing about a GPU",))


def test_every_table_is_a_section_and_the_whole_report_the_last() -> None:
    assert list(sections_of(REPORT, "routing").items()) == [
        ("table-1", "Policies"), ("table-2", "Differences"), (WHOLE, "Report")
    ]  # fmt: skip


def test_the_section_that_is_open_before_the_analysis_is_there_after_it() -> None:
    before = sections_of(None, "routing")
    assert next(iter(before)) == FIRST in sections_of(REPORT, "routing")
    assert WHOLE in before
    assert sections_of(None, "connector-tax") is SECTIONS


def test_a_table_is_saved_as_csv_and_the_report_as_markdown() -> None:
    ending, data = content(REPORT, "table-1")
    assert ending == "csv"
    assert [tuple(row) for row in csv.reader(io.StringIO(data.decode()))] == [TABLES[0].columns, *TABLES[0].rows]
    ending, data = content(REPORT, WHOLE)
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

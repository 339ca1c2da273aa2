"""A spreadsheet that opens a CSV file of ours executes nothing."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from results.report.csv_cells import escape_formula, escape_formulas
from results.report.output import write_frame


@pytest.mark.parametrize(
    "text",
    [
        "=1+1", "@SUM(A1)", "+cmd", "-cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", '-1+HYPERLINK("http://x")',
        "\t=1", "\n=1", "'=1", "''@x", "'plain", "-", "- (needs 36)", "-3.2 % [-5.0, -1.0]", "+12 %", "-0.5", "+.5",
        "-inf", "plain", "a=b", "",
    ],
)  # fmt: skip
def test_what_begins_as_a_formula_is_escaped_and_no_number(text: str) -> None:
    first = text.lstrip("'")[:1]
    is_formula = (first != "" and first in "=@\t\n") or "cmd" in text or "HYPERLINK" in text
    assert escape_formula(text) == (f"'{text}" if is_formula else text)


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_texts_are_escaped_in_a_table_and_numbers_and_parquet_are_as_they_were(
    suffix: str, separator: str, tmp_path: Path
) -> None:
    counts = pd.Series([1, None], dtype=object)
    frame = pd.DataFrame({"session": ["=1+1", "plain"], "count": counts, "change": [-0.5, 0.5]})
    write_frame(tmp_path / f"rows.{suffix}", frame)
    rows = [line.split(separator) for line in (tmp_path / f"rows.{suffix}").read_text().splitlines()]
    assert rows == [["session", "count", "change"], ["'=1+1", "1", "-0.5"], ["plain", "", "0.5"]]
    write_frame(tmp_path / "rows.parquet", frame)
    assert pd.read_parquet(tmp_path / "rows.parquet")["session"].tolist() == ["=1+1", "plain"]


def read_back(text: str) -> str:
    """A cell of ours as docs/analysis.md says: a quote before what begins as a formula does is not part of the text."""
    return text[1:] if text.startswith("'") and escape_formula(text[1:]) != text[1:] else text


@given(st.text(st.sampled_from("=+-@\t\r\n'(|.1aé, \""), max_size=8))
@example("x\r=1+1")
@example("-0.5")
@example("'-cmd|x")
def test_a_text_read_back_from_a_csv_file_is_what_it_was(text: str) -> None:
    written = escape_formulas(pd.DataFrame({"name": [text], "change": [-0.5]})).to_csv(index=False)
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert len(rows) == 2
    assert [read_back(rows[1][0]), rows[1][1]] == [re.sub("\r\n?", "\n", text), "-0.5"]


@given(st.floats(-1e300, 1e300), st.integers())
def test_a_number_is_never_escaped(value: float, count: int) -> None:
    for text in (f"{value}", f"{value:g}", f"{value:+.3f}", f"{count}", f"{count:+,}", f"{value:+.1%}"):
        assert escape_formula(text) == text
    written = escape_formulas(pd.DataFrame({"value": [value], "count": pd.Series([count], dtype=object)}))
    cells = next(csv.reader([written.to_csv(index=False).splitlines()[1]]))
    assert (float(cells[0]), int(cells[1])) == (value, count)

"""A spreadsheet that opens a CSV file of ours executes nothing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from results.report.csv_cells import escape_formula
from results.report.output import write_frame


@pytest.mark.parametrize(
    "text",
    [
        "=1+1", "@SUM(A1)", "+cmd", "-cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", '-1+HYPERLINK("http://x")',
        "\t=1", "-", "- (needs 36)", "-3.2 % [-5.0, -1.0]", "+12 %", "-0.5", "+.5", "-inf", "plain", "a=b", "",
    ],
)  # fmt: skip
def test_what_begins_as_a_formula_is_escaped_and_no_number(text: str) -> None:
    is_formula = text[:1] in ("=", "@", "\t") or "cmd" in text or "HYPERLINK" in text
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

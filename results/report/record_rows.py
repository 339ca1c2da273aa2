"""Declared records as the rows of a table file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pandas as pd


def build_frame(rows: Iterable[object], dtype: type | None = None) -> pd.DataFrame:
    """A row per record, with the columns of `list_columns`. `dtype`: of every column; None = as its values are."""
    return pd.DataFrame([list_columns(row) for row in rows], dtype=dtype)


def list_columns(row: object) -> dict[str, object]:
    """A record's cells by column: a mapping or a record inside it gives one per key or field, what is UNSET none.

    Raises ValueError where two of them have one name: the second would replace the first.
    """
    columns: dict[str, object] = {}
    for name, value in msgspec.to_builtins(row).items():
        cells = value if isinstance(value, dict) else {name: value}
        taken = sorted(columns.keys() & cells.keys())
        if taken:
            raise ValueError(f"{type(row).__name__}.{name} has a column that the row has already: {', '.join(taken)}")
        columns |= cells
    return columns

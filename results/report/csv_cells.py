"""Texts in CSV and TSV files that a spreadsheet would execute: session ids, labels, model names come from outside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"[=@\t\r\n]|[+-](?!inf$|nan$)(?:[^\d.\s(]|.*(?:\||[A-Za-z]\())", re.DOTALL)
"""A text that begins as a formula does. Behind a sign, texts of ours go on with a number, a space or a parenthesis:
they are formulas only where they also call a function or name a program."""


def escape_formula(text: str) -> str:
    """The text with a quote before it if a spreadsheet would execute it, which then shows it as it is."""
    return f"'{text}" if _FORMULA.match(text) else text


def escape_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its headings and texts escaped; columns without a formula stay as they are."""
    escaped: dict[str, Any] = {}
    for name in frame.columns:
        if frame[name].dtype.kind in "OSU":
            cells = frame[name].tolist()
            if any(isinstance(cell, str) and _FORMULA.match(cell) for cell in cells):
                escaped[name] = [escape_formula(cell) if isinstance(cell, str) else cell for cell in cells]
    return frame.assign(**escaped).rename(columns=escape_formula)

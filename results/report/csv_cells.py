"""Texts in CSV and TSV files that a spreadsheet would execute: session ids, labels, model names come from outside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"'*(?:[=@\t\r\n]|[+-](?!inf$|nan$)(?:[^\d.\s(]|.*(?:\||[A-Za-z]\()))", re.DOTALL)
"""A text that begins as a formula does. Behind a sign, texts of ours go on with a number, a space or a parenthesis:
they are formulas only where they also call a function or name a program. A formula behind quotes gets one more, so that
taking one away restores every text."""


def escape_formula(text: str) -> str:
    """The text with a quote before it if a spreadsheet would execute it, which then shows it as it is.

    A carriage return becomes a newline: writers quote that, but not the return, behind which a new row would begin.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if _FORMULA.match(text) else text


def escape_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its headings and texts escaped; columns that need no change stay as they are."""
    escaped: dict[str, Any] = {}
    for name in frame.columns:
        if frame[name].dtype.kind in "OSU":
            cells = frame[name].tolist()
            safe = [escape_formula(cell) if isinstance(cell, str) else cell for cell in cells]
            if any(one is not other for one, other in zip(safe, cells, strict=True)):
                escaped[name] = safe
    return frame.assign(**escaped).rename(columns=escape_formula)

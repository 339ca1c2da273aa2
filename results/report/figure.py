"""A figure before it is drawn: its numbers and its caption, or why it cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from results.report.ink import Pen

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True, slots=True)
class Figure:
    number: int
    """Unique in its report; figures are in this order."""
    title: str
    caption: str = ""
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Every number drawn, one row per mark; units in the column names."""
    lines: Mapping[str, float] = field(default_factory=dict)
    """Values drawn as reference lines, by name: reference rates (req/s), thresholds."""
    pens: Mapping[str, Pen] = field(default_factory=dict)
    """How each name of the table is drawn, where that depends on more than this figure."""
    missing: str = ""
    """Why it cannot be drawn; empty where it can."""
    name: str = ""
    """What its specification calls it, e.g. `4a`; empty = by its number."""
    beside: pd.DataFrame | None = None
    """The rows that are drawn beside a page's text; None = all."""

    @property
    def label(self) -> str:
        """As the report names it."""
        return self.name or str(self.number)

    @property
    def stem(self) -> str:
        """Name of its files without suffix."""
        return f"figure_{self.label}"


def has_values(table: pd.DataFrame, name: str = "value") -> bool:
    """Whether the column has a number."""
    return not table.empty and not table[name].isna().all()


def join_range(numbers: Iterable[int]) -> str:
    """`3`, or `1 to 3`; empty where there is none."""
    known = set(numbers)
    return " to ".join(str(number) for number in sorted({min(known), max(known)})) if known else ""


Drawers = Mapping[int, "Callable[[Figure], Drawing]"]
"""By figure number."""

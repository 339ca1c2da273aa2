"""Values and differences as the cells of a table, and as the marks of a figure."""

from __future__ import annotations

import pandas as pd

from results.routing.metrics import Metric
from results.statistics import LEVEL, Estimate
from results.table import NOT_MEASURED
from results.tax import Verdict, verdict_of


def headed(measure: Metric) -> str:
    """A metric as a column's head, with its unit."""
    return f"{measure.title} {measure.shown_unit}".strip()


def shown(found: Estimate, measure: Metric) -> str:
    """A value in the metric's unit, with its interval."""
    return found.text(3, measure.scale)


def difference(found: Estimate | None, measure: Metric) -> str:
    """A difference in the metric's unit, marked where it is not distinguishable from none."""
    if found is None or found.value is None:
        return NOT_MEASURED
    digits = ".2f" if measure.unit == "x" else ".1f" if measure.unit in ("share", "ms") else ".3f"
    text = f"{found.value * measure.scale:+{digits}}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low * measure.scale:+{digits}}, {found.high * measure.scale:+{digits}}]"
    marks = {None: " (no interval)", Verdict.NOT_DISTINGUISHABLE: " n.d."}
    return text + marks.get(verdict_of(found), "")


def numbers(found: Estimate) -> dict[str, object]:
    """An estimate as columns of the table beside a figure."""
    return {
        "value": found.value, "low": found.low, "high": found.high, "n": found.n, "basis": found.basis or "",
        "reason": found.reason or "",
    }  # fmt: skip


def bars(table: pd.DataFrame) -> str:
    """What a caption says of the intervals in that table."""
    kinds = [kind for kind in dict.fromkeys(table["basis"].fillna("")) if kind]
    return f"Bars: {LEVEL:.0%} intervals ({'; '.join(kinds)}). " if kinds else "No bars: no interval. "

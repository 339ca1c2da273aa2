"""Values and differences as the cells of a table, and as the marks of a figure."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from results.report.table import NOT_MEASURED
from results.routing.measure import RESAMPLED
from results.routing.metrics import Metric
from results.routing.pairs import Pair
from results.statistics.estimates import LEVEL, Estimate
from results.statistics.judgement import judged

ND = " n.d."
WITHIN = " (within launches)"
"""Marks of a difference: not distinguishable; distinguishable within one or two launches, which is no verdict."""


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
    return text + mark(found, 0.0)


def ratio(pair: Pair | None) -> str:
    """A ratio of times, marked as a difference is; also where all trials agree although 1 is inside."""
    found = None if pair is None else pair.ratio
    if pair is None or found is None or found.value is None:
        return NOT_MEASURED
    trials = pair.higher_in + pair.lower_in
    agreed = "higher" if pair.higher_in == trials else "lower" if pair.lower_in == trials else ""
    sign = mark(found, 1.0)
    return found.text(3) + sign + (f", {agreed} in all {trials}" if sign == ND and agreed and trials > 1 else "")


def mark(found: Estimate, none: float) -> str:
    """What to hold of an interval around no difference (`none`)."""
    if found.low is None or found.high is None:
        return " (no interval)"
    if found.low <= none <= found.high:
        return ND
    return WITHIN if judged(found, none) is None else ""


def cut(found: Iterable[Estimate]) -> str:
    """What a table's note says where one of its intervals was cut at zero; else empty."""
    reached = any(one.low == 0 and one.value and not (one.basis or RESAMPLED).startswith(RESAMPLED) for one in found)
    return " A lower bound of 0 is cut there: Student's t over so few trials reaches below it." if reached else ""


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


def reaching_zero(table: pd.DataFrame) -> str:
    """What a caption says where an interval in that table was cut at zero; else empty."""
    return "A bar that reaches the left edge was cut at 0. " if (table["low"] == 0).any() else ""

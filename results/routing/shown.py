"""Values and differences as the cells of a table, and as the marks of a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pandas as pd

from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.routing.analyze import RoutingAnalysis
from results.routing.measurements import RESAMPLED
from results.routing.metrics import Metric, find_metric
from results.routing.pairs import Pair
from results.statistics.estimates import BINOMIAL, LEVEL
from results.statistics.judgement import judged
from results.statistics.trials import SPREAD

ND = " n.d."
WITHIN = " (within launches)"
"""Marks of a difference: not distinguishable; distinguishable within one or two launches only, which is no verdict."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TableKind(Generic[Row]):
    """A table whose title, columns and note are the same in every report."""

    title: str
    rows: Callable[[RoutingAnalysis], Iterable[Row]]
    columns: tuple[Column[Row], ...]
    note: str = ""

    def build(self, analysis: RoutingAnalysis) -> Table:
        return make_table(self.title, self.columns, self.rows(analysis), self.note)


POLICY: Column[str] = Column("policy", str)
"""First column of a table with a row per label."""


def make_metric_column(analysis: RoutingAnalysis, name: str, heading: str = "") -> Column[str]:
    """A metric of each label, with its interval. `heading`: empty = the metric's own."""
    metric = find_metric(name)
    return Column(heading or metric.heading, lambda label: analysis.value(label, name), digits=3, scale=metric.scale)


def make_percent_column(name: str, value: Callable[[Row], Estimate]) -> Column[Row]:
    return Column(name, value, "%", 3, 100)


def make_ms_column(name: str, value: Callable[[Row], Estimate]) -> Column[Row]:
    return Column(name, value, "ms", 3, 1e3)


def make_table_with_cut_note(title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], note: str = "") -> Table:
    """As `make_table`; the note says where one of its intervals was cut at zero."""
    values = (column.value(row) for row in rows for column in columns)
    note += note_cut(value for value in values if isinstance(value, Estimate))
    return make_table(title, columns, rows, note.strip())


def note_cut(estimates: Iterable[Estimate]) -> str:
    """What a table's note says where one of its intervals was cut at zero; else empty."""
    for one in estimates:
        if one.low == 0 and one.value and not (one.basis or RESAMPLED).startswith(RESAMPLED):
            return " A lower bound of 0 is cut there: Student's t over so few trials reaches below it."
    return ""


def state_basis_or_reason(estimate: Estimate) -> str | None:
    """What its interval holds, or why there is none."""
    return estimate.basis or estimate.reason or None


def join_bases(estimates: Iterable[Estimate]) -> str | None:
    return "; ".join(dict.fromkeys(one.basis for one in estimates if one.basis)) or None


def format_difference(difference: Estimate | None, metric: Metric) -> str:
    """In the metric's unit, marked where it is not distinguishable from none."""
    if difference is None or difference.value is None:
        return NOT_MEASURED
    digits = {"x": ".2f", "share": ".1f", "ms": ".1f"}.get(metric.unit, ".3f")
    text = f"{difference.value * metric.scale:+{digits}}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low * metric.scale:+{digits}}, {difference.high * metric.scale:+{digits}}]"
    return text + mark_interval(difference, 0.0)


def format_ratio(pair: Pair | None) -> str:
    """A ratio of times, marked as a difference is; also where all trials agree although 1 is inside."""
    if pair is None or pair.ratio is None or pair.ratio.value is None:
        return NOT_MEASURED
    trials = pair.higher_in + pair.lower_in
    mark = mark_interval(pair.ratio, 1.0)
    text = pair.ratio.text(3) + mark
    for side, count in (("higher", pair.higher_in), ("lower", pair.lower_in)):
        if mark == ND and count == trials > 1:
            text += f", {side} in all {trials}"
    return text


def mark_interval(estimate: Estimate, none: float) -> str:
    """The mark of an interval; `none`: the value of no difference."""
    if estimate.low is None or estimate.high is None:
        return " (no interval)"
    if estimate.low <= none <= estimate.high:
        return ND
    return WITHIN if judged(estimate, none) is None else ""


def estimate_columns(estimate: Estimate) -> dict[str, object]:
    """An estimate as columns of the table beside a figure."""
    return {
        "value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n,
        "basis": estimate.basis or "", "reason": estimate.reason or "",
    }  # fmt: skip


def describe_bars(table: pd.DataFrame, marks: str = "Bars") -> str:
    """What a caption says of the bars in that table: intervals between trials, of counts, or a spread within them."""
    kinds = [str(kind) for kind in dict.fromkeys(table[table["low"].notna()]["basis"]) if kind]
    within = [kind for kind in kinds if kind.startswith(RESAMPLED)]
    counted = [kind for kind in kinds if kind == BINOMIAL]
    between = [kind for kind in kinds if kind not in (*within, *counted)]
    named = ((between, "intervals between trials"), (counted, "intervals of counts"), (within, SPREAD))
    texts = [f"{format_percent(LEVEL)} {what} ({'; '.join(of)})" for of, what in named if of]
    return f"{marks}: {', '.join(texts)}. " if texts else f"No {marks.lower()}: no interval. "


def name_units(names: Iterable[str]) -> str:
    """What a caption says of the units of these metrics: `In ms: TTFT p50, TTFT p90; in %: APC. `"""
    by_unit: dict[str, list[str]] = {}
    for metric in map(find_metric, names):
        by_unit.setdefault(metric.shown_unit or "x", []).append(metric.title)
    texts = "; ".join(f"in {unit}: {', '.join(titles)}" for unit, titles in by_unit.items())
    return f"{texts[:1].upper()}{texts[1:]}. "

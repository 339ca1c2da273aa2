"""The causal anchor of a tax: the part that the connector's callbacks can account for, and what vLLM changed.

A tax is measured from outside. The callbacks of a connector are measured inside the step. Their sum as a share of
plain's step bounds what they can add to TPOT, which consists of steps. The mean is given beside the median, because
work in a few steps does not move a median. TTFT consists of a few steps with prefill tokens, so their share counts too.
All timed callbacks count, `wait_for_save` too, which the specification's sum leaves out: LMCache copies each prompt's
KV into its store there. A tax beyond these shares, of a config for which vLLM changed nothing, has no known cause: it
may be noise, a queue, or something that is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.engine_changes import EngineChange
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import RATIOS, TITLES, Metric, TaxRow
from results.measures.step_durations import ALL_CALLBACKS, whole_step
from results.measures.summary import name_percentile
from results.records.percent import format_percent
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.statistics.estimates import divide
from results.statistics.judgement import explain_few_launches

PREFILL_MEAN = "prefill_mean"


class Cause(StrEnum):
    """What may account for a tax."""

    CALLBACKS = "callbacks may account for it"
    """The interval overlaps the range from zero to the callbacks' share of a step."""
    CHANGES = "beyond its callbacks; vLLM changed the engine"
    NOT_ATTRIBUTABLE = "not attributable"
    """The whole interval is beyond that range, and vLLM changed nothing for the config."""
    UNDECIDED = "undecided"
    OPEN = "open"
    """There is no tax, or the callbacks were not timed."""


@dataclass(frozen=True, slots=True)
class CallbackShares:
    """A config's callbacks at one load, and whether they account for its tax there."""

    callbacks_p50_us: float | None
    """Median of the config's callbacks in a step."""
    callbacks_mean_us: float | None
    """Their mean."""
    step: str
    """The series of plain's step."""
    plain_step_p50_us: float | None
    """Its median."""
    plain_step_mean_us: float | None
    """Its mean."""
    share_p50: float | None
    """Callbacks over plain's step, medians; 0.004 = 0.4 %."""
    share_mean: float | None
    """The same of the means."""
    share_prefill: float | None
    """Means over the steps that hold prefill tokens; bounds a tax of TTFT alone."""
    changed: tuple[str, ...]
    """What vLLM changed for the config."""
    cause: Cause
    """What may account for the tax."""
    reason: str
    """Why this cause, in numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution(CallbackShares):
    """One tax beside the config's callbacks at the same load."""

    row: TaxRow

    @property
    def reach(self) -> float | None:
        """The largest share that can account for the tax; None = not known."""
        shares = {"p50": self.share_p50, "mean": self.share_mean, PREFILL_MEAN: self.share_prefill}
        return _find_reach(self.row.metric, shares)


def attribute_taxes(
    taxes: Sequence[TaxRow], cells: Sequence[CellSummary], changes: Sequence[EngineChange]
) -> tuple[Attribution, ...]:
    """Every latency tax with its anchor, in the order of the taxes."""
    of_config = {change.config: change for change in changes}
    step = whole_step(cell.step_timing for cell in cells)
    return tuple(_attribute(row, cells, step, of_config.get(row.config)) for row in taxes if row.metric in RATIOS)


def _attribute(row: TaxRow, cells: Sequence[CellSummary], step: str, change: EngineChange | None) -> Attribution:
    load = (row.phase, row.rate_per_s, row.shape)
    here = [cell for cell in cells if (cell.phase, cell.rate_per_s, cell.shape) == load and not cell.degraded]
    own = [cell for cell in here if cell.config == row.config]
    plain = [cell for cell in here if cell.config in (BASELINE, REPEAT)]
    points = ("p50", "mean", PREFILL_MEAN)
    callbacks = {point: _average_over_launches(own, ALL_CALLBACKS, point) for point in points}
    steps = {point: _average_over_launches(plain, step, point) for point in points}
    shares = {point: divide(callbacks[point], steps[point]) for point in points}
    change = change or EngineChange(row.config, {}, (), "not recorded")
    cause, reason = _find_cause(row, shares, change, _explain_untimed(own, plain, step))
    return Attribution(
        row=row,
        callbacks_p50_us=callbacks["p50"],
        callbacks_mean_us=callbacks["mean"],
        step=step,
        plain_step_p50_us=steps["p50"],
        plain_step_mean_us=steps["mean"],
        share_p50=shares["p50"],
        share_mean=shares["mean"],
        share_prefill=shares[PREFILL_MEAN],
        changed=change.changed,
        cause=cause,
        reason=reason,
    )


def _find_reach(metric: Metric, shares: Mapping[str, float | None]) -> float | None:
    """The largest share that can account for a tax; None = not known."""
    points = ("p50", "mean", PREFILL_MEAN) if metric == Metric.TTFT_P90 else ("p50", "mean")
    return max((share for point in points if (share := shares[point]) is not None), default=None)


def _average_over_launches(cells: Sequence[CellSummary], series: str, point: str) -> float | None:
    values = [cell.value(name_percentile(series, point)) for cell in cells]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _explain_untimed(own: Sequence[CellSummary], plain: Sequence[CellSummary], step: str) -> str:
    for cells, series, whose in ((own, ALL_CALLBACKS, "its callbacks"), (plain, step, f"{BASELINE}'s steps")):
        if not cells:
            return f"{whose} were not measured at this load"
        if _average_over_launches(cells, series, "mean") is None:
            return f"{whose}: {cells[0].estimate(name_percentile(series, 'mean')).reason}"
    return ""


def _find_cause(
    row: TaxRow, shares: Mapping[str, float | None], change: EngineChange, untimed: str
) -> tuple[Cause, str]:
    tax = row.estimate
    if tax.value is None:
        return Cause.OPEN, tax.reason or "there is no tax"
    if untimed:
        return Cause.OPEN, untimed
    if tax.low is None or tax.high is None or explain_few_launches(tax.launches):
        return Cause.UNDECIDED, row.withheld or explain_few_launches(
            tax.launches
        ) or tax.reason or "the tax has no interval"
    reach = _find_reach(row.metric, shares)
    if reach is None:
        return Cause.OPEN, f"callbacks and steps of {BASELINE} have no common measure at this load"
    callbacks = format_percent(reach, 2)
    if tax.low <= reach and tax.high >= 0:
        return Cause.CALLBACKS, f"callbacks are up to {callbacks} of a step of {BASELINE}"
    if change.changed:
        return Cause.CHANGES, "; ".join(change.changed)
    if tax.low > reach and row.metric == Metric.TTFT_P90 and shares[PREFILL_MEAN] is None:
        why = f"above the {callbacks} of a step on average, but the share of the prefill steps alone is not known"
        return Cause.UNDECIDED, why
    beyond = "above" if tax.low > reach else "below zero, and so outside"
    where = f"the interval is {beyond} the {callbacks} of a step that its callbacks take"
    if change.reason:
        return Cause.UNDECIDED, f"{where}; the settings that vLLM chose are unknown: {change.reason}"
    return Cause.NOT_ATTRIBUTABLE, where


def make_attribution_table(rows: Sequence[Attribution]) -> Table:
    step = rows[0].step if rows else ""
    once = {(one.row.rate_per_s, one.row.shape, one.row.config, one.row.metric): one for one in reversed(rows)}
    note = (
        "Callbacks: build_connector_meta, get_finished, start_load_kv and wait_for_save of a step; `tax_callback` has "
        f"the first three alone, as specified. Plain's step is `{step}`"
        f"{' because steps overlap' if step == 'period_us' else ''}. Of prefill: the same means over the steps that "
        "hold prefill tokens, which TTFT is made of. Under load a queue multiplies what a step costs, which no share "
        "of a step shows. A load that two phases share has one row."
    )
    shown = [one for one in rows if once[one.row.rate_per_s, one.row.shape, one.row.config, one.row.metric] is one]
    return make_table("What of a tax its callbacks can account for", ATTRIBUTION_COLUMNS, shown, note)


def _format_share(share: float | None) -> str:
    return NOT_MEASURED if share is None else format_percent(share, 2)


ATTRIBUTION_COLUMNS: tuple[Column[Attribution], ...] = (
    Column("reference", lambda one: one.row.reference),
    Column("req/s", lambda one: one.row.rate_per_s, form="g"),
    Column("shape", lambda one: str(one.row.shape)),
    Column("config", lambda one: one.row.config),
    Column("tax of", lambda one: TITLES[one.row.metric]),
    Column("tax", lambda one: one.row.estimate.percent()),
    Column("callbacks p50", lambda one: one.callbacks_p50_us, "us", digits=3),
    Column("mean", lambda one: one.callbacks_mean_us, "us", digits=3),
    Column("plain's step p50", lambda one: one.plain_step_p50_us, "us", form=".0f"),
    Column("of its p50", lambda one: _format_share(one.share_p50)),
    Column("of its mean", lambda one: _format_share(one.share_mean)),
    Column("of prefill", lambda one: _format_share(one.share_prefill)),
    Column("cause", lambda one: str(one.cause)),
    Column("why", lambda one: one.reason),
)

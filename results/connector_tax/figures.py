"""Figures 1 to 8 of specs/connector_tax, and the numbers of those of the substrate tax: 4, 5, 7 and 8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from results.connector_tax.analyze import Analysis
from results.connector_tax.combined_taxes import (
    ADDITIVE_WITHIN,
    FRAMEWORK,
    LMCACHE,
    MOONCAKE,
    MULTI,
    Additivity,
    Decomposition,
)
from results.connector_tax.configs import BASELINE, rank_config
from results.connector_tax.curve_figures import (
    describe_launches,
    describe_reference,
    make_latency_by_rate,
    make_step_cdf,
    make_throughput_by_rate,
    name_absent,
)
from results.connector_tax.read import read_step_samples
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import OWN_RATE, RATIOS, Metric, TaxRow
from results.measures.step_durations import STEP_SERIES
from results.measures.summary import make_bounded_columns
from results.records.errors import ArtifactError
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE
from results.report.figure import Figure, has_values
from results.report.terms import term
from results.statistics.estimates import LEVEL, Samples
from results.statistics.judgement import Verdict
from results.statistics.trials import MIN_PAIRED, SPREAD

PARTS = (MOONCAKE, LMCACHE)
WHOLE = MULTI
SUM = " + ".join(PARTS)


def _are_few(estimates: Iterable[Estimate]) -> bool:
    """Whether all that were measured come from too few launches."""
    return all(one.launches < MIN_PAIRED for one in estimates if one.value is not None)


def _describe_bounds(estimates: Iterable[Estimate], *, alone: bool = False) -> str:
    """What the thin bars show: an interval between launches, or the spread of too few launches.

    `alone`: the intervals hold by themselves, but the marks for all configs together.
    """
    known = [one for one in estimates if one.value is not None]
    launches = describe_launches(one.launches for one in known)
    if _are_few(known):
        return (
            f"Bars span the {format_percent(LEVEL)} spread within the launch ({launches}): fewer than {MIN_PAIRED} "
            "launches give no verdict."
        )
    if alone:
        return (
            f"Bars span the {format_percent(LEVEL)} interval of each number by itself ({launches}). A tax that is not "
            "distinguishable from zero where all configs are judged together (figure 4) is marked n.d., also where its "
            f"own bar leaves zero out; one of fewer than {MIN_PAIRED} launches, whose bar is the spread within them, "
            "no verdict."
        )
    return (
        f"Bars span the {format_percent(LEVEL)} interval between launches ({launches}); a tax whose interval covers "
        "zero is marked n.d. (not distinguishable), one of fewer than "
        f"{MIN_PAIRED} launches, whose bar is the spread within them, no verdict."
    )


def _note_withheld(rows: Iterable[TaxRow]) -> str:
    why = next((row.withheld for row in rows if row.estimate.value is not None and row.withheld), "")
    return f" No verdict: {why}." if why else ""


def make_tax_bars(analysis: Analysis) -> Figure:
    title = "Substrate tax at both reference rates"
    rows = [row for row in analysis.taxes if row.phase == "A" and row.metric in RATIOS]
    table = _make_tax_frame(rows)
    if not has_values(table, "tax"):
        return Figure(4, title, missing=_explain_no_tax(analysis, rows))
    bounds = _describe_bounds(row.estimate for row in rows)
    rates = {analysis.rates.ref_safe_per_s, analysis.rates.ref_load_per_s}
    same = " Both reference rates are the same here, so both bars are of the same cells." if len(rates) == 1 else ""
    caption = (
        "TTFT p90 and TPOT p90 of each config over those of plain, minus one (in %), at "
        f"{describe_reference(analysis, REF_SAFE)} "
        f"and, pale, {describe_reference(analysis, REF_LOAD)}. {bounds} What queueing adds to the tax is the "
        'difference between the two bars: with its interval in the table "Amplification by load". A hatched bar is of '
        "a config or a plain that is saturated at that rate: it holds its queue. A bar that would flatten the others "
        f"is cut, with its numbers at the edge.{same}{name_absent(analysis)}"
    )
    return Figure(4, title, caption, table)


def make_shape_heatmaps(analysis: Analysis) -> Figure:
    rows = [row for row in analysis.taxes if row.phase == "B" and row.metric == Metric.TTFT_P90]
    own = {row.shape: row.rate_per_s for row in rows if row.reference == OWN_RATE}
    title = "TTFT p90 tax by shape" if own else "TTFT p90 tax by shape at ref_safe"
    table = _make_tax_frame(rows)
    if not has_values(table, "tax"):
        return Figure(5, title, missing=_explain_no_tax(analysis, rows, "B"))
    rates = " and ".join(f"{rate:g}" for rate in sorted({row.rate_per_s for row in rows} - set(own.values())))
    apart = "".join(f" ({shape} at {rate:g} req/s)" for shape, rate in own.items())
    launches = describe_launches(row.estimate.launches for row in rows if row.estimate.value is not None)
    caption = (
        f"TTFT p90 over that of plain at the same shape, minus one (in %), at {rates} req/s{apart}; {launches}. Orange "
        "is more than plain, purple less, white none; parentheses hold a tax not distinguishable from zero. Hatched: "
        "the config or plain is saturated there, and the colors are scaled without it. The table has the bounds."
        f"{_note_withheld(rows)}{name_absent(analysis)}"
    )
    return Figure(5, title, caption, table)


def make_decomposition_figure(analysis: Analysis) -> Figure:
    """Figure 7: the latencies as the report decomposes them, and the engine step where it was timed."""
    title = "Tax at ref_safe: the framework's part and the connector's own"
    known = [split for split in analysis.decomposition if split.implementation.value is not None]
    latencies = [split for split in known if split.metric in RATIOS]
    if not latencies:
        reasons = [split.implementation.reason for split in analysis.decomposition if split.implementation.reason]
        why = reasons[0] if reasons else _explain_config_without_tax(analysis, FRAMEWORK)
        return Figure(7, title, missing=f"the framework's part is the tax of {FRAMEWORK}: {why}")
    splits = sorted(known, key=lambda split: (str(split.metric), rank_config(split.config)))
    table = pd.DataFrame([_split_row(split) for split in splits])
    few = _are_few(split.total for split in latencies)
    kind = SPREAD if few else "interval between launches, by itself"
    launches = describe_launches(split.total.launches for split in latencies if split.total.value is not None)
    caption = (
        f"Framework = {term('framework cost').meaning}, whose hooks do nothing; connector = "
        f"{term('implementation cost').meaning}, at {describe_reference(analysis, REF_SAFE)}; they add up to the whole "
        f"tax. Side by side, each with its {format_percent(LEVEL)} {kind} ({launches}), as a stack would hide parts of "
        f"opposite sign. The split assumes that the framework costs every config what it costs {FRAMEWORK}."
        f"{'' if len(known) > len(latencies) else ' No panel of the engine step: no step timing.'}"
        f"{name_absent(analysis)}"
    )
    return Figure(7, title, caption.strip(), table)


def make_additivity_figure(analysis: Analysis) -> Figure:
    title = "Do the taxes of stacked connectors add up? (H4, at ref_safe)"
    sums = [row for row in analysis.additivity if None not in (row.total.value, row.multi.value)]
    if not sums:
        why = next((row.reason for row in analysis.additivity if row.reason), "") or _explain_unsummed(analysis)
        return Figure(8, title, missing=f"it needs the taxes of {', '.join(PARTS)} and {WHOLE}: {why}")
    table = pd.DataFrame([line for row in sums for line in _sum_rows(row, analysis.taxes)])
    outcome = "; ".join(f"{row.metric}: {row.verdict}{f' ({row.reason})' if row.reason else ''}" for row in sums)
    caption = (
        f"Taxes of {PARTS[0]}, of {PARTS[1]} and of both stacked in a MultiConnector, at "
        f"{describe_reference(analysis, REF_SAFE)}; the white bar is the sum of the first two. "
        f"{_describe_bounds((row.multi for row in sums), alone=True)} The shaded band is the measured tax of the stack "
        f"+- {format_percent(ADDITIVE_WITHIN)} of itself: the specification calls a sum inside it linear. {outcome}."
    )
    return Figure(8, title, caption, table)


def _split_row(split: Decomposition) -> dict[str, object]:
    return {
        "metric": str(split.metric),
        "config": split.config,
        **make_bounded_columns("framework", split.framework),
        **make_bounded_columns("connector", split.implementation),
        "tax": split.total.value,
        "low": split.total.low,
        "high": split.total.high,
    }


def _sum_rows(row: Additivity, taxes: Sequence[TaxRow]) -> list[dict[str, object]]:
    """The three measured taxes with their verdicts, and the sum of two, which has none."""
    verdicts = {
        tax.config: tax.verdict
        for tax in taxes
        if (tax.phase, tax.reference, tax.metric) == ("A", REF_SAFE, row.metric)
    }
    measured = zip((*PARTS, SUM, WHOLE), (row.mooncake, row.lmcache, row.total, row.multi), strict=True)
    return [
        {
            "metric": str(row.metric),
            "config": config,
            "tax": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "launches": estimate.launches,
            "verdict": str(verdicts.get(config) or ""),
            "relative_excess": row.relative_excess.value,
            "additivity": str(row.verdict),
        }
        for config, estimate in measured
    ]


def _explain_unsummed(analysis: Analysis) -> str:
    """Why each of the three configs that has no tax at ref_safe has none."""
    measured = {row.config for row in analysis.taxes if row.estimate.value is not None and row.reference == REF_SAFE}
    lacking = (config for config in (*PARTS, WHOLE) if config not in measured)
    return "; ".join(f"{config}: {_explain_config_without_tax(analysis, config)}" for config in lacking)


def _make_tax_frame(rows: Iterable[TaxRow]) -> pd.DataFrame:
    ordered = sorted(
        rows, key=lambda row: (row.reference == REF_LOAD, str(row.metric), rank_config(row.config), row.shape)
    )
    return pd.DataFrame([_make_tax_row(row) for row in ordered])


def _make_tax_row(row: TaxRow) -> dict[str, object]:
    estimate = row.estimate
    return {
        "reference": row.reference,
        "rate_per_s": row.rate_per_s,
        "input_tokens": row.shape.input_tokens,
        "output_tokens": row.shape.output_tokens,
        "config": row.config,
        "metric": str(row.metric),
        "tax": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": estimate.n,
        "launches": estimate.launches,
        "verdict": "" if row.verdict is None else str(row.verdict),
        "withheld": row.withheld,
        "reason": estimate.reason or "",
        "saturated": bool(row.saturated),
    }


def _explain_no_tax(analysis: Analysis, rows: Sequence[TaxRow], phase: str = "A") -> str:
    reasons = dict.fromkeys(row.estimate.reason for row in rows if row.estimate.reason)
    if reasons:
        return "; ".join(map(str, reasons))
    if not any(cell.config == BASELINE for cell in analysis.cells):
        return f"{BASELINE} was not measured: there is nothing to compare with"
    if not any(cell.phase == phase and cell.config != BASELINE for cell in analysis.cells):
        return f"no cell of Phase {phase} was measured for a config other than {BASELINE}.{name_absent(analysis)}"
    return f"{describe_reference(analysis, REF_SAFE)}; {describe_reference(analysis, REF_LOAD)}"


def _explain_config_without_tax(analysis: Analysis, config: str) -> str:
    decision = analysis.decisions.get(config)
    if decision is not None and not decision.included:
        return f"SKIP: {decision.reason}"
    reasons = [row.estimate.reason for row in analysis.taxes if row.config == config and row.estimate.reason]
    if reasons:
        return str(reasons[0])
    if analysis.rates.ref_safe_per_s is None:
        return f"there is no ref_safe: {analysis.rates.ref_safe_reason}"
    return "it was not measured"


def is_distinguishable(verdict: str) -> bool:
    """Whether a verdict of the table says that there is a difference."""
    return verdict in (str(Verdict.HIGHER), str(Verdict.LOWER))


def build_figures(analysis: Analysis, root: Path) -> tuple[Figure, ...]:
    """Figures 1 to 8 of the run folder `root`, including those that cannot be drawn; nothing is written."""

    def steps_of(cell: CellSummary) -> Mapping[str, Samples]:
        try:
            return read_step_samples(root / cell.path)
        except ArtifactError:  # the cell's record was removed since the analysis
            return dict.fromkeys(STEP_SERIES, np.empty(0))

    return (
        make_latency_by_rate(analysis, 1, "TTFT"),
        make_latency_by_rate(analysis, 2, "TPOT"),
        make_throughput_by_rate(analysis),
        make_tax_bars(analysis),
        make_shape_heatmaps(analysis),
        make_step_cdf(analysis, steps_of),
        make_decomposition_figure(analysis),
        make_additivity_figure(analysis),
    )

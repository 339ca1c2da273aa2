"""The numbers of the figures of a lifecycle run: the five analyzes of specs/pd_lifecycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from results.measures.summary import make_bounded_columns
from results.pd_lifecycle.analyze import LifecycleAnalysis
from results.pd_lifecycle.bandwidth_curve import Knee
from results.pd_lifecycle.cost_model import CostModel
from results.pd_lifecycle.overheads import COMBINED_ENGINE, PLAIN_ENGINE, SIGN_FIELD, BreakEven
from results.pd_lifecycle.summary import collect_config_values
from results.pd_lifecycle.transfer_regression import collect_transfers
from results.records.estimate import Estimate
from results.records.lifecycle import HANDSHAKE, PHASES, LifecycleRecord, list_phase_parts
from results.records.percent import format_percent
from results.report.figure import Figure
from results.report.table import format_or_reason
from results.report.terms import term
from results.statistics.estimates import LEVEL
from results.statistics.trials import MIN_PAIRED, SPREAD

BREAKDOWN, BANDWIDTH, COST, OVERHEAD, VOLUME = 1, 2, 3, 4, 5
HANDOVER, BESIDE, WHOLE = "end of the prefill to the first token", "whole request without its prefill", "whole request"
"""The panels of figure 1's rows."""
WEIGHTED, UNWEIGHTED = "weighted by 1 / fitted^2", "ordinary least squares"
"""Names of the fits, in tables and figures."""
POINT, MEDIAN, MODEL, ORDINARY = "transfer", "median", "model", "ordinary"
"""Kinds of rows in figures 2 and 3."""
_LEFT_OUT = {HANDOVER: {*PHASES[: PHASES.index(HANDSHAKE)], "d_decode"}, BESIDE: {"p_prefill"}, WHOLE: set[str]()}
"""Phases that a panel does not show."""
_CURVE_POINTS = 60
_NO_RECORD = "no request counts"


def build_figures(analysis: LifecycleAnalysis) -> tuple[Figure, ...]:
    """Every figure in order; one that cannot be drawn holds its reason."""
    builders = (make_phases_figure, make_bandwidth_figure, make_cost_figure, make_overhead_figure, make_volume_figure)
    return tuple(build(analysis) for build in builders)


def make_phases_figure(analysis: LifecycleAnalysis) -> Figure:
    title = "What a request's time is made of, by new tokens"
    rows = [row for panel in (HANDOVER, BESIDE, WHOLE) for row in _stack_rows(analysis, panel)]
    if not rows:
        return Figure(BREAKDOWN, title, missing=_NO_RECORD)
    caption = (
        "Means of the counted repetitions, stacked in their order in time, a row per prior context C. Left: from the "
        "end of the prefill to the first token, over all output lengths, on which it does not depend. Middle: the "
        "request without p_prefill. Right: the whole request. Both have a bar per output length, the shortest first. "
        "metadata_wait and zmq_after_metadata together are the specification's zmq_handshake, t5 - t3. "
        f"{describe_half_step(analysis)}"
    )
    table = pd.DataFrame(rows)
    largest = table[(table["panel"] == HANDOVER) & (table["prior_context"] == table["prior_context"].max())]
    return Figure(BREAKDOWN, title, caption.strip(), table, beside=largest)


def describe_half_step(analysis: LifecycleAnalysis) -> str:
    """The sentence for every output that the setting changes; empty where it is off."""
    if not analysis.settings.subtract_half_step:
        return ""
    return "Half of the decode instance's median step is subtracted from d_promotion."


def _stack_rows(analysis: LifecycleAnalysis, panel: str) -> Iterator[dict[str, object]]:
    groups: dict[tuple[int, int, int | None], list[LifecycleRecord]] = {}
    for record in analysis.compared:
        config = record.config
        length = None if panel == HANDOVER else config.output_length
        groups.setdefault((config.prior_context, config.current_new_tokens, length), []).append(record)
    for (context, size, length), own in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0)):
        values = collect_config_values(own, analysis.launches)
        for name in list_phase_parts(lambda part: values[part].n == values[HANDSHAKE].n > 0):  # noqa: B023 - called at once
            if name not in _LEFT_OUT[panel]:
                yield {
                    "panel": panel, "prior_context": context, "new_tokens": size, "output_length": length,
                    "phase": name, "ms": values[name].value, "low": values[name].low, "high": values[name].high,
                    "n": values[name].n,
                }  # fmt: skip


def make_bandwidth_figure(analysis: LifecycleAnalysis) -> Figure:
    title = "Bandwidth by the size of the transfer"
    transfers, fitted = collect_transfers(analysis.compared), analysis.costs
    if not transfers.n:
        return Figure(BANDWIDTH, title, missing="no counted transfer has a size and a duration")
    single = zip(transfers.bytes, transfers.gbps, strict=True)
    rows = [{"kind": POINT, "bytes": float(size), "gbps": float(value)} for size, value in single]
    rows += [
        {"kind": MEDIAN, "bytes": point.bytes, "gbps": point.gbps.value, "low": point.gbps.low, "high": point.gbps.high}
        for point in fitted.curve
    ]
    knee = fitted.knee
    rows += [{"kind": MODEL, "bytes": x, "gbps": y} for x, y in _compute_curve_points(transfers.bytes, knee)]
    lines = {f"link, {link.source}": link.gbps for link in analysis.links}
    if knee.asymptote_gbps.value is not None:
        lines["asymptote"] = knee.asymptote_gbps.value
    if knee.bytes.value is not None:
        lines["knee"] = knee.bytes.value
    bounds = SPREAD if analysis.launches < MIN_PAIRED else "interval"
    caption = (
        f"Dots: single transfers, {term('write bandwidth').meaning}. Circles: their median for each N, with its "
        f"{format_percent(LEVEL)} {bounds} where there are enough. {_describe_limit(knee)} {describe_link(analysis)}"
    )
    columns = ["kind", "bytes", "gbps", "low", "high"]
    return Figure(BANDWIDTH, title, caption, pd.DataFrame(rows, columns=columns), lines)


def _compute_curve_points(sizes: np.ndarray, knee: Knee) -> list[tuple[float, float]]:
    """(bytes, Gbit/s) along the line with the knee's asymptote."""
    alpha, limit = knee.alpha_ms, knee.asymptote_gbps.value
    if alpha is None or limit is None:
        return []
    at = np.geomspace(float(sizes.min()), float(sizes.max()), _CURVE_POINTS)
    took = alpha + 8 * at / 1e6 / limit
    return [(float(x), float(8 * x / 1e6 / ms)) for x, ms in zip(at, took, strict=True) if ms > 0]


def _describe_limit(knee: Knee) -> str:
    if knee.asymptote_gbps.value is None:
        return f"No line, asymptote or knee: {knee.reason or knee.asymptote_gbps.reason}."
    line = f"Line: bytes / (alpha + beta bytes) of transfers with {knee.operations}."
    if knee.bytes.value is None:
        return f"{line} No knee: {knee.bytes.reason}."
    also = f" ({knee.reason})" if knee.reason else ""
    return f"{line} Knee ({format_percent(knee.share)} of the asymptote): {knee.bytes.text(3, 1e-6)} MB{also}."


def describe_link(analysis: LifecycleAnalysis) -> str:
    """The link's bandwidth and its source."""
    if analysis.links:
        return f"The link carries {' and '.join(link.text for link in analysis.links)}."
    why = f", and measuring it failed: {analysis.no_link}" if analysis.no_link else ""
    return f"The link's bandwidth was not stated{why}."


def _compute_line_points(sizes: Sequence[float] | np.ndarray, model: CostModel) -> list[tuple[float, float]]:
    """(bytes, milliseconds) of a model between the smallest and the largest size, where it is positive."""
    alpha, beta = model.alpha_ms.value, model.beta_ms_per_mb.value
    if alpha is None or beta is None:
        return []
    at = np.geomspace(float(np.min(sizes)), float(np.max(sizes)), _CURVE_POINTS)
    return [(float(x), float(alpha + beta * x / 1e6)) for x in at if alpha + beta * x / 1e6 > 0]


def make_cost_figure(analysis: LifecycleAnalysis) -> Figure:
    title = "Cost model: the write's duration over its bytes"
    transfers, fitted = collect_transfers(analysis.compared), analysis.costs
    if not transfers.n:
        return Figure(COST, title, missing="no counted transfer has a size and a duration")
    single = zip(transfers.bytes, transfers.ms, strict=True)
    rows = [{"kind": POINT, "bytes": float(x), "ms": float(y)} for x, y in single]
    rows += [{"kind": MODEL, "bytes": x, "ms": y} for x, y in _compute_line_points(transfers.bytes, fitted.relative)]
    rows += [{"kind": ORDINARY, "bytes": x, "ms": y} for x, y in _compute_line_points(transfers.bytes, fitted.ordinary)]
    if fitted.relative.alpha_ms.value is None:
        fit_text = f"No fit: {fitted.relative.alpha_ms.reason}."
    else:
        fit_text = (
            f"Solid: {WEIGHTED}, {fitted.relative.alpha_ms.text(3)} ms + "
            f"{fitted.relative.beta_ms_per_mb.text(3)} ms per 10^6 bytes. Dashed: {UNWEIGHTED}, R^2 "
            f"{fitted.ordinary.r2.text(4)}."
        )
    caption = f"Dots: single transfers. {fit_text}"
    return Figure(COST, title, caption, pd.DataFrame(rows, columns=["kind", "bytes", "ms"]))


def make_overhead_figure(analysis: LifecycleAnalysis) -> Figure:
    title = "TTFT over that of a combined instance"
    cells = [*analysis.plain_overheads, *analysis.overheads]
    known = [cell for cell in cells if cell.overhead_ms.value is not None]
    if not known:
        reasons = (cell.overhead_ms.reason for cell in (*analysis.overheads, *cells))
        return Figure(OVERHEAD, title, missing=next((why for why in reasons if why), _NO_RECORD))
    table = pd.DataFrame(
        {
            "baseline": cell.baseline,
            "prior_context": cell.prior_context,
            "new_tokens": cell.new_tokens,
            **make_bounded_columns("overhead_ms", cell.overhead_ms),
            "overhead_ms_n": cell.overhead_ms.n,
            "overhead_ms_median": cell.median_ms,
            "relative": cell.relative,
            "pdsep_ttft_ms": cell.pdsep_ttft_ms.value,
            "colo_ttft_ms": cell.colo_ttft_ms.value,
            SIGN_FIELD: {1: "slower", -1: "faster", None: ""}[cell.sign],
        }
        for cell in known
    )
    baselines = list_baselines(table)
    panels = f"{baselines[0]} (top) and of the {baselines[1]} (bottom)" if len(baselines) > 1 else baselines[0]
    caption = (
        f"Mean of the handover's TTFT less that of the {panels}, over the counted pairs, both orders alike, by prior "
        "context C and new tokens N, both TTFTs by the client's clock. In parentheses: the sign is not significant "
        f"{_describe_signs(analysis.launches)} {_describe_panels(analysis, table)}"
    )
    first = table[table["baseline"] == baselines[0]] if len(baselines) > 1 else None
    return Figure(OVERHEAD, title, caption.strip(), table, beside=first)


def list_baselines(table: pd.DataFrame) -> list[str]:
    """The combined engines of figure 4, a panel each, in their order."""
    return list(dict.fromkeys(table["baseline"]))


def _describe_signs(launches: int) -> str:
    if launches < MIN_PAIRED:
        return "even within this launch, all (C, N) tested (Holm); no sign of one launch is a verdict."
    return f"over the {launches} launches, all (C, N) tested (Holm)."


def has_contour(table: pd.DataFrame) -> bool:
    """Whether the contour of zero overhead can be drawn: two signs, and at least two C and two N."""
    several = table["prior_context"].nunique() > 1 and table["new_tokens"].nunique() > 1
    return bool(several and table["overhead_ms"].min() < 0 < table["overhead_ms"].max())


def _describe_panels(analysis: LifecycleAnalysis, table: pd.DataFrame) -> str:
    """The contour and the break-evens of each panel; of a single one without its name."""
    break_evens = {PLAIN_ENGINE: analysis.plain_break_evens, COMBINED_ENGINE: analysis.break_evens}
    contours = {name: _describe_contour(table[table["baseline"] == name]) for name in list_baselines(table)}
    texts = {name: f"{contour} {_format_break_evens(break_evens[name])}" for name, contour in contours.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return " ".join(f"Over the {name}: {text[:1].lower()}{text[1:].strip()}" for name, text in texts.items())


def _describe_contour(table: pd.DataFrame) -> str:
    if has_contour(table):
        return "Line: zero overhead, by interpolation."
    one_sign = not table["overhead_ms"].min() < 0 < table["overhead_ms"].max()
    return f"No line: {'the overhead has one sign everywhere' if one_sign else 'a contour needs two C and two N'}."


def _format_break_evens(break_evens: Sequence[BreakEven]) -> str:
    texts = [f"C={one.prior_context}: {one.text}" for one in break_evens]
    return f"{'; '.join(texts)}." if texts else ""


def make_volume_figure(analysis: LifecycleAnalysis) -> Figure:
    title = "Bytes moved over prior context, by new tokens"
    rows = [
        {"new_tokens": one.new_tokens, "prior_context": context, "bytes": moved}
        for one in analysis.volumes
        for context, moved in one.bytes_by_context
    ]
    if not rows:
        return Figure(VOLUME, title, missing="no counted transfer has a size")
    caption = (
        "Median bytes of the counted transfers. A level line: the transfer moves only what the decode instance lacks. "
        f"{_format_slopes(analysis)}"
    )
    return Figure(VOLUME, title, caption.strip(), pd.DataFrame(rows))


def format_slope(slope: Estimate) -> str:
    """Bytes per token of C, or `-` with the reason; rounding errors of float64 print as 0."""
    if slope.low is None or slope.high is None or slope.value is None:
        return format_or_reason(slope)
    return f"{slope.value:.3g} [{slope.low:.3g}, {slope.high:.3g}]"


def _format_slopes(analysis: LifecycleAnalysis) -> str:
    known = [one for one in analysis.volumes if one.slope.value is not None]
    text = "; ".join(f"{format_slope(one.slope)} for N = {one.new_tokens}" for one in known)
    return f"Bytes per token of C: {text}." if text else ""

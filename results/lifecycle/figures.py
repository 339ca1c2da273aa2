"""The numbers of the figures of a lifecycle run: the five analyses of specs/pd_lifecycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from results.figures.figure import Figure
from results.lifecycle.curve import Knee
from results.lifecycle.findings import LifecycleAnalysis
from results.lifecycle.fits import CostModel
from results.lifecycle.record import HANDSHAKE, PHASES, LifecycleRecord, parts_of
from results.lifecycle.regression import transfers_of
from results.lifecycle.summary import values_of
from results.statistics import LEVEL, Estimate

BREAKDOWN, BANDWIDTH, COST, OVERHEAD, VOLUME = 1, 2, 3, 4, 5
HANDOVER, BESIDE, WHOLE = "end of the prefill to the first token", "whole request without its prefill", "whole request"
"""The panels of figure 1's rows."""
WEIGHTED, UNWEIGHTED = "weighted by 1 / fitted^2", "ordinary least squares"
"""What the fits are called, in tables and figures."""
POINT, MEDIAN, MODEL, ORDINARY = "transfer", "median", "model", "ordinary"
"""What a row of figures 2 and 3 is."""
_LEFT_OUT = {HANDOVER: {*PHASES[: PHASES.index(HANDSHAKE)], "d_decode"}, BESIDE: {"p_prefill"}, WHOLE: set[str]()}
"""Phases that a panel does not show."""
_CURVE_POINTS = 60
_NO_RECORD = "no request counts"


def figures(analysis: LifecycleAnalysis) -> tuple[Figure, ...]:
    """Every figure, those that cannot be drawn included; nothing is written."""
    return phases(analysis), bandwidth(analysis), cost(analysis), overhead(analysis), volume(analysis)


def phases(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 1."""
    title = "What a request's time is made of, by new tokens"
    rows = [row for panel in (HANDOVER, BESIDE, WHOLE) for row in _stacks(analysis, panel)]
    if not rows:
        return Figure(BREAKDOWN, title, missing=_NO_RECORD)
    caption = (
        "Means of the counted repetitions, stacked in the order they pass, a row per prior context C. Left: from the "
        "end of the prefill to the first token, over all output lengths, on which it does not depend. Middle and "
        "right: the request without p_prefill and the whole of it, a bar per output length, the shortest first. "
        "metadata_wait and zmq_after_metadata together are the specification's zmq_handshake, t5 - t3. "
        f"{less_half_step(analysis)}"
    )
    return Figure(BREAKDOWN, title, caption.strip(), pd.DataFrame(rows))


def less_half_step(analysis: LifecycleAnalysis) -> str:
    """What every output that is changed by it says; empty where it is off."""
    if not analysis.settings.subtract_half_step:
        return ""
    return "d_promotion is less half of the decode instance's median step."


def _stacks(analysis: LifecycleAnalysis, panel: str) -> Iterator[dict[str, object]]:
    groups: dict[tuple[int, int, int | None], list[LifecycleRecord]] = {}
    for record in analysis.counted:
        config = record.config
        length = None if panel == HANDOVER else config.output_length
        groups.setdefault((config.prior_context, config.current_new_tokens, length), []).append(record)
    for (context, size, length), own in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0)):
        values = values_of(own)
        for name in parts_of(lambda part: values[part].n == values[HANDSHAKE].n > 0):  # noqa: B023 - called at once
            if name not in _LEFT_OUT[panel]:
                yield {
                    "panel": panel, "prior_context": context, "new_tokens": size, "output_length": length,
                    "phase": name, "ms": values[name].value, "low": values[name].low, "high": values[name].high,
                    "n": values[name].n,
                }  # fmt: skip


def bandwidth(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 2."""
    title = "Bandwidth by the size of the transfer"
    found, fitted = transfers_of(analysis.records), analysis.costs
    if not found.n:
        return Figure(BANDWIDTH, title, missing="no counted transfer has a size and a duration")
    single = zip(found.bytes, found.gbps, strict=True)
    rows = [{"kind": POINT, "bytes": float(size), "gbps": float(value)} for size, value in single]
    rows += [
        {"kind": MEDIAN, "bytes": point.bytes, "gbps": point.gbps.value, "low": point.gbps.low, "high": point.gbps.high}
        for point in fitted.curve
    ]
    knee = fitted.knee
    rows += [{"kind": MODEL, "bytes": x, "gbps": y} for x, y in _approach(found.bytes, knee)]
    lines = {f"link, {link.source}": link.gbps for link in analysis.links}
    if knee.asymptote_gbps.value is not None:
        lines["asymptote"] = knee.asymptote_gbps.value
    if knee.bytes.value is not None:
        lines["knee"] = knee.bytes.value
    caption = (
        "Dots: single transfers, bytes over the time in which a write was under way. Circles: their median for each N, "
        f"with its {LEVEL:.0%} interval where there are enough. {_limit_text(knee)} {link_text(analysis)}"
    )
    columns = ["kind", "bytes", "gbps", "low", "high"]
    return Figure(BANDWIDTH, title, caption, pd.DataFrame(rows, columns=columns), lines)


def _approach(sizes: np.ndarray, knee: Knee) -> list[tuple[float, float]]:
    """Bytes and bandwidth of the line that has the knee's asymptote."""
    alpha, limit = knee.alpha_ms, knee.asymptote_gbps.value
    if alpha is None or limit is None:
        return []
    at = np.geomspace(float(sizes.min()), float(sizes.max()), _CURVE_POINTS)
    took = alpha + 8 * at / 1e6 / limit
    return [(float(x), float(8 * x / 1e6 / ms)) for x, ms in zip(at, took, strict=True) if ms > 0]


def _limit_text(knee: Knee) -> str:
    if knee.asymptote_gbps.value is None:
        return f"No line, asymptote or knee: {knee.reason or knee.asymptote_gbps.reason}."
    line = f"Line: bytes / (alpha + beta bytes) of transfers with {knee.operations}."
    if knee.bytes.value is None:
        return f"{line} No knee: {knee.bytes.reason}."
    also = f" ({knee.reason})" if knee.reason else ""
    return f"{line} Knee ({knee.share:.0%} of the asymptote): {knee.bytes.text(3, 1e-6)} MB{also}."


def link_text(analysis: LifecycleAnalysis) -> str:
    """What the link can carry, and who says so."""
    if analysis.links:
        return f"The link carries {' and '.join(link.text for link in analysis.links)}."
    why = f", and not measured: {analysis.no_link}" if analysis.no_link else ""
    return f"What the link can carry was not given{why}."


def _line(sizes: Sequence[float] | np.ndarray, model: CostModel) -> list[tuple[float, float]]:
    """Bytes and milliseconds of a model between the smallest and the largest size, where it is above zero."""
    alpha, beta = model.alpha_ms.value, model.beta_ms_per_mb.value
    if alpha is None or beta is None:
        return []
    at = np.geomspace(float(np.min(sizes)), float(np.max(sizes)), _CURVE_POINTS)
    return [(float(x), float(alpha + beta * x / 1e6)) for x in at if alpha + beta * x / 1e6 > 0]


def cost(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 3."""
    title = "Cost model: the write's duration over its bytes"
    found, fitted = transfers_of(analysis.records), analysis.costs
    if not found.n:
        return Figure(COST, title, missing="no counted transfer has a size and a duration")
    rows = [{"kind": POINT, "bytes": float(x), "ms": float(y)} for x, y in zip(found.bytes, found.ms, strict=True)]
    rows += [{"kind": MODEL, "bytes": x, "ms": y} for x, y in _line(found.bytes, fitted.relative)]
    rows += [{"kind": ORDINARY, "bytes": x, "ms": y} for x, y in _line(found.bytes, fitted.ordinary)]
    if fitted.relative.alpha_ms.value is None:
        said = f"No fit: {fitted.relative.alpha_ms.reason}."
    else:
        said = (
            f"Solid: {WEIGHTED}, {fitted.relative.alpha_ms.text(3)} ms + "
            f"{fitted.relative.beta_ms_per_mb.text(3)} ms per 10^6 bytes. Dashed: {UNWEIGHTED}, R^2 "
            f"{fitted.ordinary.r2.text(4)}."
        )
    caption = f"Dots: single transfers. {said}"
    return Figure(COST, title, caption, pd.DataFrame(rows, columns=["kind", "bytes", "ms"]))


def overhead(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 4."""
    title = "TTFT over that of a combined instance"
    cells = [cell for cell in analysis.overheads if cell.overhead_ms.value is not None]
    if not cells:
        reasons = (cell.overhead_ms.reason for cell in analysis.overheads)
        return Figure(OVERHEAD, title, missing=next((why for why in reasons if why), _NO_RECORD))
    table = pd.DataFrame(
        {
            "prior_context": cell.prior_context,
            "new_tokens": cell.new_tokens,
            **_numbers("overhead_ms", cell.overhead_ms),
            "relative": cell.relative,
            "pdsep_ttft_ms": cell.pdsep_ttft_ms.value,
            "colo_ttft_ms": cell.colo_ttft_ms.value,
            "told": {1: "slower", -1: "faster", None: ""}[cell.told],
        }
        for cell in cells
    )
    caption = (
        "Mean of pdsep_ttft - colo_ttft over the counted pairs, both orders alike, by prior context C and new tokens "
        "N, both by the client's clock. In parentheses: the sign is not told, all (C, N) being asked. "
        f"{_contour_text(table)} {_crossings(analysis)}"
    )
    return Figure(OVERHEAD, title, caption.strip(), table)


def contour_in(table: pd.DataFrame) -> bool:
    """Whether a line of no overhead can be drawn: two signs, and at least two C and two N."""
    several = table["prior_context"].nunique() > 1 and table["new_tokens"].nunique() > 1
    return bool(several and table["overhead_ms"].min() < 0 < table["overhead_ms"].max())


def _contour_text(table: pd.DataFrame) -> str:
    if contour_in(table):
        return "Line: where the overhead changes its sign, by interpolation."
    one_sign = not table["overhead_ms"].min() < 0 < table["overhead_ms"].max()
    return f"No line: {'the overhead has one sign everywhere' if one_sign else 'one C or one N makes no map'}."


def _crossings(analysis: LifecycleAnalysis) -> str:
    found = [f"C={one.prior_context}: {one.text}" for one in analysis.break_evens]
    return f"{'; '.join(found)}." if found else ""


def _numbers(name: str, found: Estimate) -> dict[str, object]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_n": found.n}


def volume(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 5."""
    title = "Bytes moved over prior context, by new tokens"
    rows = [
        {"new_tokens": one.new_tokens, "prior_context": context, "bytes": moved}
        for one in analysis.volumes
        for context, moved in one.bytes_by_context
    ]
    if not rows:
        return Figure(VOLUME, title, missing="no counted transfer has a size")
    caption = (
        "Median bytes of the counted transfers. A level line: only what the decode instance lacks is moved. "
        f"{_slopes(analysis)}"
    )
    return Figure(VOLUME, title, caption.strip(), pd.DataFrame(rows))


def slope(found: Estimate) -> str:
    """Bytes per token of C; a level line is 0, however little is left of its last digits."""
    if found.low is None or found.high is None or found.value is None:
        return found.text(3)
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def _slopes(analysis: LifecycleAnalysis) -> str:
    told: Iterable[str] = (
        f"{slope(one.slope)} for N = {one.new_tokens}" for one in analysis.volumes if one.slope.value is not None
    )
    text = "; ".join(told)
    return f"Bytes per token of C: {text}." if text else ""

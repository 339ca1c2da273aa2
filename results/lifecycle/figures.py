"""The numbers of the figures of a lifecycle run: the five analyses of specs/pd_lifecycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from results.figures.figure import Figure
from results.lifecycle.findings import LifecycleAnalysis
from results.lifecycle.fits import CostModel, transfers_of
from results.lifecycle.record import PHASES, READY_TO_WRITE, LifecycleRecord
from results.lifecycle.summary import values_of
from results.statistics import LEVEL, Estimate

BREAKDOWN, BANDWIDTH, COST, OVERHEAD, VOLUME = 1, 2, 3, 4, 5
HANDOVER, WHOLE = "from the end of the prefill to the first token", "whole request"
"""The two panels of figure 1's rows."""
POINT, MEDIAN, MODEL, ORDINARY = "transfer", "median", "model", "ordinary"
"""What a row of figures 2 and 3 is."""
_CURVE_POINTS = 60
_NO_RECORD = "no request counts"


def figures(analysis: LifecycleAnalysis) -> tuple[Figure, ...]:
    """Every figure, those that cannot be drawn included; nothing is written."""
    return phases(analysis), bandwidth(analysis), cost(analysis), overhead(analysis), volume(analysis)


def phases(analysis: LifecycleAnalysis) -> Figure:
    """Analysis 1."""
    title = "What a request's time is made of, by new tokens"
    rows = [*_stacks(analysis, HANDOVER), *_stacks(analysis, WHOLE)]
    if not rows:
        return Figure(BREAKDOWN, title, missing=_NO_RECORD)
    caption = (
        "Means of the counted repetitions, stacked in the order they pass, a row per prior context C. Left: from the "
        "end of the prefill to the first token, over all output lengths, on which it does not depend. Right: the whole "
        "request, a bar per output length from the shortest to the longest. metadata_wait and zmq_handshake together "
        f"are the specification's t5 - t3. {less_half_step(analysis)}"
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
        length = config.output_length if panel == WHOLE else None
        groups.setdefault((config.prior_context, config.current_new_tokens, length), []).append(record)
    for (context, size, length), own in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0)):
        values = values_of(own)
        whole = any(values[name].value is None for name in ("metadata_wait", "zmq_handshake"))
        names = [name for name in PHASES if not whole or name not in ("metadata_wait", "zmq_handshake")]
        if whole:
            names.insert(names.index("rdma_transfer"), READY_TO_WRITE)
        for name in names:
            if panel == WHOLE or name not in (*PHASES[: PHASES.index("metadata_wait")], "d_decode"):
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
    single = zip(found.bytes, 8 * found.bytes / found.ms / 1e6, strict=True)
    rows = [{"kind": POINT, "bytes": float(size), "gbps": float(value)} for size, value in single]
    rows += [
        {"kind": MEDIAN, "bytes": point.bytes, "gbps": point.gbps.value, "low": point.gbps.low, "high": point.gbps.high}
        for point in fitted.curve
    ]
    rows += [{"kind": MODEL, "bytes": x, "gbps": 8 * x / y / 1e6} for x, y in _line(found.bytes, fitted.relative)]
    lines = {}
    knee = fitted.knee
    if fitted.relative.bandwidth_gbps.value is not None:
        lines["asymptote"] = fitted.relative.bandwidth_gbps.value
    if knee.bytes.value is not None:
        lines["knee"] = knee.bytes.value
    if analysis.settings.link_gbps is not None:
        lines["link"] = analysis.settings.link_gbps
    knee_text = (
        f"Knee ({knee.share:.0%} of the asymptote): {knee.bytes.text(3, 1e-6)} MB{knee.reason and f' ({knee.reason})'}."
        if knee.bytes.value is not None
        else f"No knee: {knee.bytes.reason}."
    )
    link = "" if analysis.settings.link_gbps is not None else " The link's own limit was not given."
    caption = (
        "Dots: single transfers, bytes over the duration of the write. Circles: their median for each N, with its "
        f"{LEVEL:.0%} interval where there are enough. Line: the cost model's bytes / (alpha + beta bytes). "
        f"{knee_text}{link}"
    )
    columns = ["kind", "bytes", "gbps", "low", "high"]
    return Figure(BANDWIDTH, title, caption, pd.DataFrame(rows, columns=columns), lines)


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
            f"Solid: weighted by 1 / fitted^2, {fitted.relative.alpha_ms.text(3)} ms + "
            f"{fitted.relative.beta_ms_per_mb.text(3)} ms per 10^6 bytes. Dashed: ordinary least squares, R^2 "
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
        "Mean of pdsep_ttft - colo_ttft over the counted repetitions, by prior context C and new tokens N, both by the "
        "client's clock. In parentheses: the interval covers zero, or there is none. Line: where the "
        f"overhead changes its sign, by interpolation. {_crossings(analysis)}"
    )
    return Figure(OVERHEAD, title, caption, table)


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

"""What a cell's step records say. Steps that scheduled no token are waiting, not work: counted, and left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from results.measures.summary import STEP_POINTS, percentile_name
from results.records.schemas import STEP_FIELDS_US, CellRecord
from results.statistics.estimates import Estimate, Samples, clean, unknown

CALLBACKS_US = ("build_meta_us", "get_finished_us", "start_load_kv_us")
"""connector_total_us is their sum (specs/connector_tax, "Derived")."""
STEP_SERIES = (*STEP_FIELDS_US, "connector_total_us")
_TOKENS = ("prefill_tokens", "decode_tokens")
STEP_COLUMNS_READ = ("t_ns", *STEP_FIELDS_US, *_TOKENS)
"""Columns that are read of the step records."""

_NO_INTERVAL = "neighbouring steps are alike; intervals are given for differences only"


def steps_in_window(frame: pd.DataFrame, record: CellRecord) -> pd.DataFrame:
    """The steps scheduled in the measured window, with connector_total_us."""
    inside = (frame["t_ns"] >= record.t_window_start_ns) & (frame["t_ns"] < record.t_window_end_ns)
    steps = frame[inside].copy()
    steps["connector_total_us"] = steps[list(CALLBACKS_US)].sum(axis=1, skipna=False)
    return steps


def step_counts(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, int | None]:
    """How many steps had work, and how many had none; None = not known."""
    if frame is None or _why_unknown(_TOKENS, record):
        return {"steps": None, "empty_steps": None}
    busy = len(_select_busy(frame))
    return {"steps": busy, "empty_steps": len(frame) - busy}


def step_series(frame: pd.DataFrame, record: CellRecord) -> dict[str, Samples]:
    """Every series of STEP_SERIES over the non-empty steps in order of time; empty where it cannot be trusted (us)."""
    busy = _select_busy(frame)
    return {
        name: np.empty(0) if _why_unknown(_columns_of(name), record) else clean(busy[name].to_numpy())
        for name in STEP_SERIES
    }


def step_values(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """p50 and p90 of every step series over the steps that had work (us)."""
    if frame is None:
        available = record.step_timing.get("available", False)
        why = "the step records cannot be read" if available else f"no step timing: {record.step_timing.get('reason')}"
        return {percentile_name(name, point): unknown(why) for name in STEP_SERIES for point in STEP_POINTS}
    estimates: dict[str, Estimate] = {}
    for name, samples in step_series(frame, record).items():
        if samples.size == 0:
            values = [unknown(_why_unknown(_columns_of(name), record) or "no step has it")] * len(STEP_POINTS)
        else:
            values = [
                Estimate(float(value), n=int(samples.size), reason=_NO_INTERVAL)
                for value in np.quantile(samples, tuple(STEP_POINTS.values()))
            ]
        estimates |= {percentile_name(name, point): value for point, value in zip(STEP_POINTS, values, strict=True)}
    return estimates


def _select_busy(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame[list(_TOKENS)].fillna(0).sum(axis=1) > 0]


def _columns_of(series: str) -> tuple[str, ...]:
    """The recorded columns behind a series; without token counts an idle step looks like a working one."""
    return (*CALLBACKS_US, *_TOKENS) if series == "connector_total_us" else (series, *_TOKENS)


def _why_unknown(columns: tuple[str, ...], record: CellRecord) -> str:
    """Why these columns hold nothing to be trusted; empty when they do."""
    reasons: Mapping[str, str] = record.step_timing.get("unavailable_fields") or {}
    return "; ".join(f"{name}: {reasons[name]}" for name in columns if name in reasons)

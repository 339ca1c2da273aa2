"""Numbers of a cell's step records. Steps that scheduled no token are idle: they are counted and left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from results.measures.latency import Mask
from results.measures.summary import STEP_POINTS, name_percentile
from results.records.estimate import Estimate, unknown
from results.records.schemas import CHILD_FIELDS_US, SAVE_FIELD_US, STEP_FIELDS_US, STEP_SUMS_US, CellRecord
from results.statistics.estimates import Samples, clean

LATENCY, PERIOD = "engine_step_us", "period_us"
CALLBACKS, ALL_CALLBACKS = STEP_SUMS_US
CALLBACKS_US = ("build_meta_us", "get_finished_us", "start_load_kv_us")
"""CALLBACKS is their sum (specs/connector_tax, "Derived"); ALL_CALLBACKS is theirs and that of SAVE_FIELD_US. A
connector with a store copies KV in that: in few steps, long in each."""
STEP_SERIES = (*STEP_FIELDS_US, CALLBACKS, ALL_CALLBACKS)
_SUMS: Mapping[str, tuple[str, ...]] = {CALLBACKS: CALLBACKS_US, ALL_CALLBACKS: (*CALLBACKS_US, SAVE_FIELD_US)}
"""The recorded columns behind a series that is none itself."""
_TOKENS = ("prefill_tokens", "decode_tokens")
STEP_COLUMNS_READ = ("t_ns", *STEP_FIELDS_US, *_TOKENS)
"""Columns that are read of the step records."""
PREFILL_SERIES = (LATENCY, PERIOD, ALL_CALLBACKS)
"""What is also averaged over the steps that hold prefill tokens: TTFT is made of those."""

_NO_INTERVAL = "neighboring steps are alike; intervals are given for differences only"


def whole_step(timings: Iterable[Mapping[str, Any]]) -> str:
    """The series that stands for a whole step in cells of these `step_timing`: LATENCY, or PERIOD where steps overlap.

    With asynchronous scheduling or pipeline stages, vLLM schedules a step before the previous one has ended. Latencies
    then overlap, and a step costs the time between the ends of two steps. Cells that are compared need one series, so
    one overlapping cell decides for all.
    """
    return PERIOD if any(timing.get("batch_queue") for timing in timings) else LATENCY


def select_steps_in_window(frame: pd.DataFrame, record: CellRecord) -> pd.DataFrame:
    """The steps scheduled in the measured window, with CALLBACKS and ALL_CALLBACKS."""
    inside = (frame["t_ns"] >= record.t_window_start_ns) & (frame["t_ns"] < record.t_window_end_ns)
    steps = frame[inside].copy()
    steps[CALLBACKS] = steps[list(CALLBACKS_US)].sum(axis=1, skipna=False)
    steps[ALL_CALLBACKS] = steps[CALLBACKS] + steps[SAVE_FIELD_US].fillna(0.0)  # not every step calls wait_for_save
    return steps


def step_counts(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, int | None]:
    """How many steps had work, and how many had none; None = not known."""
    if frame is None or _explain_unknown(_TOKENS, record):
        return {"steps": None, "empty_steps": None}
    busy = int(np.count_nonzero(_is_busy(frame)))
    return {"steps": busy, "empty_steps": len(frame) - busy}


def collect_step_series(frame: pd.DataFrame, record: CellRecord) -> dict[str, Samples]:
    """Every series of STEP_SERIES over the non-empty steps in order of time (us); empty where it is not reliable."""
    busy = _is_busy(frame)
    return {
        name: np.empty(0) if _explain_unknown(_list_columns(name), record) else clean(frame[name].to_numpy()[busy])
        for name in STEP_SERIES
    }


def estimate_step_values(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """Mean, p50 and p90 of every step series over the steps that had work (us), and means over those with prefill.

    The children of a MultiConnector only where the engine has some.
    """
    wanted = [name for name in STEP_SERIES if name not in CHILD_FIELDS_US or record.step_timing.get("children")]
    series = None if frame is None else collect_step_series(frame, record)
    estimates: dict[str, Estimate] = {}
    for name in wanted:
        samples = np.empty(0) if series is None else series[name]
        if samples.size:
            numbers = (samples.mean(), *np.quantile(samples, tuple(STEP_POINTS.values())))
            values = [Estimate(float(value), n=int(samples.size), reason=_NO_INTERVAL) for value in numbers]
        else:
            values = [unknown(_explain_no_samples(name, frame, record))] * (1 + len(STEP_POINTS))
        names = [name_percentile(name, point) for point in ("mean", *STEP_POINTS)]
        estimates |= dict(zip(names, values, strict=True))
    prefill = {
        name_percentile(name, "prefill_mean"): _compute_prefill_mean(name, frame, record) for name in PREFILL_SERIES
    }
    return estimates | prefill


def _compute_prefill_mean(series: str, frame: pd.DataFrame | None, record: CellRecord) -> Estimate:
    """Over the steps that hold prefill tokens (us)."""
    if frame is None or _explain_unknown(_list_columns(series), record):
        return unknown(_explain_no_samples(series, frame, record))
    samples = clean(frame[series].to_numpy()[frame["prefill_tokens"].fillna(0).to_numpy() > 0])
    if not samples.size:
        return unknown("no step with prefill tokens has it")
    return Estimate(float(samples.mean()), n=int(samples.size), reason=_NO_INTERVAL)


def _explain_no_samples(series: str, frame: pd.DataFrame | None, record: CellRecord) -> str:
    if frame is not None:
        return _explain_unknown(_list_columns(series), record) or "no step has it"
    available = record.step_timing.get("available", False)
    return "the step records cannot be read" if available else f"no step timing: {record.step_timing.get('reason')}"


def _is_busy(frame: pd.DataFrame) -> Mask:
    """Whether each step scheduled a token."""
    prefill, decode = (frame[name].fillna(0).to_numpy() for name in _TOKENS)
    return np.asarray(prefill + decode > 0, dtype=np.bool_)


def _list_columns(series: str) -> tuple[str, ...]:
    """The recorded columns behind a series; without token counts an idle step looks like a working one."""
    return (*_SUMS.get(series, (series,)), *_TOKENS)


def _explain_unknown(columns: tuple[str, ...], record: CellRecord) -> str:
    """Why these columns are not reliable; empty where they are."""
    reasons: Mapping[str, str] = record.step_timing.get("unavailable_fields") or {}
    return "; ".join(f"{name}: {reasons[name]}" for name in columns if name in reasons)

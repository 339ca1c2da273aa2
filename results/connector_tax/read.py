"""The numbers of a run's cells, from the files beside each cell record, and what of these is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from results.connector_tax.saturation_criteria import judge
from results.connector_tax.summary import CellSummary, Shape
from results.measures.engine_metrics import SAMPLES, measure_server_values
from results.measures.latency import METRICS
from results.measures.requests import count_requests, latencies, measure_latencies, select_due, throughput
from results.measures.step_durations import (
    STEP_COLUMNS_READ,
    STEP_SERIES,
    collect_step_series,
    estimate_step_values,
    select_steps_in_window,
    step_counts,
    whole_step,
)
from results.measures.summary import name_percentile
from results.records.errors import ArtifactError
from results.records.frames import Gap, name_artifact, read_cell, read_metrics, read_requests, read_steps
from results.records.layout import ConfigLayout, RunLayout, name_file_beside_cell
from results.records.phase_names import name_phase
from results.records.schemas import CellRecord
from results.statistics.estimates import Samples
from results.statistics.judgement import OTHER_LENGTHS


def analyze_cell(cell_json: Path) -> CellSummary:
    """All numbers of the cell whose record is `cell_json`; what is missing is null with a reason and a named gap.

    Raises ArtifactError where the record itself cannot be read.
    """
    return measure_cell(cell_json)[0]


def measure_cell(cell_json: Path) -> tuple[CellSummary, Mapping[str, Samples]]:
    """As `analyze_cell`; and every declared metric (`ttft_s`) of the requests due in the measured window, in the order
    of the schedule: empty arrays where they cannot be read."""
    record = read_cell_record(cell_json)
    frame, request_gaps = read_cell_requests(cell_json, record)
    requests = None if frame is None else select_due(frame, record)
    measured = None if requests is None else measure_latencies(requests.due)
    metrics, metric_gaps = _read_cell_metrics(cell_json, record)
    steps, step_gaps = _read_cell_steps(cell_json, record)
    gaps = (*request_gaps, *metric_gaps, *step_gaps)
    load = record.load
    summary = CellSummary(
        cell=record.cell,
        config=record.config,
        phase=name_phase(record.phase),
        trial=int(load.get("trial", 0)),
        rate_per_s=float(load["rate_per_s"]),
        shape=Shape(int(load["input_tokens"]), int(load["output_tokens"])),
        arrival=str(load.get("arrival", "")),
        seed=load.get("seed"),
        window_s=(record.t_window_end_ns - record.t_window_start_ns) / 1e9,
        t_start_unix_s=record.t_start_unix_s,
        attempt=record.attempt,
        stop_reason=record.stop_reason,
        counts={**count_requests(requests), **step_counts(steps, record)},
        values={
            **latencies(measured),
            **throughput(requests, record),
            **measure_server_values(metrics, record),
            **estimate_step_values(steps, record),
        },
        degraded=explain_degraded(record),
        fidelity=dict(record.fidelity),
        step_timing=dict(record.step_timing),
        path=name_artifact(cell_json),
        gaps=gaps,
        t_end_unix_s=record.t_start_unix_s + (record.t_window_end_ns - record.t_start_ns) / 1e9,
        instance=str(record.instance.get("instance", "")),
        settings=record.instance.get("settings") or {},
        gpu=record.gpu,
    )
    return summary, dict.fromkeys(METRICS, np.empty(0)) if measured is None else measured.samples


def explain_degraded(record: CellRecord) -> str:
    """Why the run and the analysis leave the cell out of comparisons; empty = it takes part.

    Its client fell behind, or completions had other lengths than requested.
    """
    fidelity, wrong_length = record.fidelity, record.client.get("wrong_length")
    reasons = [str(fidelity.get("reason") or "the client fell behind")] if fidelity.get("degraded") else []
    if wrong_length:
        reasons.append(f"{wrong_length} {OTHER_LENGTHS}")
    return "; ".join(reasons)


def read_step_samples(cell_json: Path) -> dict[str, Samples]:
    """The cell's step series (STEP_SERIES, us); empty arrays where not available. Raises ArtifactError."""
    record = read_cell_record(cell_json)
    frame, _ = _read_cell_steps(cell_json, record)
    return {name: np.empty(0) for name in STEP_SERIES} if frame is None else collect_step_series(frame, record)


def headline(summary: CellSummary) -> dict[str, Any]:
    """The numbers of a cell that the console shows. `step_*` is the whole engine step; None = not measured.

    `saturated` is by the criteria that need this cell alone (throughput and queue), not by the growth of TTFT.
    """
    ttft = summary.estimate("ttft_p90_s")
    return {
        "ttft_p50_s": summary.value("ttft_p50_s"),
        "ttft_p90_s": ttft.value,
        "ttft_p90_low_s": ttft.low,
        "ttft_p90_high_s": ttft.high,
        "tpot_p50_s": summary.value("tpot_p50_s"),
        "tpot_p90_s": summary.value("tpot_p90_s"),
        "e2e_p90_s": summary.value("e2e_p90_s"),
        "effective_throughput_per_s": summary.value("effective_throughput_per_s"),
        "throughput_ratio": summary.value("throughput_ratio"),
        "completed": summary.counts["completed"],
        "dropped": summary.counts["dropped"],
        "failed": summary.counts["failed"],
        "step_p50_us": summary.value(name_percentile(whole_step([summary.step_timing]), "p50")),
        "connector_total_p50_us": summary.value("connector_total_p50_us"),
        "saturated": judge(summary).saturated,
    }


def read_cell_record(cell_json: Path) -> CellRecord:
    """Raises ArtifactError where it is missing, damaged, or has no load or window."""
    record = read_cell(cell_json)
    if isinstance(record, Gap):
        raise ArtifactError(
            f"{record.artifact} {record.reason}",
            remedy="the cell was not finished or its record was damaged: run it again",
        )
    missing = [name for name in ("rate_per_s", "input_tokens", "output_tokens") if name not in record.load]
    if missing or record.t_window_end_ns <= record.t_window_start_ns:
        why = f"does not state {', '.join(missing)}" if missing else "has an empty measured window"
        raise ArtifactError(f"{name_artifact(cell_json)} {why}", remedy="run the cell again")
    return record


def read_cell_requests(cell_json: Path, record: CellRecord) -> tuple[pd.DataFrame | None, tuple[Gap, ...]]:
    """The requests beside the record, or None and why not."""
    path = name_file_beside_cell(cell_json, "requests")
    loaded = read_requests(path, record.checksums.get(path.name))
    return loaded.frame, loaded.gaps


def _read_cell_metrics(cell_json: Path, record: CellRecord) -> tuple[pd.DataFrame | None, tuple[Gap, ...]]:
    path = name_file_beside_cell(cell_json, "metrics")
    loaded = read_metrics(path, SAMPLES, record.checksums.get(path.name))
    return loaded.frame, loaded.gaps


def _read_cell_steps(cell_json: Path, record: CellRecord) -> tuple[pd.DataFrame | None, tuple[Gap, ...]]:
    """The window's steps with connector_total_us; no gap where the record says that there is no step timing."""
    if not record.step_timing.get("available", False):
        return None, ()
    path = name_file_beside_cell(cell_json, "engine_step")
    loaded = read_steps(path, record.checksums.get(path.name), STEP_COLUMNS_READ)
    return (None if loaded.frame is None else select_steps_in_window(loaded.frame, record)), loaded.gaps


@dataclass(frozen=True, slots=True)
class Collected:
    """The cells of a run that could be read."""

    summaries: tuple[CellSummary, ...]
    paths: Mapping[str, Path]
    """`CellSummary.path` to the cell record's file."""
    samples: Mapping[str, Mapping[str, Samples]]
    """`CellSummary.path` to the samples of its requests, as `measure_cell`."""
    gaps: tuple[Gap, ...]
    """Records that could not be read, and everything the cells lack."""


def collect_cells(root: Path, phases: Collection[str] | None = None) -> Collected:
    """Every finished cell below `root` (of these phases), by folder and file name. A bad cell is a gap."""
    summaries: list[CellSummary] = []
    paths: dict[str, Path] = {}
    samples: dict[str, Mapping[str, Samples]] = {}
    gaps: list[Gap] = []
    for layout in RunLayout(root).configs():
        for record in layout.cells(phases):
            try:
                summary, measured = measure_cell(record)
            except ArtifactError as error:
                gaps.append(Gap(name_artifact(record), f"cell is not counted: {error}"))
                continue
            summaries.append(summary)
            paths[summary.path] = record
            samples[summary.path] = measured
            gaps.extend(summary.gaps)
        gaps.extend(_find_orphans(layout, phases))
    return Collected(tuple(summaries), paths, samples, tuple(gaps))


def _find_orphans(layout: ConfigLayout, phases: Collection[str] | None) -> Iterator[Gap]:
    """Request records without the cell record that would make them count."""
    for record in layout.list_cells_of_requests(phases):
        if not record.exists():
            yield Gap(name_artifact(record), "is missing while the cell's requests are there; the cell is not counted")

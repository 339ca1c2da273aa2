"""Writes run folders whose true numbers are known: latency distributions, a knee, a tax, callback times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import stats

from results.connector_tax.analyze import Analysis
from results.connector_tax.report import build_report
from results.connector_tax.saturation import choose_reference_rates
from results.measures.step_records import write_steps
from results.records.frames import STEP_SCHEMA
from results.records.layout import ConfigLayout, RunLayout, sha256
from results.records.schemas import CellRecord, MetricsRecord, RequestRecord, RequestStatus
from results.report.document import render_markdown
from results.report.figure import Figure

OWN_RATE = "own_rate"
"""In the stem of a confirmed shape that has a rate of its own."""
SIGMA = 0.25
Z90 = float(stats.norm.ppf(0.9))
DATE = "20260131"
THRESHOLDS: Mapping[str, float] = {"throughput_ratio": 0.95, "waiting_p50": 1.0, "ttft_p90_growth": 1.5}


@dataclass(frozen=True)
class Behavior:
    """One config's truth."""

    ttft_p50_s: float = 0.200
    tpot_p50_s: float = 0.010
    knee_per_s: float = math.inf
    """From this rate on it is saturated."""
    step_us: float = 40.0
    engine_step_us: float = 1500.0
    callbacks_us: tuple[float, float, float] | None = None
    """build_meta, get_finished, start_load_kv; None = no connector."""
    save_us: float | None = None
    """wait_for_save; None = no step called it."""
    sigma: float = SIGMA
    """Of the logarithm of every latency."""
    slow_by_input: Mapping[int, float] = field(default_factory=dict)
    """Input tokens to a factor on TTFT."""
    slow_by_output: Mapping[int, float] = field(default_factory=dict)
    """Output tokens to a factor on TPOT."""

    @property
    def ttft_p90_s(self) -> float:
        return self.ttft_p50_s * math.exp(self.sigma * Z90)


@dataclass(frozen=True)
class Load:
    """One cell's load."""

    rate_per_s: float = 4.0
    input_tokens: int = 4096
    output_tokens: int = 256
    phase: str = "A"
    requests: int = 200
    warmup_s: float = 5.0
    trial: int = 0
    reference: str = ""
    """The reference rate that a cell of the confirm stage names."""

    @property
    def stem(self) -> str:
        place = f"r{self.rate_per_s:g}" if self.phase == "A" else f"{self.input_tokens}x{self.output_tokens}"
        place += f"-{self.reference}" if self.reference else ""
        return f"{place}_t{self.trial}" if self.trial else place

    def cell(self, config: str) -> str:
        stage = {"A": "phase-a", "B": "phase-b", "Bp": "phase-b-prime", "C": "confirm"}[self.phase]
        return f"{stage}/{config}/{self.stem.replace('_t', '/t')}"


@dataclass(frozen=True)
class Cell:
    """What one cell is made of; a test changes what it is about."""

    config: str
    behavior: Behavior
    load: Load
    seed: int = 0
    steps: int = 500
    degraded: str = ""
    statuses: Mapping[int, RequestStatus] = field(default_factory=dict)
    """By index: requests that did not end well."""
    t0_ns: int = 5_000_000_000_000_000_123  # beyond what a float64 can hold to the nanosecond
    step_timing: Mapping[str, Any] = field(default_factory=dict)
    slow: float = 1.0
    """A factor on every latency: what this launch and this hour add."""
    t_start_unix_s: float = 1_800_000_000.0

    def rng(self) -> np.random.Generator:
        """The cell's own: its config, load, trial and phase."""
        load = self.load
        place = (int(load.rate_per_s * 100), load.input_tokens, load.output_tokens, load.trial, ord(load.phase[-1]))
        return np.random.default_rng([self.seed, *self.config.encode(), *place])

    @property
    def saturated(self) -> bool:
        return self.load.rate_per_s >= self.behavior.knee_per_s

    @property
    def window_ns(self) -> tuple[int, int]:
        begin = self.t0_ns + int(self.load.warmup_s * 1e9)
        return begin, begin + int(self.load.requests / self.load.rate_per_s * 1e9)


def write_cell(folder: ConfigLayout, cell: Cell) -> Path:
    """Write the cell's four artifacts, the record last; returns the record's path."""
    folder.root.mkdir(parents=True, exist_ok=True)
    load = cell.load
    rng = cell.rng()
    requests = folder.requests(load.phase, load.stem)
    metrics = folder.metrics(load.phase, load.stem)
    steps = folder.engine_step(load.phase, load.stem)
    records = request_records(cell, rng)
    requests.write_bytes(msgspec.json.Encoder().encode_lines(records))
    metrics.write_bytes(msgspec.json.Encoder().encode_lines(scrapes(cell)))
    timing: dict[str, Any] = {"available": cell.steps > 0, "reason": None if cell.steps else "no probe"}
    if cell.steps:
        write_steps(step_table(cell, rng), steps)
        if cell.behavior.callbacks_us is None:
            names = ("build_meta_us", "get_finished_us", "start_load_kv_us", "wait_for_save_us")
            timing["unavailable_fields"] = dict.fromkeys(names, "no KV connector in this engine")
    begin, end = cell.window_ns
    record = CellRecord(
        cell=load.cell(cell.config),
        config=cell.config,
        phase=load.phase,
        load={
            "rate_per_s": load.rate_per_s,
            "input_tokens": load.input_tokens,
            "output_tokens": load.output_tokens,
            "arrival": "constant",
            "seed": 1,
            "trial": load.trial,
        },
        t_start_ns=cell.t0_ns,
        t_window_start_ns=begin,
        t_window_end_ns=end,
        t_start_unix_s=cell.t_start_unix_s,
        attempt=1,
        stop_reason="complete",
        sent=len(records),
        completed=len(records),
        failed=0,
        dropped=0,
        fidelity={"degraded": bool(cell.degraded), "reason": cell.degraded, "lateness_p99_s": 0.0005},
        step_timing={**timing, **cell.step_timing},
        instance={"instance": f"{cell.config}-1"},
        checksums={path.name: sha256(path) for path in (requests, metrics, steps) if path.exists()},
    )
    path = folder.cell(load.phase, load.stem)
    path.write_bytes(msgspec.json.encode(record))
    return path


def request_records(cell: Cell, rng: np.random.Generator) -> list[RequestRecord]:
    """Requests at a constant rate from the start of the warm-up to the window's end."""
    load, truth = cell.load, cell.behavior
    warm = round(load.warmup_s * load.rate_per_s)
    total = warm + load.requests
    slow = cell.slow * (4.0 if cell.saturated else 1.0) * truth.slow_by_input.get(load.input_tokens, 1.0)
    ttft_s = truth.ttft_p50_s * slow * np.exp(truth.sigma * rng.standard_normal(total))
    tpot_p50_s = truth.tpot_p50_s * cell.slow * truth.slow_by_output.get(load.output_tokens, 1.0)
    tpot_s = tpot_p50_s * np.exp(truth.sigma * rng.standard_normal(total))
    due = cell.t0_ns + (np.arange(total) * 1e9 / load.rate_per_s).astype(np.int64)
    if cell.saturated:  # what is sent falls further and further behind, so fewer come back inside the window
        ttft_s += 0.3 * np.arange(total) / load.rate_per_s
    return [
        _request(cell, index, index < warm, int(due[index]), float(ttft_s[index]), float(tpot_s[index]))
        for index in range(total)
    ]


def _request(cell: Cell, index: int, warmup: bool, due_ns: int, ttft_s: float, tpot_s: float) -> RequestRecord:
    load = cell.load
    status = cell.statuses.get(index, RequestStatus.OK)
    sent = status != RequestStatus.DROPPED
    first = due_ns + round(ttft_s * 1e9)
    last = first + round(tpot_s * 1e9) * (load.output_tokens - 1)
    whole = status == RequestStatus.OK
    return RequestRecord(
        index=index,
        status=status,
        warmup=warmup,
        t_intended_ns=due_ns,
        t_send_ns=due_ns if sent else None,
        t_first_token_ns=first if sent and status != RequestStatus.ERROR else None,
        t_last_token_ns=last if whole else None,
        t_end_ns=last + 1000 if whole else (first if sent else None),
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        prompt_tokens=load.input_tokens if whole else None,
        completion_tokens=load.output_tokens if whole else None,
        cached_tokens=0 if whole else None,
        chunks=load.output_tokens if whole else 0,
        inflight_at_send=1,
    )


def scrapes(cell: Cell) -> list[MetricsRecord]:
    """1 Hz over the whole cell, a baseline before and a last one after; 1000 generated tokens a second."""
    begin, end = cell.t0_ns - 10**9, cell.window_ns[1] + 10**9
    times = list(range(begin, end + 1, 10**9))
    moments = ["baseline", *["sample"] * (len(times) - 2), "final"]
    return [
        MetricsRecord(
            t_ns=t_ns,
            t_unix_s=1_800_000_000.0 + number,
            moment=moment,
            values={
                "vllm:num_requests_waiting": 9.0 if cell.saturated else 0.0,
                "vllm:num_requests_running": 3.0,
                "vllm:kv_cache_usage_perc": 0.25,
                "vllm:prefix_cache_hits_total": 128.0,
                "vllm:num_preemptions_total": 0.0,
                "vllm:prompt_tokens_total": 5000.0 * number,
                "vllm:generation_tokens_total": 1000.0 * number,
            },
        )
        for number, (t_ns, moment) in enumerate(zip(times, moments, strict=True))
    ]


def step_table(cell: Cell, rng: np.random.Generator) -> pa.Table:
    """Steps evenly over the window; every tenth is empty and ten times as long, so counting it would show."""
    truth, steps = cell.behavior, cell.steps
    begin, end = cell.window_ns
    empty = np.arange(steps) % 10 == 9

    def around(median: float) -> npt.NDArray[np.float64]:
        return median * np.exp(0.05 * rng.standard_normal(steps)) * np.where(empty, 10, 1)

    nothing = pa.nulls(steps, pa.float64())
    build, finished, load_kv = (
        (nothing, nothing, nothing) if truth.callbacks_us is None else tuple(around(us) for us in truth.callbacks_us)
    )
    counts = pa.array(np.where(empty, 0, 3))
    columns: dict[str, Any] = {
        "t_ns": begin + (end - begin) // steps * np.arange(steps),
        "step_id": np.arange(steps),
        "role": np.full(steps, "engine"),
        "step_duration_us": around(truth.step_us),
        "build_meta_us": build,
        "get_finished_us": finished,
        "start_load_kv_us": load_kv,
        "wait_for_save_us": nothing if truth.save_us is None else np.full(steps, truth.save_us),
        "exec_us": around(truth.engine_step_us - 60),
        "update_us": around(20.0),
        "engine_step_us": around(truth.engine_step_us),
        "period_us": around(truth.engine_step_us + 10),
        "child1_us": nothing,
        "child2_us": nothing,
        "num_running": counts,
        "num_waiting": pa.array(np.zeros(steps, dtype=np.int64)),
        "prefill_tokens": pa.array(np.zeros(steps, dtype=np.int64)),
        "decode_tokens": counts,
        "scheduled_requests": counts,
    }
    schema = pa.schema([pa.field(column.name, column.type) for column in STEP_SCHEMA])
    return pa.table({column.name: columns[column.name] for column in schema}, schema=schema)


@dataclass(frozen=True)
class Run:
    """A whole run's truth."""

    configs: Mapping[str, Behavior]
    rates_per_s: Sequence[float] = (2.0, 4.0, 8.0)
    shapes: Sequence[tuple[int, int]] = ()
    ref_safe_per_s: float | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Config to the reason its pre-flight gave."""
    requests: int = 200
    steps: int = 500
    seed: int = 0
    trials: int = 1
    launch_sigma: float = 0.0
    """Of the logarithm of what a launch adds to every latency of its cells."""
    drift_per_h: float = 0.0
    """Every latency grows by this share an hour."""
    cell_s: float = 60.0
    """Between the starts of two cells."""
    prime: tuple[float, Sequence[tuple[int, int]]] = (0.0, ())
    """The rate and the shapes of Phase B'."""
    confirm: int = 0
    """Launches per config of the confirm stage."""
    own_rates: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Shapes that the confirm stage measures at a rate of their own."""
    sweeps_shapes: bool = True
    """Phase B and B' are in the sweep too, as in runs of older versions."""

    @property
    def loads(self) -> list[Load]:
        """Every load, in the order the phases and their trials are run."""
        return [*self.swept, *(load for trial in range(self.confirm) for load in self.confirmed(trial))]

    def confirmed(self, trial: int) -> list[Load]:
        """What a launch of the confirm stage measures."""
        shape = (Load.input_tokens, Load.output_tokens)
        safe_per_s = self.ref_safe_per_s or self.rates_per_s[0]
        safe = [
            (self.own_rates.get(one, safe_per_s), OWN_RATE if one in self.own_rates else "ref_safe", one)
            for one in dict.fromkeys((shape, *self.shapes))
        ]
        loaded = dict.fromkeys((shape, *self.prime[1])) if self.prime[0] else {}
        places = safe + [(self.prime[0], "ref_load", one) for one in loaded]
        return [Load(rate, *one, "C", self.requests, trial=trial, reference=name) for rate, name, one in places]

    @property
    def swept(self) -> list[Load]:
        trials = range(self.trials)
        safe = self.ref_safe_per_s or self.rates_per_s[0]
        found = [Load(rate, requests=self.requests, trial=trial) for trial in trials for rate in self.rates_per_s]
        if not self.sweeps_shapes:
            return found
        places = [(safe, "B", shape) for shape in self.shapes] + [
            (self.prime[0], "Bp", shape) for shape in self.prime[1]
        ]
        return found + [
            Load(rate, *shape, phase, self.requests, trial=trial) for trial in trials for rate, phase, shape in places
        ]


def write_run(root: Path, run: Run) -> RunLayout:
    """Write every artifact of the run folder `root`, as a finished campaign leaves them."""
    layout = RunLayout(root)
    loads = run.loads
    for cell in run_cells(run):
        write_cell(layout.config(DATE, cell.config), cell)
    for config in run.configs:
        _write_launch(layout.config(DATE, config), config)
    gates = {config: {"decision": "include", "reason": "", "checks": []} for config in run.configs}
    gates |= {config: {"decision": "SKIP", "reason": why, "checks": []} for config, why in run.skipped.items()}
    layout.preflight_status.parent.mkdir(parents=True, exist_ok=True)
    layout.preflight_status.write_bytes(msgspec.json.encode(gates))
    layout.plan.write_bytes(msgspec.json.encode(_plan(run, loads)))
    return layout


def write_measured_run(root: Path, run: Run) -> RunLayout:
    """The same with the reference rates that its Phase A gives."""
    layout = write_run(root, run)
    layout.reference_rates.write_bytes(choose_reference_rates(root, THRESHOLDS).to_json())
    return layout


def report_text(analysis: Analysis, figures: Sequence[Figure] = ()) -> str:
    """`report.md`."""
    return render_markdown("Run", build_report(analysis), figures)


def run_cells(run: Run) -> Iterator[Cell]:
    """The run's cells in the order of time: a block per phase and trial, in it the configs in a random order."""
    rng = np.random.default_rng([run.seed, 1])
    started_s = 1_800_000_000.0
    blocks = groupby(run.loads, key=lambda load: (load.phase[0], load.trial))
    for _, block in blocks:
        loads = list(block)
        for config in rng.permutation(list(run.configs)):
            launch = math.exp(run.launch_sigma * rng.standard_normal())
            for load in loads:
                slow = launch * (1 + run.drift_per_h) ** ((started_s - 1_800_000_000.0) / 3600)
                truth = run.configs[str(config)]
                yield Cell(str(config), truth, load, run.seed, run.steps, slow=slow, t_start_unix_s=started_s)
                started_s += run.cell_s


def _write_launch(folder: ConfigLayout, config: str) -> None:
    command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "tiny model"]
    folder.config_json.write_bytes(msgspec.json.encode({"config": config, "argv": command, "started_by": "spawn"}))
    folder.launch_sh.write_text("#!/bin/sh\n")
    folder.stdout.write_text("")
    folder.stderr.write_text("")
    folder.env_txt.write_text(
        "captured 2026-01-31\n\n[engine]\nkind: cpu\nvllm version: 0.32.0\nmooncake version: 0.3.13\n"
        "vllm commit: abc1234\n\n[gpu]\nnone: no nvidia-smi\n\n[packages]\nvllm==0.32.0\n"
    )


def _plan(run: Run, loads: Sequence[Load]) -> dict[str, Any]:
    cells = [
        {
            "cell": load.cell(config),
            "stage": {"A": "phase-a", "C": "confirm"}.get(load.phase, "phase-b"),
            "kind": "load",
            "config": config,
            "params": {"phase": load.phase, "stem": load.stem} | _plan_rate(load),
            "trial": load.trial,
        }
        for config in (*run.configs, *run.skipped)
        for load in loads
    ]
    return {
        "experiment": "connector-tax",
        "profile": "cpu-tiny",
        "preset": "demo",
        "configs": [*run.configs, *run.skipped],
        "seed": 1,
        "cells": cells,
        "inputs": {
            "profile": {"engine": {"kind": "cpu"}},
            "engine": {"versions": {"vllm": "0.32.0", "nixl": "1.5.1"}},
            "grid": {
                "saturation": THRESHOLDS,
                "phase_b": _plan_shapes(run),
            },
        },
    }


def _plan_rate(load: Load) -> dict[str, str | float]:
    """As a plan names the rate of a cell."""
    named = {"B": "ref_safe", "Bp": "ref_load"}.get(load.phase, load.reference)
    return {"rate": named} if named and named != OWN_RATE else {"rate_per_s": load.rate_per_s}


def _plan_shapes(run: Run) -> dict[str, Any]:
    inputs, outputs = (sorted({shape[place] for shape in run.shapes}) for place in (0, 1))
    own = {f"{i}x{o}": {"rate_per_s": rate} for (i, o), rate in run.own_rates.items()}
    return {"input_tokens": inputs, "output_tokens": outputs} | ({"shape_rates": own} if own else {})

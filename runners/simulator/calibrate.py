"""An engine model fitted to the step times of a real run, and held against the cells that it was not fitted to.

Every second cell of one config, in the order of their load, gives the fit: the coefficients of a step, none below 0, so
that the mean relative error over the steps of its window is 0 (`fit_steps`); what these steps took over what the
coefficients give, in their order (`residuals`); and `frontend_s`, the median over these cells of what a measured TTFT
has beyond a simulated one. The other cells, and all of `plain_again` where `plain` is fitted, are simulated, arrival by
arrival, with the residuals of the fitted cell before them as noise, and compared; cells near saturation apart
(`STEEP`). Step records do not hold the KV tokens that a step reads. Within a cell all prompts and answers have one
length and share nothing, so they follow from it (`list_busy_steps`).
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import nnls

from results.connector_tax.configs import BASELINE, REPEAT
from results.measures.requests import collect_latency_samples
from results.measures.step_durations import select_steps_in_window
from results.records.count import format_count
from results.records.frames import Gap, read_cell, read_requests, read_steps
from results.records.layout import RunLayout, name_file_beside_cell
from results.records.schemas import CellRecord, RequestStatus
from results.records.simulation_spec import EngineModel, StepTime
from runners.errors import RunnerError
from runners.samplers.engine_counters import read_baseline_shape
from runners.simulator.calibration_gate import HeldOutCell, LoadErrors, RepeatedCell
from runners.simulator.clock import SimulatedClock
from runners.simulator.engine import Engine
from runners.simulator.engine_file import EngineFile
from runners.simulator.job import Job
from runners.simulator.step_time import STEADY, Noise, ResidualNoise, scale_step

FEWEST_STEPS = 100
OUTLIERS = 0.99
"""Steps that took longer than this share of all, each over what the model gives it, are left out: the host held them
up."""
REFITS = 8
"""Times that the weights follow the coefficients; after about four they change no more."""
RESIDUALS = 8192
"""Residuals that a model has at most, in equal parts of every cell that gave the fit."""
COEFFICIENTS = StepTime.__struct_fields__
ALIKE = 1e-6
"""A kind of work gets a coefficient of its own if at least this share of it is no linear combination of the others."""
SHORTEST_S = 1e-6
"""No step is expected to take less."""
SLOWER = 1.1
STEEP = 3.0
"""A load is near saturation where a p90 of one of its cells grows by more than STEEP times the share by which steps
take longer, simulated with steps that take SLOWER times as long. A wait in a queue does so where more than two thirds
of an engine are used; there a host whose speed changes by 20 % changes a latency by a multiple of that, between two
real cells as well."""
SETTINGS: Mapping[str, str] = {
    "max_batched_tokens": "max_num_batched_tokens",
    "max_sequences": "max_num_seqs",
    "async_scheduling": "async_scheduling",
}
"""Fields of an engine model, and vLLM's setting that each is."""
COMPARED = ("ttft_s", "tpot_s", "e2e_s")
PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured cell."""

    record: CellRecord
    requests: pd.DataFrame
    steps: pd.DataFrame
    launch: str = ""
    """Name of its engine's launch, with the run's; empty = not stated."""

    @property
    def load(self) -> tuple[float, int, int]:
        """Requests per second, tokens of a prompt and of an answer."""
        load = self.record.load
        return float(load["rate_per_s"]), int(load["input_tokens"]), int(load["output_tokens"])

    @property
    def order(self) -> tuple[float, int, int, str]:
        """Sort key: the load, then the cell's id without its config. Cells of two configs that share it are one load in
        one trial."""
        return *self.load, self.record.cell.replace(f"/{self.record.config}/", "/", 1)


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One cell: p90s in seconds, measured and simulated; None = there is no such number."""

    cell: str
    fitted: bool
    """It gave the fit; the others say what the model is worth."""
    load: tuple[float, int, int]
    """Requests per second, tokens of a prompt and of an answer."""
    measured: Mapping[str, float | None]
    simulated: Mapping[str, float | None]
    steepness: float | None
    """By how many times the share that steps take longer the p90 grows that grows most; None = there is no p90."""
    near_saturation: bool = False
    """A cell of its load is steeper than STEEP."""
    repetition: str = ""
    """The cell of the same load and trial in an independent launch of the same engine; empty = all cells of its load
    in other launches repeat it."""
    launch: str = ""
    """As of its Cell."""

    def error(self, metric: str) -> float | None:
        """Simulated over measured, less 1."""
        measured, simulated = self.measured[metric], self.simulated[metric]
        return None if not measured or simulated is None else simulated / measured - 1

    def repeats(self, other: CellComparison) -> bool:
        """Whether the difference between the two is that of a real run to its own repetition."""
        if other.repetition:
            return self.cell == other.repetition
        same_launch = bool(self.launch) and self.launch == other.launch
        return self is not other and self.load == other.load and not same_launch


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit and what it is worth."""

    engine: EngineFile
    steps: int
    step_mape: float
    """Mean absolute relative error of a step, over the steps that gave the fit."""
    cells: tuple[CellComparison, ...]
    not_told_apart: tuple[str, ...] = ()
    """Coefficients that are 0 because the steps do not tell their kind of work apart from others."""

    def list_loads(self, metric: str, *, near_saturation: bool = False) -> dict[tuple[float, int, int], LoadErrors]:
        """Errors of the cells that did not give the fit, by load: those near saturation, or the others."""
        held_out: dict[tuple[float, int, int], list[CellComparison]] = {}
        for cell in self.cells:
            if not cell.fitted and cell.near_saturation == near_saturation and cell.error(metric) is not None:
                held_out.setdefault(cell.load, []).append(cell)
        return {load: self._compare_load(cells, metric) for load, cells in held_out.items()}

    def _compare_load(self, held_out: Sequence[CellComparison], metric: str) -> LoadErrors:
        cells = list[HeldOutCell]()
        for cell in held_out:
            repeats, error = self._list_repeats_of(cell, metric), cell.error(metric)
            if error is None:
                continue
            if repeats:
                cells.append(RepeatedCell(cell.launch, error, statistics.fmean(repeats)))
            else:
                cells.append(HeldOutCell(cell.launch, error))
        return LoadErrors(tuple(cells))

    def _list_repeats_of(self, cell: CellComparison, metric: str) -> list[float]:
        first = cell.measured[metric]
        others = [other.measured[metric] for other in self.cells if other.repeats(cell)]
        return [abs(again / first - 1) for again in others if again is not None] if first else []


def calibrate(run: Path, config: str = BASELINE) -> Calibration:
    """Fit and compare. Raises RunnerError where the run has too little of this config."""
    cells = sorted(read_cells(run, config), key=lambda cell: cell.order)
    if len(cells) < 2:
        raise RunnerError(
            f"{run.name} has {format_count(len(cells), 'cell', 'cells')} of {config} with steps and requests; two are "
            "the least",
            remedy="name a run of connector-tax with several rates, or another --config",
        )
    fitting = cells[::2]
    works = [list_busy_steps(cell.steps, *cell.load[1:]) for cell in fitting]
    work = join_steps(works)
    step, count, mape = fit_steps(work)
    told_apart = list_told_apart(work.rows)
    not_told_apart = tuple(name for index, name in enumerate(COEFFICIENTS) if index not in told_apart)
    residuals = [list_residuals(work, step) for work in works]
    again = sorted(read_cells(run, REPEAT), key=lambda cell: cell.order) if config == BASELINE else []
    settings = read_settings([cell.record for cell in (*cells, *again)])
    model = msgspec.structs.replace(EngineModel(step, _read_capacity(run, config)), **settings)
    late = [
        measured - simulated
        for cell, own in zip(fitting, residuals, strict=True)
        if (measured := _measure_p90s(cell, cell.requests)["ttft_s"]) is not None
        and (simulated := _simulate_p90s(cell, model, own)["ttft_s"]) is not None
    ]
    model = msgspec.structs.replace(model, frontend_s=max(0.0, statistics.median(late)) if late else 0.0)
    compared = mark_near_saturation(compare_cells(cells, again, model, residuals))
    sources: tuple[str, ...] = (f"fitted to {count} steps of {len(fitting)} cells of {config} in {run.name}",)
    stored = tuple(tuple(own[: RESIDUALS // len(residuals)]) for own in residuals)
    if not_told_apart:
        sources += (f"{', '.join(not_told_apart)}: 0, because these steps do not tell their work apart from others",)
    if not_stated := [name for name in SETTINGS if name not in settings]:
        sources += (f"{', '.join(not_stated)}: the default, because no cell has the engine's setting",)
    engine = EngineFile(f"{config} of {run.name}", model, True, sources, stored)
    return Calibration(engine, count, mape, compared, not_told_apart)


@dataclass(frozen=True, slots=True)
class BusySteps:
    """Steps with work in them: what StepTime multiplies, and how long they took; arrays of one length."""

    prefill_tokens: np.ndarray
    decode_sequences: np.ndarray
    prefill_context: np.ndarray
    decode_context: np.ndarray
    step_s: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """A row per step, in the order of COEFFICIENTS."""
        return np.column_stack(
            [
                np.ones_like(self.step_s),
                self.prefill_tokens,
                self.decode_sequences,
                self.prefill_context,
                self.decode_context,
            ]
        )


def join_steps(works: Sequence[BusySteps]) -> BusySteps:
    """The steps of all of them."""
    return BusySteps(*(np.concatenate([getattr(work, one.name) for work in works]) for one in fields(BusySteps)))


def fit_steps(work: BusySteps) -> tuple[StepTime, int, float]:
    """Coefficients of a step, the number of steps, and their mean absolute relative error.

    A coefficient that the steps do not tell apart from those before it is 0: where every decode has one sequence of one
    length, its time is `base_s`. Raises RunnerError for fewer than FEWEST_STEPS, or where the steps say nothing of a
    coefficient's kind of work.
    """
    step_s = work.step_s
    if step_s.size < FEWEST_STEPS or not work.prefill_tokens.any() or not work.decode_sequences.any():
        raise RunnerError(
            f"{step_s.size} steps, {int((work.prefill_tokens > 0).sum())} of them with prompts, do not give a model",
            remedy=f"name a run whose cells have at least {FEWEST_STEPS} steps, with prompts and answers",
        )
    told_apart = list_told_apart(work.rows)
    rows = work.rows[:, told_apart]
    coefficients, _ = nnls(rows / step_s[:, None], np.ones_like(step_s))  # bent by no slow step
    usual = np.ones(step_s.size, dtype=bool)
    for _ in range(2):  # what is usual is known from a model, and the model from what is usual
        ratio = step_s / _expect_s(rows, coefficients)
        usual = ratio <= np.quantile(ratio, OUTLIERS)
        coefficients = _fit_mean(rows[usual], step_s[usual], coefficients)
    mape = float(np.mean(np.abs(_expect_s(rows, coefficients)[usual] / step_s[usual] - 1)))
    every = np.zeros(work.rows.shape[1])
    every[told_apart] = coefficients
    try:
        step = StepTime(*map(float, every))
    except ValueError as failed:
        raise RunnerError(
            f"{step_s.size} steps do not give a model: {failed}",
            remedy="name a run with several rates and several lengths of prompts and answers",
        ) from failed
    return step, int(usual.sum()), mape


def list_told_apart(rows: np.ndarray) -> list[int]:
    """The columns, from the left, that are no combination of those before them to within ALIKE of their length."""
    columns: list[int] = []
    directions: list[np.ndarray] = []
    for column in range(rows.shape[1]):
        values = rows[:, column]
        rest = values - sum((direction * (direction @ values) for direction in directions), np.zeros_like(values))
        if np.linalg.norm(rest) > ALIKE * np.linalg.norm(values):
            columns.append(column)
            directions.append(rest / np.linalg.norm(rest))
    return columns


def _fit_mean(rows: np.ndarray, step_s: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Coefficients, none below 0, with the least squared errors over the squares of what they give, begun with these.

    The errors of steps are proportional to their length. Errors over the measured time would favor the short steps:
    a model whose steps vary by 30 % would come out 13 % too fast, and with it every answer of many steps.
    """
    for _ in range(REFITS):
        expected_s = _expect_s(rows, coefficients)
        coefficients, _ = nnls(rows / expected_s[:, None], step_s / expected_s)
    return coefficients


def _expect_s(rows: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    expected_s: np.ndarray = np.maximum(rows @ coefficients, SHORTEST_S)
    return expected_s


def list_residuals(work: BusySteps, model: StepTime) -> list[float]:
    """What each step took over what the model gives it, to four digits."""
    coefficients = np.array([getattr(model, name) for name in model.__struct_fields__])
    return [float(f"{residual:.4g}") for residual in work.step_s / _expect_s(work.rows, coefficients)]


def simulate_cell(requests: pd.DataFrame, model: EngineModel, noise: Noise = STEADY) -> pd.DataFrame:
    """The cell's request records with the times that the model gives; what was never sent stays as it is."""
    clock = SimulatedClock()
    engine = Engine(model, 1, clock, jumps=False, noise=noise)
    frame = requests.copy()
    sent = frame[frame["t_send_ns"].notna()]
    begin_ns, origin_ns = clock.now_ns(), int(sent["t_send_ns"].min())
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}

    def note(times: dict[int, int], row: int) -> Callable[[], None]:
        return lambda: times.__setitem__(row, clock.now_ns() - begin_ns + origin_ns)

    def submit(row: int, prompt: int, answer: int) -> Callable[[], None]:
        return lambda: engine.submit(Job((), prompt, answer, note(firsts, row), note(ends, row)))

    for row, send_ns, prompt, answer in zip(
        sent.index, sent["t_send_ns"], sent["input_tokens"], sent["output_tokens"], strict=True
    ):
        clock.call_at(begin_ns + int(send_ns) - origin_ns, submit(int(row), int(prompt), int(answer)))
    clock.run()
    frame["t_first_token_ns"] = pd.Series(firsts, dtype="int64[pyarrow]").reindex(frame.index)
    for name in ("t_last_token_ns", "t_end_ns"):
        frame[name] = pd.Series(ends, dtype="int64[pyarrow]").reindex(frame.index)
    frame.loc[sent.index, "status"] = RequestStatus.OK.value
    frame.loc[sent.index, "completion_tokens"] = sent["output_tokens"]
    return frame


def compare_cells(
    cells: Sequence[Cell], again: Sequence[Cell], model: EngineModel, residuals: Sequence[Sequence[float]]
) -> list[CellComparison]:
    """Every cell, each with its repetition under the other name of its engine.

    `cells`: in order; every second one, from the first, gave the fit and one list of `residuals`. `again`: of
    independent launches of the same engine; all are held out.
    """
    fitted = [cell.order for cell in cells[::2]]
    names = [{cell.order: cell.record.cell for cell in part} for part in (cells, again)]
    compared = []
    for part, others in ((cells, names[1]), (again, names[0])):
        for index, cell in enumerate(part):
            before = max(0, bisect_right(fitted, cell.order) - 1)
            own = compare_cell(cell, model, residuals[before], fitted=part is cells and index % 2 == 0)
            compared.append(replace(own, repetition=others.get(cell.order, "")))
    return compared


def compare_cell(cell: Cell, model: EngineModel, residuals: Sequence[float], *, fitted: bool) -> CellComparison:
    """Simulate the cell's arrivals with these residuals as noise, and again with slower steps."""
    slower = msgspec.structs.replace(model, step=scale_step(model.step, SLOWER))
    measured = _measure_p90s(cell, cell.requests)
    simulated, later = (_simulate_p90s(cell, one, residuals) for one in (model, slower))
    steepness = [
        (after / before - 1) / (SLOWER - 1)
        for name in COMPARED
        if (before := simulated[name]) and (after := later[name]) is not None
    ]
    steepest = max(steepness, default=None)
    return CellComparison(
        cell.record.cell, fitted, cell.load, measured, simulated, steepest, launch=cell.launch
    )  # fmt: skip


def _simulate_p90s(cell: Cell, model: EngineModel, residuals: Sequence[float]) -> dict[str, float | None]:
    return _measure_p90s(cell, simulate_cell(cell.requests, model, ResidualNoise(residuals, cell.record.cell)))


def _measure_p90s(cell: Cell, requests: pd.DataFrame) -> dict[str, float | None]:
    samples = collect_latency_samples(requests, cell.record)
    return {name: _compute_percentile(samples[name]) for name in COMPARED}


def mark_near_saturation(cells: Sequence[CellComparison]) -> tuple[CellComparison, ...]:
    """All cells of a load alike: which of them meets a slow moment of the host is chance."""
    steep = {cell.load for cell in cells if cell.steepness is not None and cell.steepness > STEEP}
    return tuple(replace(cell, near_saturation=cell.load in steep) for cell in cells)


def _compute_percentile(samples: np.ndarray) -> float | None:
    known = samples[np.isfinite(samples)]
    return float(np.quantile(known, PERCENTILE)) if known.size else None


def read_cells(run: Path, config: str) -> Iterator[Cell]:
    """The run's cells of this config that have requests and steps, and whose client kept its schedule."""
    for path, record in _read_records(run, config):
        requests = read_requests(name_file_beside_cell(path, "requests")).frame
        steps = read_steps(name_file_beside_cell(path, "engine_step")).frame
        if requests is None or steps is None or record.fidelity.get("degraded"):
            continue
        instance = record.instance.get("instance")
        launch = f"{run.name}/{instance}" if instance else ""
        yield Cell(record, requests, select_steps_in_window(steps, record), launch)


def _read_records(run: Path, config: str) -> Iterator[tuple[Path, CellRecord]]:
    """The records of the run's cells of this config, with their files."""
    for layout in RunLayout(run).configs():
        for path in layout.cells():
            record = read_cell(path)
            if not isinstance(record, Gap) and record.config == config:
                yield path, record


def list_busy_steps(steps: pd.DataFrame, input_tokens: int, output_tokens: int) -> BusySteps:
    """The steps with work of a cell whose prompts and answers all have these lengths.

    A prompt token attends to half of its prompt on average, and a sequence that decodes reads its prompt and half of
    its answer. A step that follows an idle moment has no period; it takes its own time and what usually lies between
    two steps: nothing where steps overlap (async scheduling).
    """
    steps = steps[(steps["prefill_tokens"] + steps["decode_tokens"]) > 0]
    between_us = (steps["period_us"] - steps["engine_step_us"]).median()
    after_idle_us = steps["engine_step_us"] + (between_us if between_us > 0 else 0.0)
    step_us = steps["period_us"].fillna(after_idle_us)
    known = step_us.notna()
    columns = (steps["prefill_tokens"][known], steps["decode_tokens"][known], step_us[known] / 1e6)
    prefill, decode, step_s = (column.to_numpy(dtype=np.float64) for column in columns)
    return BusySteps(
        prefill, decode, prefill * (input_tokens + 1) / 2, decode * (input_tokens + output_tokens / 2), step_s
    )


def read_settings(records: Iterable[CellRecord]) -> dict[str, int]:
    """What vLLM settled on, by the names in EngineModel; what no cell states is left out.

    Raises RunnerError where cells differ.
    """
    common: dict[str, int] = {}
    for record in records:
        settings = record.instance.get("settings") or {}
        for name, setting in SETTINGS.items():
            value = settings.get(setting)
            if isinstance(value, int) and common.setdefault(name, value) != value:
                raise RunnerError(
                    f"cells of {record.config} ran with {setting} {common[name]} and {value}: no model fits both",
                    remedy="name a run whose engines have the same settings",
                )
    return common


def _read_capacity(run: Path, config: str) -> int:
    """Tokens that the engine has room for in its KV cache, as it reported."""
    for path, _ in _read_records(run, config):
        capacity = read_baseline_shape(name_file_beside_cell(path, "metrics")).capacity_tokens
        if capacity is not None:
            return capacity
    raise RunnerError(
        f"no cell of {config} in {run.name} says how large its KV cache is", remedy="name another run or --config"
    )

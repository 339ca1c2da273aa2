"""The percentiles of a run's cells, per trial, with their bootstrap draws: the input of every comparison."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.saturation_criteria import judge_launches
from results.connector_tax.summary import CellSummary, Shape, is_at_rate
from results.measures.step_durations import CALLBACKS, LATENCY, PERIOD, whole_step
from results.measures.summary import name_percentile
from results.records.estimate import Estimate
from results.statistics.blocks import BlockFit, draw_differences, fit_blocks
from results.statistics.estimates import DRAWS, Samples, bootstrap_quantiles, count_samples_needed, too_small
from results.statistics.judgement import is_too_degraded, name_degraded_remedy, name_remedy
from results.statistics.trials import Measured, Trial, unmeasured

Series = Mapping[str, Samples]
"""`ttft_s`, `tpot_s` and the step series (`..._us`) of one cell, in order of time."""
SamplesOf = Callable[[CellSummary], Series]

POINTS: Mapping[str, float] = {
    "ttft_s": 0.9,
    "tpot_s": 0.9,
    "step_duration_us": 0.5,
    LATENCY: 0.5,
    PERIOD: 0.5,
    CALLBACKS: 0.5,
}
"""The percentile that stands for each series (specs/connector_tax, "Substrate tax definition")."""
CLIENT_REMEDY = "run again with a core left for the load client, or at lower rates"
LOGARITHMIC = ("ttft_s", "tpot_s")
"""Taxed as a ratio: compared as logarithms."""


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What cells were sent; cells of several configs and trials share one. Loads are in the order of reports."""

    phase: str
    """`A`, `B` or `Bp`."""
    rate_per_s: float
    shape: Shape


def has_own_rate(load: Load, ref_safe_per_s: float | None) -> bool:
    """Whether this shape of Phase B was measured at a rate of its own instead of ref_safe.

    Without a ref_safe, only shapes with a rate of their own are measured.
    """
    return load.phase == "B" and not is_at_rate(load.rate_per_s, ref_safe_per_s)


class Measurements:
    """The percentiles of POINTS of every cell; a cell's samples are read when one of them is first asked for."""

    def __init__(
        self,
        summaries: Sequence[CellSummary],
        samples_of: SamplesOf,
        saturated: Mapping[str, bool | None] | None = None,
        ref_safe_per_s: float | None = None,
        planned: int = 0,
    ) -> None:
        """saturated: by `CellSummary.path`; None = not known. planned: launches per config, by the run's plan."""
        self._cells: dict[Load, dict[str, list[CellSummary]]] = defaultdict(lambda: defaultdict(list))
        for summary in summaries:
            load = Load(summary.phase, summary.rate_per_s, summary.shape)
            self._cells[load][summary.config].append(summary)
        self.whole_step = whole_step(summary.step_timing for summary in summaries)
        """The series that stands for a whole step in this run."""
        self.remedy = name_remedy(max(planned, len({summary.trial for summary in summaries})))
        """What gives a verdict where a config has too few launches: more of them, or those that the run lost."""
        self._samples_of = samples_of
        self._saturated = saturated or {}
        self.ref_safe_per_s = ref_safe_per_s
        self._points: dict[str, Mapping[str, Trial]] = {}
        self._cut: dict[str, frozenset[str]] = {}
        """By `CellSummary.path`, the series whose percentile is not known because requests were cut."""
        self._fits: dict[tuple[Load, str], BlockFit | str] = {}
        self._draws: dict[str, Mapping[Load, Mapping[str, Samples]]] = {}

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(sorted(self._cells))

    def configs(self, phase: str) -> tuple[str, ...]:
        names = {config for load, cells in self._cells.items() if load.phase == phase for config in cells}
        return tuple(sorted(names))

    def _list_cells(self, load: Load, config: str) -> Sequence[CellSummary]:
        return self._cells.get(load, {}).get(config, ())

    def get(self, load: Load, config: str, series: str) -> Measured:
        """The series' percentile in every trial of the config at this load that is not degraded.

        Unmeasured where too many trials are degraded, or where cut requests leave it unknown in one of several trials:
        the other trials may be the faster ones.
        """
        cells = self._list_cells(load, config)
        if not cells:
            return unmeasured(f"{config} was not measured at this load")
        judged = [cell for cell in cells if not cell.degraded]
        if judged and _is_too_degraded(cells):
            remedy = name_degraded_remedy((cell.degraded for cell in cells if cell.degraded), CLIENT_REMEDY)
            return unmeasured(
                f"{len(cells) - len(judged)} of {len(cells)} launches of {config} are degraded at this load, and the "
                f"others may be the faster ones; {remedy}"
            )
        cut = sum(self._is_cut(cell, series) for cell in judged)
        if cut and len(judged) > 1:
            return unmeasured(
                f"{config}: in {cut} of {len(judged)} launches requests that failed, were cut or timed out leave the "
                "percentile unknown, and the other launches may be the faster ones"
            )
        trials: dict[int, Trial] = {}
        why: dict[str, None] = {}
        for cell in cells:
            point = None if cell.degraded else self._measure_points(cell).get(series)
            if point is not None:
                trials[cell.trial] = point
            else:
                why[_explain_missing(cell, series)] = None
        return Measured(trials, "; ".join(why))

    def group_by_launch(self, load: Load, values: Mapping[str, float]) -> dict[str, dict[int, float]]:
        """By config and trial, the value of the cell at this load; `values`: by `CellSummary.cell`."""
        return {
            config: {cell.trial: values[cell.cell] for cell in cells if cell.cell in values}
            for config, cells in self._cells.get(load, {}).items()
        }

    def name_degraded(self, load: Load, configs: Sequence[str]) -> str:
        """Which launches of these configs at this load are left out because they are degraded; empty = none."""
        parts: list[str] = []
        for config in configs:
            cells = self._list_cells(load, config)
            count = sum(bool(cell.degraded) for cell in cells)
            if count:
                which = "all" if _is_too_degraded(cells) else f"{count} of {len(cells)}"
                parts.append(f"{which} launches of {config}")
        return ", ".join(parts)

    def why_left_out(self, load: Load, config: str) -> str:
        """Why no tax of the config is quoted at this load: the config or plain is saturated; empty where one is.

        At ref_safe, in Phase A and B, a tax is a cost without queueing, so config and plain must be clear; the sweep
        that chose the rate is only one launch of each config. B' measures what queueing adds to the config, so plain
        must be clear. At the other rates of Phase A the queue is part of the tax.
        """
        at_safe = load.phase == "B" or (load.phase == "A" and load.rate_per_s == self.ref_safe_per_s)
        if load.phase == "A" and not at_safe:
            return ""
        sides = (BASELINE, REPEAT, config) if at_safe else (BASELINE, REPEAT)
        return next((f"{side} is saturated at this load" for side in sides if self.is_saturated(load, side)), "")

    def is_saturated(self, load: Load, config: str) -> bool:
        """As `judge_launches`, of the config's launches at this load; False where none could be judged."""
        return judge_launches(self._saturated.get(cell.path) for cell in self._list_cells(load, config)) is True

    def compare(self, load: Load, series: str) -> BlockFit | str:
        """All configs at this load against both names of plain, or why they cannot be compared.

        Seconds are compared as logarithms, microseconds of a step as they are. Configs that `why_left_out` names take
        no part. A config that is saturated where a queue is part of the tax is set apart: its queue has other noise
        than the others.
        """
        key = load, series
        if key not in self._fits:
            scale = math.log if series in LOGARITHMIC else float
            launches = {
                config: {trial: scale(point.value) for trial, point in self.get(load, config, series).trials.items()}
                for config in self._cells[load]
                if not self.why_left_out(load, config)
            }
            queued = [config for config in launches if self.is_saturated(load, config)]
            self._fits[key] = fit_blocks(launches, (BASELINE, REPEAT), apart=queued)
        return self._fits[key]

    def draws(self, load: Load, series: str) -> Mapping[str, Samples]:
        """By config, draws of its difference to plain in `compare`; empty where there is no comparison.

        Draws of one series belong together, at this load and across loads.
        """
        if series not in self._draws:
            fits = {load: self.compare(load, series) for load in self.loads}
            fitted = {load: fit for load, fit in fits.items() if isinstance(fit, BlockFit)}
            self._draws[series] = draw_differences(fitted)
        return self._draws[series].get(load, {})

    def _is_cut(self, cell: CellSummary, series: str) -> bool:
        self._measure_points(cell)
        return series in self._cut[cell.path]

    def _measure_points(self, cell: CellSummary) -> Mapping[str, Trial]:
        if cell.path not in self._points:
            samples = self._samples_of(cell)
            seed = zlib.crc32(cell.cell.encode())  # one per cell: reproducible draws, joint for all its series
            trials = {
                name: _make_trial(samples[name], p, seed)
                for name, p in POINTS.items()
                if name in samples and samples[name].size
            }
            # not measured: a percentile among requests that were cut is infinite, or the cell has only its bounds
            cut = {name for name, trial in trials.items() if math.isinf(trial.value)}
            cut |= {name for name in POINTS if _is_bounded(cell, name)}  # also where no request has a value
            self._points[cell.path] = {
                name: trial for name, trial in trials.items() if trial.value > 0 and name not in cut
            }
            self._cut[cell.path] = frozenset(cut)
        return self._points[cell.path]


def _is_too_degraded(cells: Sequence[CellSummary]) -> bool:
    return is_too_degraded(sum(bool(cell.degraded) for cell in cells), len(cells))


def _make_trial(samples: Samples, p: float, seed: int) -> Trial:
    n = int(samples.size)

    @cache
    def draws() -> Samples | str:
        if n < count_samples_needed(p):
            return too_small(n, p)
        if np.isinf(samples).any():
            return f"{np.isinf(samples).sum()} of {n} requests were cut by the end of the drain or timed out"
        return bootstrap_quantiles(samples, p, DRAWS, np.random.default_rng(seed))

    return Trial(float(np.quantile(samples, p, method=_choose_quantile_method(samples, p))), n, draws)


def _choose_quantile_method(samples: Samples, p: float) -> Literal["higher", "linear"]:
    """No interpolation between a finite and an infinite value."""
    infinite = np.isinf(np.sort(samples)[math.ceil((samples.size - 1) * p)])
    return "higher" if infinite else "linear"


def _explain_missing(cell: CellSummary, series: str) -> str:
    if cell.degraded:
        return f"{cell.config} is degraded at this load: {cell.degraded}"
    if series == CALLBACKS:
        return _find_percentile(cell, series).reason or "no step has it"
    if _is_bounded(cell, series):
        return f"{cell.config}: {_find_percentile(cell, series).reason}"
    return f"{cell.config} has no {series}"


def _is_bounded(cell: CellSummary, series: str) -> bool:
    """Whether only a lower bound of the cell's percentile is known: requests failed, were cut or timed out."""
    percentile = _find_percentile(cell, series)
    return percentile.value is None and percentile.low is not None


def _find_percentile(cell: CellSummary, series: str) -> Estimate:
    return cell.estimate(name_percentile(series, f"p{POINTS[series] * 100:g}"))

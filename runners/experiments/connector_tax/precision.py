"""What a plan's launches can detect, by the sigma between launches in the newest finished run of the profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from results.connector_tax.configs import BASELINE, REPEAT
from results.connector_tax.launch_noise import NAMED_TAX
from results.records.estimate import figure
from results.records.layout import RunLayout, read_json
from results.records.percent import format_percent
from results.records.plan import RunPlan
from results.records.reference_rates import REF_SAFE
from results.statistics.blocks import POWER, detectable_effect, find_launches_for, show_count
from results.statistics.judgement import explain_few_launches
from results.statistics.trials import MIN_PAIRED
from runners.experiments.connector_tax.grid import PLANNED_LAUNCHES
from runners.experiments.earlier_runs import describe_no_sigma, find_newest
from state.workspace import RunEntry, Workspace

LATENCIES: Mapping[str, str] = {"tax_ttft_p90": "TTFT p90", "tax_tpot_p90": "TPOT p90"}


class _Row(msgspec.Struct, frozen=True):
    """Row of `launch_noise` in `tax.json`."""

    reference: str
    phase: str
    metric: str
    launches: int
    sigma: float
    """As a fraction."""


class _TaxFile(msgspec.Struct, frozen=True):
    launch_noise: tuple[_Row, ...] = ()


@dataclass(frozen=True, slots=True)
class _Noise:
    """Sigma of a launch at ref_safe in Phase A's shape, as one run measured it."""

    run: RunEntry
    launches: int
    sigmas: Mapping[str, float]
    """By latency, of the logarithm."""


def describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    """Sentences for the plan; empty where it compares nothing."""
    grid = plan.inputs["grid"]
    configs = sum(name not in (BASELINE, REPEAT) for name in plan.configs)
    if not configs:
        return ()
    few = explain_few_launches(grid["trials"])
    warning = (f"This run gives no verdict: {few}.",) if few else ()
    if few and not grid.get("confirm"):
        return warning
    return (*warning, *_describe_launches(plan, workspace, configs))


def _describe_launches(plan: RunPlan, workspace: Workspace, configs: int) -> tuple[str, ...]:
    """What the launches detect; `configs`: how many are compared with plain."""
    references = 2 if REPEAT in plan.configs else 1
    counts = sorted({plan.inputs["grid"]["trials"], *PLANNED_LAUNCHES} - set(range(MIN_PAIRED)))
    noise = find_newest(plan, workspace, _read_noise)
    if noise is None:
        effects = [detectable_effect(1.0, count, configs, references=references) for count in counts]
        detected = [f"{effect:.2f} sigma with {count}" for count, effect in zip(counts, effects, strict=True)]
        return (
            describe_no_sigma(workspace, "several launches per config"),
            f"Smallest difference (of log p90) that is detected with a probability of {format_percent(POWER)}: "
            f"{', '.join(detected)} launches per config (`--trials`).",
        )
    detected = [_describe_detectable(noise, count, configs, references) for count in counts]
    return (
        f"Sigma between launches: {_join_latencies({n: math.expm1(s) for n, s in noise.sigmas.items()})} "
        f"({noise.run.run}, preset {noise.run.preset}, {noise.launches} launches per config at ref_safe).",
        f"Smallest tax that is detected with a probability of {format_percent(POWER)}: {'; '.join(detected)} "
        "(`--trials`).",
        f"A tax of {format_percent(NAMED_TAX)} takes {_describe_needed(noise, configs, references)} launches per "
        "config.",
    )


def _describe_detectable(noise: _Noise, launches: int, configs: int, references: int) -> str:
    effects = {
        name: math.expm1(detectable_effect(sigma, launches, configs, references=references))
        for name, sigma in noise.sigmas.items()
    }
    return f"{_join_latencies(effects)} with {launches} launches per config"


def _describe_needed(noise: _Noise, configs: int, references: int) -> str:
    counts = {
        name: find_launches_for(math.log1p(NAMED_TAX), sigma, configs, references=references)
        for name, sigma in noise.sigmas.items()
    }
    return ", ".join(f"{show_count(count)} ({name})" for name, count in counts.items())


def _join_latencies(fractions: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figure(fraction * 100, 2)} %" for name, fraction in fractions.items())


def _read_noise(run: RunEntry) -> _Noise | None:
    """None where the file is missing, or of a version that had no such table."""
    document = read_json(RunLayout(run.folder).tax_json, _TaxFile) or _TaxFile()
    rows = [row for row in document.launch_noise if (row.phase, row.reference) == ("A", REF_SAFE)]
    sigmas = {name: math.log1p(row.sigma) for metric, name in LATENCIES.items() for row in rows if row.metric == metric}
    return _Noise(run, min(row.launches for row in rows), sigmas) if sigmas else None

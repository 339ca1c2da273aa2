"""What a plan's launches can detect, by the sigma of a launch in the newest finished run of the profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from results.pd_lifecycle.overheads import COMBINED_ENGINE, HANDOVER_ARM, NAMED_EFFECT, PLAIN_ENGINE
from results.records.estimate import figure
from results.records.layout import RunLayout, read_json
from results.records.percent import format_percent
from results.records.plan import RunPlan
from results.statistics.blocks import POWER, show_count
from results.statistics.launch_fit import LaunchSpread
from results.statistics.trials import MIN_PAIRED
from runners.experiments.earlier_runs import PLANNED_LAUNCHES, describe_no_sigma, find_newest
from runners.experiments.pd_lifecycle.grid import read_shape
from state.workspace import RunEntry, Workspace


class _Row(msgspec.Struct, frozen=True):
    """Row of `grid_overheads` in `aggregate.json`."""

    arm: str
    baseline: str
    spread: LaunchSpread | None = None


class _Aggregate(msgspec.Struct, frozen=True):
    grid_overheads: tuple[_Row, ...] = ()


@dataclass(frozen=True, slots=True)
class _Noise:
    """Sigma of a launch in the TTFT of the handover over that of `baseline`, as one run measured it."""

    run: RunEntry
    baseline: str
    spread: LaunchSpread
    """Spread of the logarithm of the ratio."""


def describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    """Sentences for the plan; empty where it compares nothing over launches."""
    grid = plan.inputs["grid"]
    baselines = [*([PLAIN_ENGINE] if grid["plain"] else []), *([COMBINED_ENGINE] if grid["baseline"] else [])]
    sizes = _count_sizes(plan)
    if not baselines or not sizes or grid["trials"] < MIN_PAIRED:
        return ()
    counts = sorted({grid["trials"], *PLANNED_LAUNCHES})
    judged = f"at one (C, N), all {sizes} judged together, that is detected with a probability of"
    noise = find_newest(plan, workspace, lambda run: _read_noise(run, baselines))
    if noise is None:
        return (
            describe_no_sigma(workspace, f"{MIN_PAIRED} launches of each engine"),
            f"Smallest difference (of log TTFT) {judged} {format_percent(POWER)}: "
            f"{', '.join(_describe_range(count, sizes) for count in counts)} launches (`--trials`); the more the "
            "(C, N) of a launch vary together, the larger it is.",
        )
    spread = _adapt_spread(noise.spread, sizes)
    detected = [f"{format_percent(math.expm1(spread.detectable_effect(count)))} with {count}" for count in counts]
    needed = spread.plan_launches(math.log1p(NAMED_EFFECT))
    return (
        f"Sigma between launches: {_describe_sigma(noise)}.",
        f"Smallest difference in TTFT {judged} {format_percent(POWER)}: {', '.join(detected)} launches (`--trials`).",
        f"A difference of {format_percent(NAMED_EFFECT)} takes {show_count(needed)} launches.",
    )


def _count_sizes(plan: RunPlan) -> int:
    """The (C, N) that the plan measures: each is compared."""
    shapes = (read_shape(cell) for cell in plan.cells if cell.kind == "lifecycle" and not cell.params["why_not"])
    return len({(shape.prior_context, shape.current_new_tokens) for shape in shapes})


def _describe_range(launches: int, sizes: int) -> str:
    """In units of sigma: where the (C, N) of a launch vary on their own, and where they vary as one."""
    spreads = (LaunchSpread(1.0, 1.0, 1.0, degrees, launches=2, sizes=sizes) for degrees in (float(sizes), 1.0))
    effects = dict.fromkeys(f"{spread.detectable_effect(launches):.2f}" for spread in spreads)
    return f"{' to '.join(effects)} sigma with {launches}"


def _adapt_spread(spread: LaunchSpread, sizes: int) -> LaunchSpread:
    """For this many (C, N), which have at most as many degrees of freedom as if they varied on their own."""
    return replace(spread, sizes=sizes, degrees=min(spread.degrees, float((spread.launches - 1) * sizes)))


def _describe_sigma(noise: _Noise) -> str:
    spread, run = noise.spread, noise.run
    sigma, low, high = (figure(100 * math.expm1(value), 2) for value in (spread.sigma, spread.low, spread.high))
    return (
        f"TTFT of the {HANDOVER_ARM} over the {noise.baseline} {sigma} % [{low}, {high}] ({run.run}, preset "
        f"{run.preset}, {spread.launches} launches, {figure(spread.degrees, 2)} degrees of freedom)"
    )


def _read_noise(run: RunEntry, baselines: Sequence[str]) -> _Noise | None:
    """Over the first of these baselines that has it; None where the run had too few launches, or none of them."""
    document = read_json(RunLayout(run.folder).aggregate_json, _Aggregate) or _Aggregate()
    spreads = {row.baseline: row.spread for row in document.grid_overheads if row.arm == HANDOVER_ARM}
    for name in baselines:
        spread = spreads.get(name)
        if spread is not None:
            return _Noise(run, name, spread)
    return None

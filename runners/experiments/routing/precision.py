"""What a plan's trials can detect, by the sigma between launches in the newest finished run of the profile."""

from __future__ import annotations

import math

import msgspec

from results.records.layout import RunLayout, read_json
from results.records.percent import format_percent
from results.records.plan import RunPlan
from results.routing.launch_noise import NAMED_EFFECT, TrialNoise, plan_trials
from results.routing.loads import strip_load
from results.statistics.blocks import POWER, show_count
from results.statistics.pairwise import compute_detectable_pair
from results.statistics.trials import MIN_PAIRED
from runners.experiments.earlier_runs import PLANNED_LAUNCHES, describe_no_sigma, find_newest
from state.workspace import RunEntry, Workspace


class _Verdicts(msgspec.Struct, frozen=True):
    launch_noise: TrialNoise | None = None
    simulated: object = None


def describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    """Sentences for the plan; empty where it compares nothing over trials, or measures nothing."""
    grid = plan.inputs["grid"]
    policies = len({strip_load(cell.label) for cell in plan.cells if cell.kind == "replay" and cell.trial == 0})
    if policies < 2 or grid["trials"] < MIN_PAIRED or grid.get("simulation"):
        return ()
    counts = sorted({grid["trials"], *PLANNED_LAUNCHES})
    newest = find_newest(plan, workspace, _read_noise)
    sigma = 1.0 if newest is None else newest[1].sigma
    effects = [compute_detectable_pair(sigma, count, policies) for count in counts]
    if newest is None:
        detected = ", ".join(f"{effect:.2f} sigma with {count}" for count, effect in zip(counts, effects, strict=True))
        return (
            describe_no_sigma(workspace, f"{MIN_PAIRED} trials"),
            f"Smallest difference of two policies (of log TTFT p90) that is detected with a probability of "
            f"{format_percent(POWER)}: {detected} trials.",
        )
    run, noise = newest
    shown = [
        f"{format_percent(math.expm1(effect))} with {count}" for count, effect in zip(counts, effects, strict=True)
    ]
    needed = plan_trials(sigma, policies)
    return (
        f"Sigma between launches: TTFT p90 {format_percent(math.expm1(sigma), 1)} ({run.run}, preset {run.preset}, "
        f"{noise.trials} trials, {noise.degrees} degrees of freedom).",
        f"Smallest difference of two policies in TTFT p90 that is detected with a probability of "
        f"{format_percent(POWER)}: {', '.join(shown)} trials.",
        f"A difference of {format_percent(NAMED_EFFECT)} takes {show_count(needed)} trials.",
    )


def _read_noise(run: RunEntry) -> tuple[RunEntry, TrialNoise] | None:
    """None where the file is missing, of a version that had no sigma, or of simulated engines."""
    verdicts = read_json(RunLayout(run.folder).verdicts_json, _Verdicts)
    if verdicts is None or verdicts.launch_noise is None or verdicts.simulated:
        return None
    return run, verdicts.launch_noise

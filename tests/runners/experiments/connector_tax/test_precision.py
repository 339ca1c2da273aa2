"""What a plan says of its launches: sigma of the newest finished run of its profile, or that none is known."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from results.records.events import RunChanged, RunState
from results.records.layout import RunLayout
from results.records.percent import format_percent
from results.records.plan import RunPlan
from results.statistics.blocks import detectable_effect
from runners.campaign.experiment import RunOptions
from runners.experiments.connector_tax.grid import EXPERIMENT
from runners.experiments.connector_tax.precision import describe_precision
from state.store import RunStore
from state.workspace import Workspace
from tests.runners.prepared import prepare

DEMO = prepare(RunOptions(EXPERIMENT, preset="demo")).plan
CONFIGS = 3
"""Of the demo, without plain under its two names."""


def finish_run(root: Path, name: str, sigma: float, *, state: RunState = RunState.DONE, plan: RunPlan = DEMO) -> None:
    """A run whose launches of one config differ by this sigma of log TTFT p90, and by half of it of TPOT."""
    folder = root / name
    with RunStore.create(folder, name, plan, "test") as store:
        store.append(RunChanged(RunState.RUNNING), RunChanged(state))
    noise = [
        {
            "reference": "ref_safe",
            "phase": phase,
            "metric": metric,
            "launches": 3,
            "sigma": math.expm1(value),
            "more": 1,
        }
        for phase in ("A", "B")
        for metric, value in (("tax_ttft_p90", sigma), ("tax_tpot_p90", sigma / 2))
    ]
    RunLayout(folder).tax_json.write_bytes(msgspec.json.encode({"format": 1, "launch_noise": noise}))


def test_without_a_finished_run_of_the_profile_no_sigma_is_named(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-running", 0.1, state=RunState.INTERRUPTED)
    unknown, multiples = describe_precision(DEMO, Workspace(tmp_path))
    assert f"no finished run of this profile in {tmp_path} has several launches per config" in unknown
    assert f"{detectable_effect(1.0, 3, CONFIGS):.2f} sigma with 3" in multiples
    assert f"{detectable_effect(1.0, 8, CONFIGS):.2f} sigma with 8 launches per config" in multiples


def test_the_newest_finished_run_that_knows_sigma_gives_it(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-old", 0.5)
    finish_run(tmp_path, "20260102-000000-new", 0.1)
    finish_run(tmp_path, "20260103-000000-unread", 0.3)
    RunLayout(tmp_path / "20260103-000000-unread").tax_json.write_bytes(b"{")
    sigma, effects, needed = describe_precision(DEMO, Workspace(tmp_path))
    assert sigma.startswith(
        "Sigma between launches: TTFT p90 11 %, TPOT p90 5.1 % (20260102-000000-new, preset demo, 3"
    )
    for launches in (3, 5, 8):
        tax = math.expm1(detectable_effect(0.1, launches, CONFIGS))
        assert f"TTFT p90 {format_percent(tax)}" in effects
    assert needed.startswith("A tax of 10 % takes ")
    assert "(TTFT p90)" in needed


@pytest.mark.parametrize(("preset", "trials", "known"), [("smoke", 4, 2), ("full", 6, 2)])
def test_a_plan_that_compares_launches_says_what_they_tell(
    tmp_path: Path, preset: str, trials: int, known: int
) -> None:
    plan = prepare(RunOptions(EXPERIMENT, preset=preset, trials=trials)).plan
    sentences = describe_precision(plan, Workspace(tmp_path))
    assert len(sentences) == known
    assert f"sigma with {trials}" in sentences[1]


@pytest.mark.parametrize(
    ("preset", "trials", "reason"), [("smoke", None, "one launch per config"), ("full", 2, "2 launches per config")]
)
def test_a_plan_of_too_few_launches_says_before_it_runs_that_it_gives_no_verdict(
    tmp_path: Path, preset: str, trials: int | None, reason: str
) -> None:
    plan = prepare(RunOptions(EXPERIMENT, preset=preset, trials=trials)).plan
    first, *others = describe_precision(plan, Workspace(tmp_path))
    assert first.startswith(f"This run gives no verdict: {reason}")
    assert first.endswith("`--trials 3` gives a verdict.")
    assert len(others) == (2 if preset == "full" else 0), "what more launches would detect"
    alone = prepare(RunOptions(EXPERIMENT, preset="smoke", configs=("plain",))).plan
    assert describe_precision(alone, Workspace(tmp_path)) == (), "nothing is compared"

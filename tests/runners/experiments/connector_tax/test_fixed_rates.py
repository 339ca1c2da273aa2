"""Reference rates that the plan fixes, so that a second run measures the loads of the first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from launch.profile import load_profile
from results.records.errors import ArtifactError
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome, RunOptions
from runners.campaign.start import Prepared
from runners.errors import CellSkipped, RunnerError
from runners.experiments.connector_tax.experiment import ConnectorTax
from runners.experiments.connector_tax.grid import EXPERIMENT, read_grid
from tests.results.connector_tax.synthetic import Behavior, Run, write_run
from tests.runners.prepared import prepare

FIXED = ("ref_safe_per_s=16", "ref_load_per_s=32")


def prepare_full(*settings: str) -> Prepared:
    return prepare(RunOptions(EXPERIMENT, settings=settings))


def list_confirmed(prepared: Prepared) -> list[CellPlan]:
    return [cell for cell in prepared.plan.cells if cell.stage == "confirm"]


def test_the_plan_states_fixed_rates_and_one_without_them_is_that_of_older_versions() -> None:
    fixed, chosen = prepare_full(*FIXED), prepare_full()
    assert (fixed.plan.inputs["grid"]["ref_safe_per_s"], fixed.plan.inputs["grid"]["ref_load_per_s"]) == (16, 32)
    assert not {"ref_safe_per_s", "ref_load_per_s"}.intersection(chosen.plan.inputs["grid"])
    notes = [note for note in fixed.draft.notes if "fixes" in note]
    assert notes == ["The plan fixes ref_safe = 16 req/s and ref_load = 32 req/s; what Phase A gives is only reported."]
    assert [cell.cell for cell in list_confirmed(fixed)] == [cell.cell for cell in list_confirmed(chosen)]


def test_the_time_estimate_takes_the_fixed_rates() -> None:
    def confirm_s(*settings: str) -> float:
        return sum(cell.estimated_s for cell in list_confirmed(prepare_full("min_completed=600", *settings)))

    slow, fast = confirm_s("ref_safe_per_s=4", "ref_load_per_s=4"), confirm_s("ref_safe_per_s=64", "ref_load_per_s=64")
    assert slow > 2 * fast


def test_an_expected_rate_is_asked_for_only_where_no_rate_is_fixed() -> None:
    prepare_full(*FIXED, "expected_ref_safe_per_s=0")
    with pytest.raises(RunnerError, match="phase_b needs expected_ref_safe_per_s"):
        prepare_full("expected_ref_safe_per_s=0")


def test_with_one_fixed_rate_for_both_no_load_is_planned_twice() -> None:
    cells = list_confirmed(prepare_full("ref_safe_per_s=16", "ref_load_per_s=16"))
    assert cells
    assert not [cell.cell for cell in cells if "ref_load" in cell.cell]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("ref_safe_per_s=16",), "fixed together"),
        (("ref_safe_per_s=16", "ref_load_per_s=20"), "ref_load_per_s = 20 is no rate of phase_a.rates_per_s"),
        (("ref_safe_per_s=32", "ref_load_per_s=16"), "at most ref_load_per_s"),
    ],
)
def test_rates_that_cannot_be_fixed_are_refused(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(RunnerError, match=why):
        prepare_full(*settings)


async def test_the_run_uses_the_fixed_rates_and_states_what_phase_a_gives(tmp_path: Path) -> None:
    write_run(tmp_path, Run({"plain": Behavior(sigma=0.05)}, (16.0, 32.0, 64.0), requests=60, steps=0))
    profile = load_profile("cpu-tiny")
    grid = read_grid(profile.experiments[EXPERIMENT], profile.name, "full", settings=FIXED)
    layout = RunLayout(tmp_path)
    context = SimpleNamespace(layout=layout, engine=None, emit=lambda *events: None)
    cell = next(cell for cell in prepare_full(*FIXED).plan.cells if cell.kind == "reference")
    outcome = await ConnectorTax(grid, cast(RunContext, context)).run_cell(cell, 1)
    assert outcome.summary == {"ref_safe_per_s": 16.0, "ref_load_per_s": 32.0}
    written = ReferenceRates.from_json(layout.reference_rates.read_bytes())
    assert (written.ref_safe_per_s, written.ref_load_per_s, written.fixed) == (16.0, 32.0, True)
    assert written.ref_safe_reason.startswith("fixed by the plan; Phase A gives 64 req/s: nothing saturated up to")


def stub_loads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates that loads are sent at from now on; nothing is sent."""
    measured: list[float] = []

    async def measure(cell: CellPlan, attempt: int, rate_per_s: float, context: RunContext) -> CellOutcome:
        measured.append(rate_per_s)
        return CellOutcome({})

    monkeypatch.setattr("runners.experiments.connector_tax.experiment.measure_load", measure)
    monkeypatch.setattr(ConnectorTax, "_ensure_patches", AsyncMock())
    return measured


def make_runners(folder: Path) -> tuple[ConnectorTax, ConnectorTax]:
    """Of a run in this folder whose plan fixes the rates, and of one whose plan does not."""
    context = cast(RunContext, SimpleNamespace(layout=RunLayout(folder), engine=None, emit=lambda *events: None))
    tables = load_profile("cpu-tiny").experiments[EXPERIMENT]
    fixed = read_grid(tables, "cpu-tiny", "full", settings=FIXED)
    return ConnectorTax(fixed, context), ConnectorTax(read_grid(tables, "cpu-tiny", "full"), context)


async def test_the_loads_of_fixed_rates_need_no_reference_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage was skipped: the plan states the rates, so the confirm stage measures them."""
    measured = stub_loads(monkeypatch)
    fixed, chosen = make_runners(tmp_path)
    loads = {cell.params.get("rate"): cell for cell in list_confirmed(prepare_full(*FIXED))}
    for reference in (REF_SAFE, REF_LOAD):
        await fixed.run_cell(loads[reference], 1)
    assert measured == [16.0, 32.0]
    with pytest.raises(CellSkipped, match="there are no reference rates"):
        await chosen.run_cell(loads[REF_SAFE], 1)


async def test_a_damaged_file_of_rates_stops_only_a_run_whose_plan_does_not_fix_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = stub_loads(monkeypatch)
    fixed, chosen = make_runners(tmp_path)
    RunLayout(tmp_path).reference_rates.write_bytes(b"{")
    loads = {cell.params.get("rate"): cell for cell in list_confirmed(prepare_full(*FIXED))}
    await fixed.run_cell(loads[REF_LOAD], 1)
    assert measured == [32.0]
    with pytest.raises(ArtifactError, match=r"reference_rates\.json is damaged"):
        await chosen.run_cell(loads[REF_LOAD], 1)

"""The experiment's own decisions: fallback without the probe, which cells are skipped and why, a cell's rate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from launch.errors import PatchFailed
from launch.patching import PatchUse
from launch.profile import load_profile
from results.connector_tax.read import analyze_cell
from results.records.events import CellChanged, CellState, Event, Noted
from results.records.layout import RunLayout, write_atomic
from results.records.plan import CellPlan
from results.records.reference_rates import ReferenceRates
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome, RunOptions
from runners.cli.asking import skip_stages
from runners.errors import CellSkipped, RunnerError
from runners.experiments.connector_tax.experiment import ConnectorTax
from runners.experiments.connector_tax.grid import EXPERIMENT, read_grid
from state.store import RunStore
from tests.e2e.cli import view_of
from tests.results.connector_tax.synthetic import DATE, Behavior, Cell, Load, write_cell
from tests.runners.prepared import prepare

PROFILE = load_profile("cpu-tiny")
GRID = read_grid(PROFILE.experiments[EXPERIMENT], PROFILE.name, "full")
PLAN = prepare(RunOptions(EXPERIMENT)).plan
CELLS = {cell.cell: cell for cell in PLAN.cells}
SWEEP = {cell.cell: cell for cell in prepare(RunOptions(EXPERIMENT, settings=("confirm=false",))).plan.cells}
"""Of a run without a confirm stage."""


class Subject:
    """The experiment over an empty run folder, and the events it appends to the journal."""

    def __init__(self, folder: Path) -> None:
        self.layout = RunLayout(folder)
        self.events: list[Event] = []
        context = SimpleNamespace(layout=self.layout, engine=None, emit=self.events.append)
        self.experiment = ConnectorTax(GRID, cast(RunContext, context))

    async def run(self, cell: CellPlan) -> CellOutcome:
        return await self.experiment.run_cell(cell, 1)

    def rates(self, safe: float | None, load: float | None) -> None:
        chosen = ReferenceRates(safe, load, "why safe", "why load")
        write_atomic(self.layout.reference_rates, chosen.to_json())


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(tmp_path)


async def test_without_the_probe_the_run_goes_on_and_says_so(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(use: object) -> Any:  # noqa: ANN401  # stands in for PatchUse.apply
        raise PatchFailed("site-packages cannot be written", remedy="use another environment")

    monkeypatch.setattr(PatchUse, "apply", refuse)
    outcome = await subject.run(CELLS["preflight/probe"])
    assert outcome.summary["step_timing_available"] is False
    assert "cannot be written" in outcome.summary["reason"]
    assert [event.level for event in subject.events if isinstance(event, Noted)] == ["warning"]


@pytest.mark.parametrize(
    ("rates", "cell", "why"),
    [
        ((None, 8.0), SWEEP["phase-b/plain/512x32"], "no ref_safe: why safe"),
        ((None, 8.0), CELLS["confirm/plain/512x32-ref_safe/t3"], "no ref_safe: why safe"),
        ((8.0, 8.0), SWEEP["phase-b-prime/plain/512x32"], "not needed: ref_load equals ref_safe"),
        ((8.0, 8.0), CELLS["confirm/plain/512x32-ref_load/t3"], "not needed: ref_load equals ref_safe"),
    ],
    ids=["phase B at no rate", "confirm at no rate", "phase B' at the rate of B", "confirm at the rate of B"],
)
async def test_a_cell_whose_reference_rate_was_not_found_or_is_another_s_is_skipped_with_the_reason(
    rates: tuple[float | None, float | None], cell: CellPlan, why: str, subject: Subject
) -> None:
    subject.rates(*rates)
    with pytest.raises(CellSkipped, match=why):
        await subject.run(cell)


def test_a_resumed_confirm_stage_adopts_the_launches_that_are_whole(tmp_path: Path, subject: Subject) -> None:
    measured = Load(4.0, 512, 32, "C", requests=40, trial=3, reference="ref_safe")
    folder = subject.layout.config(DATE, "nixl_both")
    record = write_cell(folder, Cell("nixl_both", Behavior(), measured, steps=0))
    cell = CELLS["confirm/nixl_both/512x32-ref_safe/t3"]
    assert cell.cell == measured.cell("nixl_both")
    outcome = subject.experiment.adopt(cell)
    assert outcome is not None
    assert outcome.summary["completed"] == 40
    assert subject.experiment.adopt(CELLS["confirm/nixl_both/512x32-ref_safe/t4"]) is None
    assert subject.experiment.adopt(CELLS["confirm/plain/512x32-ref_safe/t3"]) is None
    folder.requests("C", measured.stem).write_bytes(b"cut short")
    assert record.exists()
    assert subject.experiment.adopt(cell) is None


@pytest.mark.parametrize(
    ("client", "degraded"),
    [({"wrong_length": 3}, "3 completions had other lengths than asked for"), ({"wrong_length": 0}, ""), ({}, "")],
)
def test_adopted_cells_degrade_as_in_the_analysis(subject: Subject, client: dict[str, int], degraded: str) -> None:
    measured = Load(4.0, 512, 32, "C", requests=40, trial=3, reference="ref_safe")
    record = write_cell(subject.layout.config(DATE, "nixl_both"), Cell("nixl_both", Behavior(), measured, steps=0))
    record.write_bytes(msgspec.json.encode(msgspec.json.decode(record.read_bytes()) | {"client": client}))
    outcome = subject.experiment.adopt(CELLS["confirm/nixl_both/512x32-ref_safe/t3"])
    assert outcome is not None
    assert outcome.degraded == analyze_cell(record).degraded == degraded


def test_a_config_that_failed_its_pre_flight_is_not_measured(tmp_path: Path, subject: Subject) -> None:
    with RunStore.create(tmp_path / "state", "run", PLAN, "test") as store:
        store.append(CellChanged("preflight/nixl_both", CellState.RUNNING, 1))
        store.append(CellChanged("preflight/nixl_both", CellState.FAILED, 1, "no transfer was seen"))
        view = store.view()
    assert "no transfer was seen" in subject.experiment.explain_skip(CELLS["phase-a/nixl_both/r4"], view)
    assert subject.experiment.explain_skip(CELLS["phase-a/plain/r4"], view) == ""
    assert subject.experiment.explain_skip(CELLS["analysis/report"], view) == ""


@pytest.mark.parametrize("given", ["3", "confirm"])
def test_a_stage_can_be_skipped_by_number_or_id(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "run"
    RunStore.create(folder, "run", PLAN, "test").close()
    skip_stages(folder, [given])
    skipped = {cell.plan.stage for cell in view_of(folder).cells.values() if cell.state is CellState.SKIPPED}
    assert skipped == {"confirm"}
    with pytest.raises(RunnerError, match="no stage '9'") as refused:
        skip_stages(folder, ["9"])
    assert "4 analysis" in refused.value.remedy

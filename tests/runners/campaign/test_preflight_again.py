"""An engine that a signal ends in pre-flight costs one attempt of its gate, and not its config the whole run."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launch.instance import Instance
from launch.preflight import GateResult
from results.records.events import CellState
from results.records.layout import RunLayout
from results.records.plan import CellPlan, RunPlan, StagePlan
from runners.campaign.cell_loop import CellLoop
from runners.campaign.context import RunContext
from runners.campaign.engine_slot import EngineSlot
from runners.campaign.experiment import CellOutcome
from runners.campaign.plan import freeze_plan
from runners.experiments import gates
from state import lease as leases
from state.model import RunView
from state.store import RunStore
from tests.launch.programs import SERVER
from tests.runners.campaign.launchers import Programs, make_launcher
from tests.runners.campaign.scripted import Scripted

GATE, LATER = "preflight/plain", "s1-c0"


def a_plan() -> RunPlan:
    return freeze_plan(
        experiment="scripted",
        profile="none",
        preset="full",
        configs=["plain"],
        seed=1,
        stages=[StagePlan("preflight", "pre-flight"), StagePlan("s1", "stage 1")],
        cells=[
            CellPlan(GATE, "preflight", "preflight", "plain", "plain", {}, 1.0),
            CellPlan(LATER, "s1", "measure", "plain", "a measurement", {}, 1.0),
        ],
        inputs={},
    )


class Gated(Scripted):
    """A pre-flight with an engine, and a cell that waits for its decision."""

    def __init__(self, folder: Path, context: RunContext) -> None:
        super().__init__(folder)
        self._context = context

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        return gates.explain_gated(cell, view)

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.kind == "preflight":
            return await gates.verify_config(cell, attempt, self._context)
        return await super().run_cell(cell, attempt)


def make_context(folder: Path, store: RunStore, backend: Programs) -> RunContext:
    launcher = make_launcher(folder, backend, store)
    of_launcher = {"profile": launcher.profile, "configs": launcher.configs}
    return cast(RunContext, SimpleNamespace(layout=RunLayout(folder), slot=EngineSlot(launcher), **of_launcher))


async def run_gate(folder: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> RunView:
    async def verify(instance: Instance, *_: object) -> GateResult:
        if instance.name in [f"plain-{number}" for number in range(1, deaths + 1)]:
            os.kill(instance.pid, signal.SIGKILL)
            async with asyncio.timeout(20):
                while await instance.find_death() is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            return GateResult("plain", False, (), "request 1 was not answered")
        return GateResult("plain", True, (), "")

    monkeypatch.setattr(gates, "verify", verify)
    RunStore.create(folder, folder.name, a_plan(), "test").close()
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        async with Programs(SERVER) as backend:
            cells = Gated(folder, make_context(folder, store, backend))
            await asyncio.wait_for(CellLoop(store, lease, folder, cells).run(), 60)
        return store.view()


async def test_it_is_tried_again_once_and_its_config_stays_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await run_gate(tmp_path / "run", monkeypatch, 1)
    gate = view.cells[GATE]
    assert (gate.state, gate.attempt) == (CellState.DONE, 2)
    assert "plain-1 was ended by SIGKILL" in gate.attempts[0].reason
    assert view.cells[LATER].state is CellState.DONE


async def test_one_that_dies_every_time_fails_with_the_gates_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await run_gate(tmp_path / "run", monkeypatch, 9)
    gate = view.cells[GATE]
    assert (gate.state, gate.attempt) == (CellState.FAILED, 2)
    assert gate.reason.startswith("request 1 was not answered")
    assert view.cells[LATER].state is CellState.SKIPPED

"""An experiment without engines: its cells write one line each, so that a test can count how often each was measured.

Run as a program it is the run process of a fault test: `python -m tests.runners.campaign.scripted RUN_FOLDER`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from launch.errors import LaunchError
from launch.ports import PortTaken
from launch.processes import ProcessesUnseen
from results.records.layout import publish
from results.records.plan import CellPlan, RunPlan, StagePlan
from runners.campaign.cell_loop import CellLoop
from runners.campaign.experiment import CellOutcome, RunsAhead
from runners.campaign.plan import freeze_plan
from runners.errors import CellFailed, CellSkipped
from state import lease as leases
from state.model import RunView
from state.store import RunStore

CELL_S = 0.02
OBSTACLES: Mapping[str, Callable[[], LaunchError]] = {
    "port": lambda: PortTaken("port 1 (http) is taken by pid 2", remedy="end it"),
    "unseen": lambda: ProcessesUnseen("what is left of an engine cannot be seen", remedy="raise the limit"),
}
"""What every further cell would meet too, by the kind of the cell that meets it first."""


def scripted_plan(stages: int = 3, cells: int = 4, outcomes: Mapping[str, str] | None = None) -> RunPlan:
    """Stages `s0`, `s1` ... of cells `s0-c0` ...; `outcomes` gives kinds (`fail`, `slow`, `late` ...) by cell."""
    plans = [
        CellPlan(f"s{s}-c{c}", f"s{s}", (outcomes or {}).get(f"s{s}-c{c}", "measure"), "plain", f"cell {c}", {}, CELL_S)
        for s in range(stages)
        for c in range(cells)
    ]
    return freeze_plan(
        experiment="scripted",
        profile="none",
        preset="full",
        configs=["plain"],
        seed=1,
        stages=[StagePlan(f"s{s}", f"stage {s}") for s in range(stages)],
        cells=plans,
        inputs={},
    )


class Scripted:
    """Each cell sleeps, writes `attempts/<cell>` and publishes it to `done/<cell>`; a `late` one fails after that."""

    name = "scripted"
    ahead: RunsAhead | None = None

    def __init__(self, folder: Path, cell_s: float = CELL_S) -> None:
        self._folder = folder
        self._cell_s = cell_s
        self.released: list[str] = []
        self.finished = 0
        self.why_unread: Exception | None = None
        """What `adopt` raises."""

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        return ""

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        await asyncio.sleep(10.0 if cell.kind == "slow" else self._cell_s)
        if cell.kind == "fail" and attempt == 1:
            raise CellFailed("as scripted")
        if cell.kind == "short" and attempt == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        if cell.kind.removeprefix("gate ") in OBSTACLES and attempt == 1:
            obstacle = OBSTACLES[cell.kind.removeprefix("gate ")]()
            raise obstacle if cell.kind in OBSTACLES else CellFailed(str(obstacle)) from obstacle
        if cell.kind == "skip":
            raise CellSkipped("as scripted")
        partial = self._folder / "attempts" / f"{cell.cell}.{attempt}"
        partial.parent.mkdir(exist_ok=True)
        partial.write_text(f"{cell.cell} {attempt} {os.getpid()}\n")
        publish({partial: self._folder / "done" / cell.cell})
        if cell.kind == "late":
            raise OSError(errno.EMFILE, "Too many open files")
        return CellOutcome({"attempt": attempt})

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        if self.why_unread is not None:
            raise self.why_unread
        done = self._folder / "done" / cell.cell
        return CellOutcome({"attempt": int(done.read_text().split()[1])}) if done.exists() else None

    async def finish(self) -> None:
        self.finished += 1

    async def release(self, reason: str) -> None:
        self.released.append(reason)


def work(folder: Path, cell_s: float = CELL_S) -> int:
    """Be the run process of the scripted experiment."""
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        return asyncio.run(CellLoop(store, lease, folder, Scripted(folder, cell_s)).run())


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))

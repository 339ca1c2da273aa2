"""The run process is killed at the worst moments: resume completes, each cell is measured once, no engine stays."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.records.events import CellChanged, CellState, RunState, StageState
from state.model import RunView
from state.store import RunStore
from state.workspace import Workspace
from tests.e2e.cli import data, port, starting, tracon, view_of, wait_until, wait_until_no_engine, worker_pid

pytestmark = [pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(480)]


def in_a_cell(view: RunView) -> bool:
    return any(cell.plan.kind == "load" and cell.fraction > 0.2 for cell in view.current_cells)


def between_stages(view: RunView) -> bool:
    return any(stage.stage == "phase-a" and stage.state is StageState.DONE for stage in view.stages)


def kill(folder: Path) -> None:
    """Kill the run process, if it still works, and see its engines go."""
    pid = worker_pid(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until_no_engine(folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace in which no run works on after its test, whatever the test came to."""
    yield tmp_path
    for run in Workspace(tmp_path).runs():
        kill(run.folder)


def times_done(folder: Path) -> Counter[str]:
    with RunStore.open(folder, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    return Counter(event.cell for event in events if isinstance(event, CellChanged) and event.state is CellState.DONE)


def test_a_run_survives_its_process_being_killed_everywhere(workspace: Path) -> None:
    started = tracon(
        *("run", "connector-tax", "--preset", "smoke", "-c", "plain", "-c", "mooncake_both"),
        *("--port", port(), "--detach", "--json"),
        workspace=workspace,
    )
    folder = Path(data(started)["folder"])

    def resume() -> None:
        resumed = tracon("resume", folder.name, "--detach", "--json", workspace=workspace)
        assert resumed.returncode == 0, resumed.stderr

    wait_until(folder, starting)
    kill(folder)
    for moment in (in_a_cell, between_stages):
        resume()
        wait_until(folder, moment)
        kill(folder)
    resume()
    wait_until(folder, lambda view: view.state is RunState.RUNNING and bool(view.current_cells))
    time.sleep(random.uniform(0.0, 6.0))  # any moment at all
    kill(folder)
    finished = tracon("resume", folder.name, "--json", workspace=workspace)

    assert finished.returncode == 0, finished.stderr
    view = view_of(folder)
    assert view.state is RunState.DONE
    measured = [plan.cell for plan in view.plan.cells if view.cells[plan.cell].state is CellState.DONE]
    assert times_done(folder) == Counter(measured)
    assert {cell.state for cell in view.cells.values()} <= {CellState.DONE, CellState.SKIPPED}
    wait_until_no_engine(folder)


def test_ctrl_c_leaves_a_run_that_can_be_resumed(workspace: Path) -> None:
    started = tracon(
        "run",
        "connector-tax",
        "--preset",
        "smoke",
        "-c",
        "plain",
        "--port",
        port(),
        "--detach",
        "--json",
        workspace=workspace,
    )
    folder = Path(data(started)["folder"])
    wait_until(folder, in_a_cell)
    stopped = tracon("stop", folder.name, "--now", "--reason", "a test", "--json", workspace=workspace)
    assert data(stopped)["accepted"]
    view = wait_until(folder, lambda seen: seen.state is RunState.INTERRUPTED)
    assert "a test" in view.reason
    wait_until_no_engine(folder)
    assert tracon("watch", folder.name, workspace=workspace).returncode == 3

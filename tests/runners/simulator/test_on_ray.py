"""Simulations on a Ray cluster of two nodes, one of which is killed: nothing is lost, and the bytes are the same."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from results.records.events import CellState
from results.records.layout import list_trial_layouts
from runners.campaign.run_process import work
from runners.campaign.start import create_run
from runners.errors import ExitCode, RunnerError
from runners.experiments.registry import select_experiment
from runners.simulator.backends import LOCAL, LocalSimulations, is_backend, open_simulations
from state.workspace import Workspace
from tests.e2e.cli import view_of
from tests.runners.experiments.routing.test_simulation import SAME, cells_of, plan_run

KILL_WITHIN_S = 240.0


@pytest.mark.parametrize(
    ("where", "known"), [("local", True), ("ray", True), ("ray://head:10001", True), ("k8s", False)]
)
def test_a_backend_is_checked_before_anything_runs(where: str, known: bool) -> None:
    assert is_backend(where) is known
    if not known:
        with pytest.raises(RunnerError, match=r"simulation\.on"):
            plan_run(f"simulation.on={where}")


def test_the_default_is_this_host() -> None:
    plan = plan_run().plan
    assert "on" not in plan.inputs["grid"]["simulation"]
    assert isinstance(open_simulations(LOCAL), LocalSimulations)


@pytest.mark.long
def test_a_lost_nodes_tasks_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = pytest.importorskip("ray", reason="`make test-long` installs Ray, from ray.lock")
    cluster_utils: Any = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    alone = create_run(Workspace(tmp_path / "alone"), plan_run())
    assert work(alone, select_experiment, accept_changes=False) == ExitCode.DONE
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        worker = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        folder = create_run(Workspace(tmp_path / "cluster"), plan_run("simulation.on=ray"))
        killed: list[int] = []

        def kill_worker() -> None:
            deadline = time.monotonic() + KILL_WITHIN_S
            while not list(folder.glob("results/*/trial_*/cell.json")) and time.monotonic() < deadline:
                time.sleep(0.02)
            killed.append(len(list(folder.glob("results/*/trial_*/cell.json"))))
            cluster.remove_node(worker, allow_graceful=False)

        killer = threading.Thread(target=kill_worker)
        killer.start()
        assert work(folder, select_experiment, accept_changes=False) == ExitCode.DONE
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed
    assert 0 < killed[0] < len(list_trial_layouts(folder))
    assert {cell.state for cell in view_of(folder).cells.values()} == {CellState.DONE}
    cells, others = cells_of(alone), cells_of(folder)
    assert cells.keys() == others.keys()
    for name, cell in cells.items():
        for file in SAME:
            assert (cell.root / file).read_bytes() == (others[name].root / file).read_bytes(), (name, file)

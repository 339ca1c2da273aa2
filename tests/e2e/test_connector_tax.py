"""`tracon run connector-tax` on real engines. Its process is killed at the worst moments, and the run is stopped once.

Resumed to its end it has measured every config, each cell once, with every artifact; no engine stays, and stdout has
nothing but data.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from results.records.events import CellChanged, CellState, RunState, StageState
from results.records.layout import RunLayout, sha256
from state.model import RunView
from state.status import to_json
from state.store import RunStore
from state.workspace import Workspace
from tests.e2e.cli import (
    data,
    engine_processes,
    port,
    starting,
    tracon,
    view_of,
    wait_until,
    wait_until_no_engine,
    worker_pid,
)

pytestmark = [pytest.mark.engine, pytest.mark.fault, pytest.mark.timeout(900)]

CONFIGS = ("plain", "noop_connector", "mooncake_both", "nixl_both")
SWEEP_S = 300.0
"""Within which phase A of every config is over, on a busy host."""


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


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace in which no run works on after its tests, whatever they came to."""
    path = tmp_path_factory.mktemp("workspace")
    yield path
    for run in Workspace(path).runs():
        kill(run.folder)


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of the run when it was stopped."""

    accepted: bool
    reason: str
    watch_exit: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The run after its last resume."""

    folder: Path
    stopped: Stopped
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def run(workspace: Path) -> Interrupted:
    """Killed while an engine starts, in a cell, between two stages and at any moment; stopped in a cell."""
    asked = ("run", "connector-tax", "--preset", "smoke", "--port", port(), "--detach", "--json")
    folder = Path(data(tracon(*asked, workspace=workspace))["folder"])
    wait_until(folder, starting)
    kill(folder)
    resume(folder)
    wait_until(folder, in_a_cell)
    kill(folder)
    resume(folder)
    wait_until(folder, in_a_cell)
    stopped = stop(folder)
    resume(folder)
    wait_until(folder, between_stages, SWEEP_S)
    kill(folder)
    resume(folder)
    wait_until(folder, lambda view: view.state is RunState.RUNNING and bool(view.current_cells))
    time.sleep(random.uniform(0.0, 6.0))  # any moment at all
    kill(folder)
    return Interrupted(folder, stopped, tracon("resume", folder.name, "--json", workspace=workspace))


def resume(folder: Path) -> None:
    resumed = tracon("resume", folder.name, "--detach", "--json", workspace=folder.parent)
    assert resumed.returncode == 0, resumed.stderr


def stop(folder: Path) -> Stopped:
    """As Ctrl-C does."""
    stopped = tracon("stop", folder.name, "--now", "--reason", "a test", "--json", workspace=folder.parent)
    view = wait_until(folder, lambda seen: seen.state is RunState.INTERRUPTED)
    wait_until_no_engine(folder)
    watched = tracon("watch", folder.name, workspace=folder.parent)
    return Stopped(data(stopped)["accepted"], view.reason, watched.returncode)


@pytest.fixture(scope="module")
def folder(run: Interrupted) -> Path:
    assert run.resumed.returncode == 0, run.resumed.stderr[-4000:]
    return run.folder


def test_a_resume_in_a_pipe_prints_only_data_and_ends_with_zero(run: Interrupted, folder: Path) -> None:
    status = data(run.resumed)
    assert status["state"] == "done"
    assert {cell["state"] for cell in status["cells"]} <= {"done", "skipped"}
    assert "phase-b" in run.resumed.stderr


def test_killed_at_every_moment_it_measures_each_cell_once(folder: Path) -> None:
    view = view_of(folder)
    assert view.state is RunState.DONE
    with RunStore.open(folder, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    times = Counter(event.cell for event in events if isinstance(event, CellChanged) and event.state is CellState.DONE)
    assert times == Counter(cell.plan.cell for cell in view.cells.values() if cell.state is CellState.DONE)
    assert {cell.state for cell in view.cells.values()} <= {CellState.DONE, CellState.SKIPPED}


def test_a_stop_leaves_a_run_that_can_be_resumed(run: Interrupted, folder: Path) -> None:
    assert run.stopped.accepted
    assert "a test" in run.stopped.reason
    assert run.stopped.watch_exit == 3


def test_status_prints_what_every_viewer_folds_from_the_journal(workspace: Path, folder: Path) -> None:
    status = data(tracon("status", folder.name, "--json", workspace=workspace))
    view = view_of(folder)
    expected = msgspec.json.decode(msgspec.json.encode(to_json(view, view.last_t_unix_s)))
    for clock in ("now_unix_s", "eta_s", "elapsed_s"):
        status.pop(clock, None)
        expected.pop(clock, None)
    assert {key: status[key] for key in expected} == expected


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_has_its_artifacts_whole(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    for path in (
        layout.config_json,
        layout.launch_sh,
        layout.stdout,
        layout.env_txt,
        layout.summary_json,
        layout.launches,
    ):
        assert path.stat().st_size > 0, path.name
    assert layout.stderr.exists()
    for phase, cell in (("A", "r4"), ("A", "r8"), ("B", "64x8")):
        record: dict[str, Any] = msgspec.json.decode(layout.cell(phase, cell).read_bytes())
        assert {layout.requests(phase, cell).name, layout.metrics(phase, cell).name} <= set(record["checksums"])
        for name, digest in record["checksums"].items():
            assert sha256(layout.root / name) == digest


@pytest.mark.parametrize("config", CONFIGS)
def test_requests_have_exact_lengths_and_never_hit_a_prefix(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    rows = pd.read_json(layout.requests("A", "r8"), lines=True)
    completed = rows[rows.status == "ok"]
    assert len(completed) >= 10
    assert set(completed.prompt_tokens) == {128}
    assert set(completed.completion_tokens) == {8}
    assert completed.cached_tokens.fillna(0).sum() == 0


@pytest.mark.parametrize("config", CONFIGS)
def test_steps_are_timed_in_the_engine_and_joined_with_the_worker(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    record: dict[str, Any] = msgspec.json.decode(layout.cell("A", "r8").read_bytes())
    assert record["step_timing"]["available"], record["step_timing"]["reason"]
    steps = pd.read_json(layout.engine_step("A", "r8"), lines=True)
    busy = steps[steps.prefill_tokens + steps.decode_tokens > 0]
    assert (busy.engine_step_us > busy.step_duration_us).all()
    if config != "plain":
        assert busy.build_meta_us.notna().mean() > 0.9
        assert busy.get_finished_us.notna().mean() > 0.9
        assert record["step_timing"]["worker_join_ratio"] > 0.99


def test_the_same_arrivals_and_prompts_reach_every_config(folder: Path) -> None:
    seen = set()
    for config in CONFIGS:
        layout = RunLayout(folder).config(folder.name[:8], config)
        rows = pd.read_json(layout.requests("A", "r4"), lines=True)
        seen.add(tuple((rows.t_intended_ns - rows.t_intended_ns.iloc[0]).head(8)))
    assert len(seen) == 1


def test_the_report_has_tax_reference_rates_and_manifest(workspace: Path, folder: Path) -> None:
    layout = RunLayout(folder)
    for path in (
        layout.reference_rates,
        layout.aggregate_json,
        layout.aggregate_csv,
        layout.tax_json,
        layout.report_md,
    ):
        assert path.stat().st_size > 0, path.name
    manifest = layout.manifest.read_text()
    assert all(config in manifest for config in CONFIGS)
    printed = tracon("report", folder.name, workspace=workspace)
    assert printed.returncode == 0
    assert "mooncake_both" in printed.stdout
    assert data(tracon("report", folder.name, "--json", workspace=workspace))["tax"]


def test_pre_flight_says_what_it_checked(folder: Path) -> None:
    gates: dict[str, Any] = msgspec.json.decode(RunLayout(folder).preflight_status.read_bytes())
    assert {config: gate["decision"] for config, gate in gates.items()} == dict.fromkeys(CONFIGS, "include")
    for config in CONFIGS:
        assert RunLayout(folder).preflight_log(config).stat().st_size > 0


def test_nothing_is_left_running_and_the_probe_is_removed(workspace: Path, folder: Path) -> None:
    assert not engine_processes(folder)
    assert not data(tracon("patch", "status", "--json", workspace=workspace))["applied"]

"""The console on a simulated run at a pace: its instances are as those of a live run."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.records.events import InstanceState
from runners.campaign.experiment import RunOptions
from runners.campaign.start import create_run, spawn_run_process
from runners.cli.asking import ask_run
from runners.errors import ExitCode
from state.workspace import Workspace
from tests.console.conftest import sees, shown, until, watching
from tests.e2e.cli import view_of
from tests.runners.prepared import prepare

PACE = 10.0
END_WITHIN_S = 60.0


async def test_a_simulated_run_at_ten_times_real_time_is_shown_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))  # no engine environment is in there
    options = RunOptions(
        "routing",
        profile="h20-qwen3-coder-30b",
        preset="fleet",
        policies=("EAR",),
        trials=1,
        settings=("trace.sessions=600",),
    )
    folder = create_run(Workspace(tmp_path), prepare(options), pace=PACE)
    process = spawn_run_process(folder)
    try:
        async with watching(folder) as pilot:
            await sees(pilot, "SIMULATED 10x")
            await until(pilot, lambda: len(view_of(folder).instances) == 8, "no eight instances")
            await pilot.press("2", "z")
            await sees(pilot, "e7-8")
            await until(
                pilot,
                lambda: any(one.latest and one.latest.ttft_p90_s for one in view_of(folder).instances.values()),
                "no TTFT came",
            )
            first = next(line for line in shown(pilot.app) if "e0-1" in line)
            await until(pilot, lambda: first not in shown(pilot.app), "the first instance's row stays as it was")
            states = {one.state for one in view_of(folder).instances.values()}
        assert states == {InstanceState.READY}
    finally:
        ask_run(folder, "stop_now", "", "")
        code = process.wait(timeout=END_WITHIN_S)
    assert code == ExitCode.INTERRUPTED

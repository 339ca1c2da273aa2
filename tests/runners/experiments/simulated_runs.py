"""Runs of simulated engines: worked off in this process, or by one of their own that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runners.campaign.run_process import work
from runners.campaign.start import Prepared, create_run, spawn_run_process
from runners.errors import ExitCode
from runners.experiments.registry import select_experiment
from state.workspace import Workspace

KILL_WITHIN_S = 120.0


def work_off(folder: Path) -> None:
    assert work(folder, select_experiment, accept_changes=False) == ExitCode.DONE


def run_whole(runs: Path, home: Path, plan: Callable[[], Prepared], pace: float | None = None) -> Path:
    """A finished run in the workspace `runs`; `home`: where engine environments are, none in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACON_HOME", str(home))
        folder = create_run(Workspace(runs), plan(), pace=pace)
        work_off(folder)
    return folder


def kill_midway(folder: Path, marks: str, count: int) -> dict[Path, int]:
    """Start the run's process and kill it when `count` files match the pattern `marks`.

    Returns their inodes once it and its children are gone: a file that is written again has another one.
    """
    process = spawn_run_process(folder)
    deadline = time.monotonic() + KILL_WITHIN_S
    while len(list(folder.glob(marks))) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = list_children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for child in children:
        while psutil.pid_exists(child):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return {path: path.stat().st_ino for path in folder.glob(marks)}


def list_children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]

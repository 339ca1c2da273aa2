"""Drives the `tracon` command as a user does, and looks at what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from results.records.events import InstanceState
from state.lease import read_lease_state
from state.model import RunView
from state.store import RunStore
from tests.ports import own_port


def tracon(*arguments: str, workspace: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the command with its output in pipes."""
    return subprocess.run(
        [sys.executable, "-m", "runners.cli", *arguments],
        env=os.environ | {"TRACON_WORKSPACE": str(workspace)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def data(done: subprocess.CompletedProcess[str]) -> Any:  # noqa: ANN401  # whatever JSON the command printed
    """stdout as JSON: it must be nothing else."""
    return json.loads(done.stdout)


def port(count: int = 8) -> str:
    """The first of `count` free ports in a row, away from the profile's own and from those of tests beside this one."""
    return str(own_port(19_100, count))


def view_of(folder: Path) -> RunView:
    with RunStore.open(folder, read_only=True) as store:
        return store.view()


def worker_pid(folder: Path) -> int | None:
    with RunStore.open(folder, read_only=True) as store:
        lease = read_lease_state(store)
        return lease.pid if lease.live else None


def wait_until(folder: Path, true_of: Callable[[RunView], bool], timeout_s: float = 120) -> RunView:
    """Follow the journal until something holds."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        view = view_of(folder)
        if true_of(view):
            return view
        time.sleep(0.1)
    raise AssertionError(
        f"it never came to that; the run is {view.state}, feed: {[line.text for line in view.feed[-5:]]}"
    )


def engine_processes(folder: Path) -> list[psutil.Process]:
    """Every process of a group that the run has recorded as an engine's."""
    groups = {instance.pgid for instance in view_of(folder).instances.values() if instance.pgid is not None}
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until_no_engine(folder: Path, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := engine_processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"still there: {[process.cmdline() for process in left]}"


def starting(view: RunView) -> bool:
    return any(instance.state is InstanceState.STARTING for instance in view.instances.values())

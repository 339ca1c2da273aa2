"""The host is looked at while a cell is measured, and a host that stood still is seen to have done so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from results.records.host import HostSample, read_host
from runners.samplers.host import HostSampler, time_work

CORES = os.sched_getaffinity(0)
REPOSITORY = Path(__file__).resolve().parents[3]
SOON_S = 20.0
LOOKS = """
import sys, time
from pathlib import Path
from runners.samplers.host import HostSampler
with HostSampler(Path(sys.argv[1]), period_s=0.05) as host:
    host.cell = "a"
    time.sleep(60)
"""


def until_rows(path: Path, count: int) -> tuple[HostSample, ...]:
    deadline = time.monotonic() + SOON_S
    while len(rows := read_host(path)) < count:
        assert time.monotonic() < deadline, f"{len(rows)} rows"
        time.sleep(0.02)
    return rows


def test_only_seconds_of_a_cell_are_kept_and_a_resumed_run_goes_on_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "host.csv"
    for cell in ("a", "b"):
        with HostSampler(path, period_s=0.02) as host:
            time.sleep(0.1)
            assert {row.cell for row in read_host(path)} <= {"a"}, "no cell is measured"
            host.cell = cell
            until_rows(path, 3 if cell == "a" else len(read_host(path)) + 3)
    rows = read_host(path)
    assert [row.cell for row in rows] == sorted(row.cell for row in rows)
    assert {row.cell for row in rows} == {"a", "b"}
    for row in rows:
        assert all(share is None or 0 <= share <= 1.5 for share in (row.busy, row.stolen, row.waiting))
        assert row.work_us is not None
        assert row.work_us > 0


def test_waiting_for_a_core_is_not_in_the_time_of_a_piece_of_work() -> None:
    alone_us = min(time_work() for _ in range(20))
    rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * len(CORES))]
    try:
        rivalled_us = min(time_work() for _ in range(20))
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert rivalled_us < 3 * alone_us


def test_a_host_that_stands_still_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "host.csv"
    looking = subprocess.Popen([sys.executable, "-c", LOOKS, str(path)], cwd=REPOSITORY)
    try:
        until_rows(path, 2)
        os.kill(looking.pid, signal.SIGSTOP)
        time.sleep(0.7)
        seen = len(read_host(path))
        os.kill(looking.pid, signal.SIGCONT)
        rows = until_rows(path, seen + 2)
        assert max(row.late_s for row in rows[seen:]) > 0.3
    finally:
        looking.kill()
        looking.wait()


def test_a_disk_that_cannot_be_written_costs_the_samples_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with HostSampler(tmp_path / "none" / "host.csv", period_s=0.01) as host:
        host.cell = "a"
        time.sleep(0.05)
    assert "no longer sampled" in caplog.text

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patches import ring as ring_module
from patches.ring import MISSING, Ring, fit_json
from tests.examples import examples

from .ring_file import decode, only_ring

ROOT = Path(__file__).parents[2]
FIELDS = ("t_ns", "step_id", "cost_ns")
WRITERS = pytest.mark.parametrize("mapped", [True, False], ids=["mmap", "pwrite"])


def describe() -> Mapping[str, Any]:
    return {"step_timing_available": True, "reason": None, "vllm": "0.32.0"}


def make_ring(folder: Path, capacity: int = 1 << 12) -> Ring:
    return Ring(str(folder / "engine_step.jsonl"), "engine", FIELDS, describe, capacity)


def choose_writer(monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    monkeypatch.setattr(ring_module, "_can_overwrite_in_place", lambda _file: mapped)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@WRITERS
def test_a_reader_finds_status_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    choose_writer(monkeypatch, mapped)
    ring = make_ring(tmp_path)
    ring.open()
    assert only_ring(tmp_path).count == 0
    ring.put((10, 1, 500))
    ring.put((20, 2, MISSING))
    found = decode(tmp_path / f"engine_step.engine.{os.getpid()}.ring")
    assert (found.pid, found.role, found.count) == (os.getpid(), "engine", 2)
    assert [(row["t_ns"], row["step_id"], row["cost_ns"]) for row in found.rows] == [(10, 1, 500), (20, 2, None)]
    assert all(row[f"pad{column}"] is None for row in found.rows for column in range(3, 16))
    assert found.status["step_timing_available"] is True
    assert found.status["clock"] == "CLOCK_MONOTONIC"
    assert found.status["t_ns"] > 0
    assert found.status["unix_ns"] > 0


@given(capacity=st.integers(1, 40), written=st.integers(0, 130), mapped=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_the_last_capacity_records_are_kept_in_their_places(capacity: int, written: int, mapped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        choose_writer(monkeypatch, mapped)
        monkeypatch.setattr(ring_module, "CHUNK_RECORDS", 16)
        ring = make_ring(Path(folder), capacity)
        ring.open()
        for step in range(written):
            ring.put((step, step, -step))
        found = only_ring(Path(folder))
    assert found.count == written
    assert [row["step_id"] for row in found.rows] == list(range(max(0, written - capacity), written))


WRITE_AND_DIE = """
import os, signal, sys
from patches.ring import Ring
ring = Ring(sys.argv[1], "engine", ("t_ns", "step_id", "cost_ns"), lambda: {"reason": None})
for step in range(int(sys.argv[2])):
    ring.put((step, step, step))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.fault
def test_nothing_is_lost_at_sigkill(tmp_path: Path) -> None:
    died = run_python(WRITE_AND_DIE, str(tmp_path / "engine_step.jsonl"), "5000")
    assert died.returncode == -9
    found = only_ring(tmp_path)
    assert [row["step_id"] for row in found.rows] == list(range(5000))


WRITE_AND_FORK = """
import os, sys
from patches.ring import Ring
ring = Ring(sys.argv[1], "engine", ("t_ns", "step_id", "cost_ns"), lambda: {"reason": None})
ring.put((1, 1, 1))
child = os.fork()
ring.put((2, 2, 2))
if child == 0:
    ring.put((3, 3, 3))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ring.put((4, 4, 4))
print(os.getpid(), child)
"""


def test_a_forked_child_writes_a_ring_of_its_own(tmp_path: Path) -> None:
    done = run_python(WRITE_AND_FORK, str(tmp_path / "engine_step.jsonl"))
    assert done.returncode == 0, done.stderr
    steps = {
        pid: [row["step_id"] for row in decode(tmp_path / f"engine_step.engine.{pid}.ring").rows]
        for pid in map(int, done.stdout.split())
    }
    assert list(steps.values()) == [[1, 2, 4], [2, 3]]


def test_the_records_of_an_earlier_process_with_this_pid_stay(tmp_path: Path) -> None:
    first, second = make_ring(tmp_path), make_ring(tmp_path)
    first.put((1, 1, 1))
    second.put((2, 2, 2))
    first.put((3, 3, 3))
    found = {tuple(row["step_id"] for row in decode(path).rows) for path in tmp_path.glob("engine_step.engine.*.ring")}
    assert found == {(1, 3), (2,)}


def test_an_unwritable_path_is_said_once_and_harms_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    ring = make_ring(tmp_path / "file" / "below")
    for step in range(3):
        ring.put((step, step, step))
    assert ring.failure is not None
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "step timing off" in said[0]


@WRITERS
def test_a_disk_that_fills_up_ends_the_records_and_the_header_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], mapped: bool
) -> None:
    choose_writer(monkeypatch, mapped)
    monkeypatch.setattr(ring_module, "CHUNK_RECORDS", 16)
    ring = make_ring(tmp_path)
    for step in range(16):
        ring.put((step, step, step))
    real_pwrite = os.pwrite

    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(
        os, "pwrite", lambda f, data, offset: refuse() if offset >= 4096 else real_pwrite(f, data, offset)
    )
    for step in range(16, 40):
        ring.put((step, step, step))
    found = only_ring(tmp_path)
    assert [row["step_id"] for row in found.rows] == list(range(16))
    assert found.status["step_timing_available"] is False
    assert "No space left" in found.status["reason"]
    assert len(capfd.readouterr().err.splitlines()) == 1


FILL_A_SMALL_DISK = """
import sys
from pathlib import Path
from patches.ring import Ring
from tests.patches.ring_file import only_ring
folder = Path(sys.argv[1])
ring = Ring(str(folder / "engine_step.jsonl"), "engine", ("t_ns", "step_id", "cost_ns"), lambda: {"reason": None})
for step in range(100_000):
    ring.put((step, step, step))
found = only_ring(folder)
assert [row["step_id"] for row in found.rows] == list(range(found.count))
assert 1000 <= found.count < 100_000, found.count
print(found.status["reason"])
"""
MOUNT_AND_RUN = 'mount -t tmpfs -o size=1m tracon "$0" && exec "$1" -c "$2" "$0"'


@pytest.mark.fault
def test_a_really_full_disk_does_not_kill_the_process(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk of its own (unshare -Urm)")
    script = [unshare, "-Urm", "sh", "-c", MOUNT_AND_RUN, str(tmp_path), sys.executable, FILL_A_SMALL_DISK]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stdout


@given(reasons=st.lists(st.text(max_size=3000), max_size=12), limit=st.just(4032))
@settings(deadline=None)
def test_a_status_always_fits_the_header(reasons: list[str], limit: int) -> None:
    status = {"hooks": {str(index): reason for index, reason in enumerate(reasons)}, "count": 3}
    assert len(fit_json(status, limit)) <= limit

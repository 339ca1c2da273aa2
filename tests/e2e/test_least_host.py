"""The least host that engines run on: one core, AVX2 alone, no right of root, a read-only home, umask 077, a cgroup's
limits on memory and CPU time where one can be made."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.environment import home as tracon_home
from tests.cgroups import Cgroup, limited_cgroup
from tests.e2e.least_host import PREFIX
from tests.unprivileged import drop_capabilities

pytestmark = [pytest.mark.engine, pytest.mark.timeout(280)]


MEMORY_BYTES = psutil.virtual_memory().total * 3 // 4 // 2**20 * 2**20
CORES = 0.9


def become_least(cgroup: Cgroup) -> None:
    """For `preexec_fn`: what the driver and its engines may use."""
    cgroup.join()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    drop_capabilities()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("least")
    (made / "home").mkdir(mode=0o500)
    return made


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Cgroup]:
    with limited_cgroup(MEMORY_BYTES, CORES) as made:
        yield made


@pytest.fixture(scope="module")
def seen(folder: Path, cgroup: Cgroup) -> dict[str, Any]:
    """What the driver reports, of three engines started once for all tests of this file."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.least_host", str(folder / "engines")],
        env={**environ, "HOME": str(folder / "home"), "TRACON_HOME": str(tracon_home())},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True, text=True, timeout=270, umask=0o077, preexec_fn=partial(become_least, cgroup),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_without_avx512_and_amx_engines_answer_and_move_kv_with_the_avx2_kernels(seen: dict[str, Any]) -> None:
    assert seen["kernels"] == {"h": ["_C_AVX2"], "t": ["_C_AVX2"], "plain": ["_C_AVX2"]}
    assert (seen["transfer"]["status"], seen["transfer"]["reason"]) == ("transferred", "")
    assert seen["transfer"]["tokens"] >= PREFIX
    computed, moved, plain = seen["answers"]
    assert len(plain) == 8
    assert computed == moved == plain


def test_one_core_is_enough(seen: dict[str, Any]) -> None:
    assert seen["cores"] == {"h": 1, "t": 1, "plain": 1}


def test_engines_run_under_the_limits_of_a_cgroup(seen: dict[str, Any], cgroup: Cgroup) -> None:
    if cgroup.reason:
        pytest.skip(cgroup.reason)
    assert seen["limits"]["cores"] == CORES
    assert seen["limits"]["memory_bytes"] == MEMORY_BYTES
    assert 0 < seen["limits"]["memory_available_bytes"] < MEMORY_BYTES
    assert len(seen["answers"]) == 3


def test_no_right_of_root_is_needed(seen: dict[str, Any]) -> None:
    assert seen["capabilities"] == [0, 0, 0]


def test_nothing_is_written_into_a_read_only_home(seen: dict[str, Any], folder: Path) -> None:
    assert seen["caches"] == [str(tracon_home() / "caches" / "cache")] * 3
    assert not list((folder / "home").iterdir())


def test_under_a_strict_umask_the_owner_reads_everything(seen: dict[str, Any], folder: Path) -> None:
    assert seen["answers"]
    files = [path for path in (folder / "engines").rglob("*") if path.is_file()]
    assert any(path.suffix == ".jsonl" for path in files)
    assert not [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o477 != 0o400]

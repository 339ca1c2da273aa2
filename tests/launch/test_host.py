"""Cores and memory as cgroups limit them, and where caches go."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from launch import doctor
from launch.cache_folders import make_cache_env
from launch.doctor_rows import OK, WARN
from launch.environment import capture
from launch.host import Host, Limits, read_host, read_limits
from launch.profile import load_profile
from tests.launch.engines import ENGINE

GB = 1_000_000_000


def cgroup_v2(folder: Path, path: str = "/") -> tuple[Path, Path]:
    """Root and /proc/self/cgroup of a process that is in `path`."""
    own = folder / "own"
    own.write_text(f"0::{path}\n")
    (folder / "cgroup" / path.strip("/")).mkdir(parents=True)
    return folder / "cgroup", own


def test_no_cgroup_limits_nothing(tmp_path: Path) -> None:
    assert read_limits(tmp_path, tmp_path / "absent") == Limits()
    root, own = cgroup_v2(tmp_path)
    assert read_limits(root, own) == Limits()
    (root / "cpu.max").write_text("max 100000\n")
    (root / "memory.max").write_text("max\n")
    assert read_limits(root, own) == Limits()


def test_quota_and_memory_limit_of_version_2(tmp_path: Path) -> None:
    root, own = cgroup_v2(tmp_path)
    (root / "cpu.max").write_text("150000 100000\n")
    (root / "memory.max").write_text(f"{2 * GB}\n")
    (root / "memory.current").write_text(f"{GB}\n")
    (root / "memory.stat").write_text(f"anon 1\ninactive_file {GB // 2}\nactive_file 7\n")
    assert read_limits(root, own) == Limits(1.5, 2 * GB, 2 * GB - GB // 2)


def test_the_tightest_ancestor_counts(tmp_path: Path) -> None:
    root, own = cgroup_v2(tmp_path, "/slice/service")
    (root / "slice" / "cpu.max").write_text("50000 100000")
    (root / "slice" / "service" / "cpu.max").write_text("300000 100000")
    (root / "slice" / "memory.max").write_text(str(4 * GB))
    (root / "slice" / "memory.current").write_text(str(3 * GB))
    (root / "slice" / "service" / "memory.max").write_text(str(3 * GB))
    assert read_limits(root, own) == Limits(0.5, 3 * GB, GB)


def test_a_path_of_the_host_seen_from_inside_a_container_falls_back_to_the_root(tmp_path: Path) -> None:
    root, own = cgroup_v2(tmp_path)
    own.write_text("0::/system.slice/docker-1.scope\n")
    (root / "cpu.max").write_text("200000 100000")
    assert read_limits(root, own).cores == 2.0


def test_version_1_counts_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n")
    for controller in ("cpu", "memory"):
        (tmp_path / controller / "box").mkdir(parents=True)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "box" / "cpu.cfs_quota_us").write_text("25000\n")
    (tmp_path / "cpu" / "box" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory" / "box" / "memory.limit_in_bytes").write_text(f"{GB}\n")
    (tmp_path / "memory" / "box" / "memory.usage_in_bytes").write_text(f"{GB}\n")
    (tmp_path / "memory" / "box" / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 4000\n")
    assert read_limits(tmp_path, own) == Limits(0.25, GB, 4000)


def test_a_host_is_what_is_left_of_it(tmp_path: Path) -> None:
    root, own = cgroup_v2(tmp_path)
    whole = read_host(root, own)
    assert whole.memory_bytes == psutil.virtual_memory().total
    assert whole.cores == len(os.sched_getaffinity(0))
    (root / "memory.max").write_text(str(GB))
    limited = read_host(root, own)
    assert (limited.memory_bytes, limited.available_bytes) == (GB, GB)


def test_the_doctor_and_the_artifacts_name_limits_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    host = Host(64, 128, 2 * GB, GB, Limits(1.5, 2 * GB, GB))
    monkeypatch.setattr("launch.host_checks.read_host", lambda: host)
    monkeypatch.setattr("launch.environment.read_host", lambda: host)
    rows = {row.what: row for row in doctor.examine(load_profile("cpu-tiny"), {}).rows}
    assert rows["memory"].state == WARN
    assert "1.0 of 2.0 GB" in rows["memory"].detail
    assert "memory limit" in rows["memory"].remedy
    assert rows["CPU"].state == WARN
    assert "64 cores of 128, limited to the time of 1.5 cores" in rows["CPU"].detail
    assert "CPU limit" in rows["CPU"].remedy
    text = capture(ENGINE)
    assert "cores: 128 (64 usable; cgroup quota 1.5)" in text
    assert "memory: 2.0 GB (cgroup limit)" in text


@pytest.mark.parametrize("cores", [1, 2, 192])
def test_any_number_of_cores_is_fine(cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr("launch.host.read_limits", lambda *_: Limits())
    row = next(row for row in doctor.examine(load_profile("cpu-tiny"), {}).rows if row.what == "CPU")
    assert row.state == OK
    assert row.detail.endswith(f", {cores} cores")


def test_caches_stay_where_the_home_folder_can_be_written(tmp_path: Path) -> None:
    assert make_cache_env({}, tmp_path / "not" / "yet", tmp_path / "caches") == {}


def test_caches_leave_a_home_folder_that_cannot_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    moved = make_cache_env({"XDG_CONFIG_HOME": "/mine"}, home, tmp_path / "caches")
    assert moved == {
        "XDG_CACHE_HOME": str(tmp_path / "caches" / "cache"),
        "TRITON_CACHE_DIR": str(tmp_path / "caches" / "triton"),
    }


NAME = f"tracon-caches-{os.getuid()}"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "home").touch()
    return tmp_path / "t"


def caches_without_a_home(temporary: Path) -> Path:
    """Where the caches go when neither the home folder nor TRACON_HOME can be written."""
    home = temporary.with_name("home")
    return Path(make_cache_env({}, home, home / "caches")["XDG_CACHE_HOME"]).parent


def test_caches_without_any_other_place_share_one_private_folder(temporary: Path) -> None:
    assert caches_without_a_home(temporary) == caches_without_a_home(temporary) == temporary / NAME
    assert stat.S_IMODE((temporary / NAME).stat().st_mode) == 0o700


def link_elsewhere(folder: Path) -> None:
    folder.with_name("elsewhere").mkdir()
    folder.symlink_to("elsewhere")


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def give_away(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    try:
        os.chown(folder, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can make another user's folder")


@pytest.mark.parametrize("prepare", [Path.touch, link_elsewhere, open_to_others, give_away])
def test_caches_never_go_into_a_folder_that_others_may_write(temporary: Path, prepare: Callable[[Path], None]) -> None:
    prepare(temporary / NAME)
    before = sorted(temporary.iterdir())
    (made,) = {caches_without_a_home(temporary)} - set(before)
    assert made.name.startswith(f"{NAME}-")
    assert (made.stat().st_uid, stat.S_IMODE(made.stat().st_mode)) == (os.getuid(), 0o700)
    assert not list((temporary / "elsewhere").glob("*"))


def test_downloaded_models_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    monkeypatch.setattr("launch.cache_folders.can_write", lambda folder: folder != tmp_path)
    assert make_cache_env({}, tmp_path, tmp_path / "c")["HF_HOME"] == str(tmp_path / ".cache" / "huggingface")
    assert "HF_HOME" not in make_cache_env({"HF_HOME": "/models"}, tmp_path, tmp_path / "c")

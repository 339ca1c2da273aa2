"""No engine leaves sockets or temporary files: each has a folder of its own, which goes with it however it dies."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.guard import SOCKET_PATH_BYTES, SOCKETS, UUID_CHARACTERS
from launch.guard_link import GuardLink, spawn_guard
from tests.launch.programs import BINDS_SOCKET, wait_until
from tests.launch.test_guard import OWNER, REPOSITORY, SOON_S, guards_of

OTHER_FOLDER = "tracon-socketsX"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a short name as /tmp has one."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


async def start(folder: Path, env: dict[str, str] | None = None) -> tuple[GuardLink, int, Path]:
    """A guard, its engine, and the engine's socket."""
    log = folder / "log"
    link = await spawn_guard(log)
    argv = [sys.executable, "-c", BINDS_SOCKET, str(folder)]
    pid = await link.start(argv, {**os.environ, **(env or {})}, cwd=folder, stdout=log, stderr=log)
    link.go()
    return link, pid, await asyncio.to_thread(socket_in, folder)


def socket_in(folder: Path) -> Path:
    assert wait_until((folder / "socket").exists), (folder / "log").read_text()
    path = Path((folder / "socket").read_text())
    assert path.is_socket()
    return path


def folder_mode(path: Path) -> int:
    return path.parent.stat().st_mode & 0o777


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def rendezvous_in(folder: Path) -> list[Path]:
    """The file where the workers of an engine meet: vLLM never removes it."""
    return list(folder.glob("vllm_dist_*"))


def folders_in(temporary: Path) -> list[Path]:
    return sorted(temporary.glob(f"{SOCKETS}*"))


async def test_an_engine_that_had_to_be_killed_leaves_no_socket(tmp_path: Path, temporary: Path) -> None:
    link, _, path = await start(tmp_path)
    assert [path.parent] == folders_in(temporary)
    assert folder_mode(path) == 0o700
    assert len(rendezvous_in(path.parent)) == 1
    assert names_in(temporary) == [path.parent.name]
    link.stop(0.1)
    await asyncio.wait_for(link.gone, SOON_S)
    assert names_in(temporary) == []


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1], ids=["inner", "outer"])
async def test_the_other_guard_removes_the_sockets_of_one_that_was_killed(
    tmp_path: Path, temporary: Path, victim: int
) -> None:
    link, pid, _ = await start(tmp_path)
    os.kill(guards_of(pid)[victim], signal.SIGKILL)
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not list(temporary.iterdir()), SOON_S)


@pytest.mark.fault
def test_kill_9_of_the_owner_leaves_no_socket(tmp_path: Path, temporary: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), BINDS_SOCKET, "go"], cwd=REPOSITORY)
    assert socket_in(tmp_path).parent.parent == temporary
    owner.kill()
    owner.wait()
    assert wait_until(lambda: not list(temporary.iterdir()), SOON_S)


@pytest.mark.fault
async def test_the_next_start_removes_what_killed_guards_left_and_nothing_of_a_live_engine(
    tmp_path: Path, temporary: Path
) -> None:
    for folder in (tmp_path / "dead", tmp_path / "live", tmp_path / "next", temporary / OTHER_FOLDER):
        folder.mkdir()
    dead, pid, left = await start(tmp_path / "dead")
    live, _, held = await start(tmp_path / "live")
    for guard in guards_of(pid):
        os.kill(guard, signal.SIGSTOP)
    for victim in (*guards_of(pid), pid):
        os.kill(victim, signal.SIGKILL)
    await asyncio.wait_for(dead.gone, SOON_S)
    assert left.parent in folders_in(temporary), "no process was left to remove it"
    following, _, _ = await start(tmp_path / "next")
    assert held.parent in folders_in(temporary)
    assert left.parent not in folders_in(temporary)
    for link in (live, following):
        link.stop(0.0)
        await asyncio.wait_for(link.gone, SOON_S)
    assert names_in(temporary) == [OTHER_FOLDER]


async def test_a_long_temporary_folder_is_not_used(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("long" * 20)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    link, _, path = await start(tmp_path)
    longest = path.with_name("u" * UUID_CHARACTERS)
    assert len(os.fsencode(longest)) <= SOCKET_PATH_BYTES
    assert folders_in(long) == []
    assert len(rendezvous_in(long)) == 1, "temporary files stay where the user wants them"
    link.stop(0.0)
    await asyncio.wait_for(link.gone, SOON_S)
    assert not path.parent.exists()


async def test_a_folder_that_the_engine_s_environment_names_is_used_and_stays(tmp_path: Path, temporary: Path) -> None:
    own = temporary / "own"
    own.mkdir()
    link, _, path = await start(tmp_path, {"VLLM_RPC_BASE_PATH": str(own)})
    assert path.parent == own
    link.stop(0.0)
    await asyncio.wait_for(link.gone, SOON_S)
    assert path.exists()


async def test_temporary_files_stay_where_the_engine_s_environment_wants_them(tmp_path: Path, temporary: Path) -> None:
    own = temporary / "own"
    own.mkdir()
    link, _, _ = await start(tmp_path, {"TMPDIR": str(own)})
    assert len(rendezvous_in(own)) == 1
    link.stop(0.0)
    await asyncio.wait_for(link.gone, SOON_S)
    assert names_in(temporary) == ["own"]


async def test_the_caches_of_torch_stay_where_torch_puts_them_by_itself(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    for env in ({}, {"TORCHINDUCTOR_CACHE_DIR": "/own"}):
        folder = tmp_path / f"{len(env)}"
        folder.mkdir()
        link, _, path = await start(folder, env)
        caches = rendezvous_in(path.parent)[0].read_text()
        assert caches == env.get("TORCHINDUCTOR_CACHE_DIR", f"{temporary}/torchinductor_{getpass.getuser()}")
        link.stop(0.0)
        await asyncio.wait_for(link.gone, SOON_S)

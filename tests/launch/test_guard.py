"""Nothing of an engine survives: whichever process dies, in whatever order, the engine and all it started end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launch import guard, guard_link
from launch.guard_link import GUARD, GuardLink, spawn_guard
from tests.launch.programs import LEAVES_MEMORY, SHARES_MEMORY, STUBBORN, pids_noted, running, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SOON_S = 15.0
"""The product's promise is 5 s; a busy test host gets more."""

OWNER = """
import asyncio, os, sys
from pathlib import Path
from launch.guard_link import spawn_guard
async def main(folder, code, go):
    log = folder / "log"
    link = await spawn_guard(log)
    argv = [sys.executable, "-c", code, str(folder)]
    pid = await link.start(argv, dict(os.environ), cwd=folder, stdout=log, stderr=log)
    (folder / "kept").write_text(str(pid))
    if go == "go":
        link.go()
    await asyncio.sleep(600)
asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""


async def start(folder: Path, code: str = STUBBORN) -> tuple[GuardLink, int]:
    log = folder / "log"
    link = await spawn_guard(log)
    pid = await link.start([sys.executable, "-c", code, str(folder)], {}, cwd=folder, stdout=log, stderr=log)
    return link, pid


def guards_of(pid: int) -> list[int]:
    """The inner and the outer guard of an engine."""
    inner = psutil.Process(pid).ppid()
    return [inner, psutil.Process(inner).ppid()]


def own(folder: Path, go: str = "go") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", OWNER, str(folder), STUBBORN, go], cwd=REPOSITORY)


async def test_stop_ends_an_engine_that_ignores_term_with_its_worker_and_its_daemon(tmp_path: Path) -> None:
    link, pid = await start(tmp_path)
    link.go()
    pids = await asyncio.to_thread(pids_noted, tmp_path)
    link.stop(0.3)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert link.exited.result() == -signal.SIGKILL
    assert pids["engine"] == pid
    assert running(pids.values()) == []


async def segment_of(folder: Path) -> Path:
    """The shared memory of SHARES_MEMORY, once it is there."""
    assert await asyncio.to_thread(wait_until, (folder / "segment").exists)
    segment = Path("/dev/shm") / (folder / "segment").read_text()
    assert segment.exists()
    return segment


async def test_shared_memory_of_an_engine_that_had_to_be_killed_is_removed(tmp_path: Path) -> None:
    link, _ = await start(tmp_path, SHARES_MEMORY)
    link.go()
    segment = await segment_of(tmp_path)
    link.stop(0.1)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert not segment.exists()


def test_what_cannot_be_read_for_want_of_descriptors_is_not_spared_as_a_tracker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be what holds them: waiting for it to be readable would be waiting for ever."""

    def fail(path: str) -> bytes:
        raise OSError(errno.EMFILE, path)

    monkeypatch.setattr(guard, "_read_file", fail)
    assert not guard.is_resource_tracker(os.getpid())


@pytest.mark.parametrize("held", [False, True])
async def test_shared_memory_that_an_engine_leaves_at_its_stop_is_removed_unless_it_is_held(
    tmp_path: Path, held: bool
) -> None:
    link, _ = await start(tmp_path, LEAVES_MEMORY)
    link.go()
    segment = await segment_of(tmp_path)
    holder = segment.open("rb") if held else None
    link.stop(5.0)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert segment.exists() == held
    if holder is not None:
        holder.close()
        segment.unlink()


async def test_shared_memory_is_removed_that_an_engine_leaves_which_ends_by_itself(tmp_path: Path) -> None:
    link, pid = await start(tmp_path, LEAVES_MEMORY)
    link.go()
    segment = await segment_of(tmp_path)
    link.note_memory()
    assert await asyncio.wait_for(link.noted, SOON_S) == 1
    os.kill(pid, signal.SIGUSR1)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert not segment.exists()


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1], ids=["inner", "outer"])
async def test_shared_memory_is_removed_where_a_guard_was_killed(tmp_path: Path, victim: int) -> None:
    link, pid = await start(tmp_path, SHARES_MEMORY)
    link.go()
    segment = await segment_of(tmp_path)
    os.kill(guards_of(pid)[victim], signal.SIGKILL)
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not segment.exists(), SOON_S)


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1], ids=["inner", "outer"])
async def test_a_guard_that_was_started_with_term_blocked_ends_its_engine_all_the_same(
    tmp_path: Path, victim: int
) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        link, pid = await start(tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    link.go()
    os.kill(guards_of(pid)[victim], signal.SIGKILL)
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not psutil.pid_exists(pid), SOON_S)


async def test_an_engine_that_obeys_term_is_not_killed(tmp_path: Path) -> None:
    link, _ = await start(tmp_path, "import sys, time; print('up', flush=True); time.sleep(600)")
    link.go()
    assert await asyncio.to_thread(wait_until, lambda: "up" in (tmp_path / "log").read_text())
    link.stop(30.0)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert link.exited.result() == -signal.SIGTERM


async def test_a_second_stop_shortens_the_grace_of_the_first(tmp_path: Path) -> None:
    link, _ = await start(tmp_path)
    link.go()
    pids = await asyncio.to_thread(pids_noted, tmp_path)
    link.stop(600.0)
    link.stop(0.0)
    await asyncio.wait_for(link.gone, SOON_S)
    assert running(pids.values()) == []


async def test_the_exit_code_of_a_crash_is_reported_and_its_children_are_ended(tmp_path: Path) -> None:
    code = STUBBORN.replace('note("engine")\ntime.sleep(600)', 'import pathlib\nnote("engine")\nsys.exit(7)')
    link, _ = await start(tmp_path, code)
    link.go()
    assert await asyncio.wait_for(link.exited, SOON_S) == 7
    pids = await asyncio.to_thread(pids_noted, tmp_path, ("engine",))
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert running(pids.values()) == []


async def test_a_program_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    link = await spawn_guard(log)
    await link.start(["/nowhere/python"], {}, cwd=tmp_path, stdout=log, stderr=log)
    link.go()
    assert await asyncio.wait_for(link.exited, SOON_S) == 127
    assert "/nowhere/python" in log.read_text()


async def test_nothing_of_the_program_runs_before_it_was_recorded(tmp_path: Path) -> None:
    link, pid = await start(tmp_path)
    link.close()
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not running([pid]), SOON_S)
    assert not (tmp_path / "engine").exists()


@pytest.mark.fault
def test_kill_9_of_the_owner_ends_everything(tmp_path: Path) -> None:
    owner = own(tmp_path)
    pids = pids_noted(tmp_path)
    guards = guards_of(pids["engine"])
    owner.kill()
    owner.wait()
    assert wait_until(lambda: not running([*pids.values(), *guards]), SOON_S)


@pytest.mark.fault
def test_kill_9_of_the_owner_in_the_middle_of_a_launch_ends_everything(tmp_path: Path) -> None:
    owner = own(tmp_path, go="wait")
    pid = pids_noted(tmp_path, ("kept",))["kept"]
    guards = guards_of(pid)
    owner.kill()
    owner.wait()
    assert wait_until(lambda: not running([pid, *guards]), SOON_S)
    assert not (tmp_path / "engine").exists()


def test_an_owner_that_died_before_it_heard_of_its_engine_leaves_no_guard(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    request = {"argv": [sys.executable, "-c", ""], "env": {}, "stdout": os.devnull, "stderr": os.devnull}
    ours.sendall(json.dumps(request).encode() + b"\n")
    ours.close()  # before the guard reads, so that its report fails
    argv = [sys.executable, "-I", "-S", str(GUARD), str(theirs.fileno())]
    guard = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        assert guard.wait(SOON_S) == 0
    finally:
        if guard.poll() is None:
            for process in psutil.Process(guard.pid).children(recursive=True):
                process.kill()
            guard.kill()
            guard.wait()


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1], ids=["inner", "outer"])
async def test_kill_9_of_a_guard_ends_everything_while_the_owner_lives(tmp_path: Path, victim: int) -> None:
    link, pid = await start(tmp_path)
    link.go()
    pids = await asyncio.to_thread(pids_noted, tmp_path)
    guards = guards_of(pid)
    os.kill(guards[victim], signal.SIGKILL)
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not running([*pids.values(), *guards]), SOON_S)


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1], ids=["inner", "outer"])
def test_kill_9_of_owner_and_guard_together_ends_everything(tmp_path: Path, victim: int) -> None:
    owner = own(tmp_path)
    pids = pids_noted(tmp_path)
    guards = guards_of(pids["engine"])
    os.kill(guards[victim], signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert wait_until(lambda: not running([*pids.values(), *guards]), SOON_S)


@pytest.mark.fault
async def test_a_guard_that_can_open_no_file_waits_and_overlooks_nothing(tmp_path: Path) -> None:
    """It reads of every process in /proc whether it is the engine's."""
    link, pid = await start(tmp_path)
    link.go()
    pids = await asyncio.to_thread(pids_noted, tmp_path)
    limits = {held: resource.prlimit(held, resource.RLIMIT_NOFILE) for held in guards_of(pid)}
    try:
        for held, (_, hard) in limits.items():
            resource.prlimit(held, resource.RLIMIT_NOFILE, (0, hard))
        link.stop(0.1)
        assert await asyncio.to_thread(wait_until, lambda: not running([pid]), SOON_S), "it may hold what is missing"
        await asyncio.sleep(1.0)
        assert not link.gone.done(), "it has given up while the engine's worker runs"
        assert running([pids["worker"], pids["daemon"]]) == [pids["worker"], pids["daemon"]]
        for held, limit in limits.items():
            resource.prlimit(held, resource.RLIMIT_NOFILE, limit)
        assert await asyncio.wait_for(link.gone, SOON_S)
        assert running(pids.values()) == []
    finally:
        for left in running(pids.values()):
            os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=errno.errorcode.get)
def test_a_process_that_cannot_be_looked_at_for_the_moment_has_not_ended(
    monkeypatch: pytest.MonkeyPatch, shortage: int
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    opened, refused = os.open, list[str]()

    def refuse_once(path: str, *arguments: int) -> int:
        if path == f"/proc/{child.pid}/stat" and not refused:
            refused.append(path)
            raise OSError(shortage, os.strerror(shortage))
        return opened(path, *arguments)

    try:
        monkeypatch.setattr(os, "open", refuse_once)
        assert child.pid in guard.find_descendants(os.getpid())
        assert refused
    finally:
        child.kill()
        child.wait()


def test_a_descriptor_that_cannot_be_named_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names no file whose path is longer than a page."""

    def refuse(path: str) -> str:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)

    def fail(seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")

    monkeypatch.setattr(os, "readlink", refuse)
    monkeypatch.setattr("launch.guard.time.sleep", fail)
    assert guard.find_segments([os.getpid()]) == set()


INTERRUPTED = f"""
import os, signal, sys
sys.path.insert(0, {str(GUARD.parent)!r})
import guard
look = guard.find_segments
def look_interrupted(pids):
    guard.find_segments = look
    os.kill(os.getpid(), signal.SIGTERM)
    return look(pids)
guard.find_segments = look_interrupted
guard.main()
"""
"""A guard that gets TERM, as when its outer process dies, while it looks for the engine's shared memory."""


async def test_a_guard_that_is_to_hurry_while_it_looks_for_memory_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "interrupted.py"
    program.write_text(INTERRUPTED)
    monkeypatch.setattr(guard_link, "GUARD", program)
    link, _ = await start(tmp_path)
    link.go()
    pids = await asyncio.to_thread(pids_noted, tmp_path)
    link.stop(600.0)
    assert await asyncio.wait_for(link.gone, SOON_S)
    assert running(pids.values()) == []

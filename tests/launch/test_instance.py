"""An instance's life: recorded before it runs, ready when it serves, its death explained, its end complete."""

from __future__ import annotations

import asyncio
import errno
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.death import cause, describe_stall, diagnose
from launch.errors import LaunchError
from launch.instance import HOLD_CALLS, CrashedAtStart, ReadyTimeout, end_leftover
from launch.local import LocalBackend
from launch.ports import LOOPBACK, PortTaken, free_port, is_free
from launch.processes import ProcessesUnseen, end_members, members
from state.process_identity import ProcessIdentity, identify, is_alive
from tests.launch.engines import ENGINE, ignore_start, program, started
from tests.launch.programs import CHILD_DIES, STUBBORN, pids_noted, running, wait_until

SOON_S = 30.0


@pytest.fixture
def occupied() -> Iterator[int]:
    """A port on which this test process serves something else."""
    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


async def test_it_is_recorded_before_it_runs_and_ready_when_it_serves(tmp_path: Path) -> None:
    spec = program(tmp_path)
    recorded: list[tuple[object, ...]] = []

    def on_started(*row: object) -> None:
        recorded.append((*row, spec.stdout.read_text()))

    async with LocalBackend(ENGINE) as backend:
        instance = await backend.start(spec, on_started)
        await instance.wait_ready(SOON_S)
        assert recorded == [(instance.identity, "spawn/uni", "")]
        assert instance.identity == identify(instance.pid)
        assert os.getsid(instance.pid) == os.getpgid(instance.pid) == instance.pid
        assert instance.alive()
        assert "serving tiny-qwen3" in instance.tail(3)
        await instance.stop(10.0, 0.0)
    assert instance.exit_code == 0
    assert not instance.alive()
    assert is_free(spec.port)


async def test_an_error_while_it_is_recorded_means_it_never_runs(tmp_path: Path) -> None:
    pids: list[int] = []

    def on_started(process: ProcessIdentity, started_by: str) -> None:
        pids.append(process.pid)
        raise LaunchError("the journal is full")

    async with LocalBackend(ENGINE) as backend:
        with pytest.raises(LaunchError, match="journal is full"):
            await backend.start(program(tmp_path, STUBBORN, "plain", str(tmp_path)), on_started)
    assert await asyncio.to_thread(wait_until, lambda: not running(pids))
    assert not (tmp_path / "engine").exists()


async def test_a_crash_at_start_is_found_at_once_and_told_with_its_cause_and_last_lines(tmp_path: Path) -> None:
    code = "import sys; print('loading'); sys.stdout.flush(); raise RuntimeError('no such weights')"
    async with started(program(tmp_path, code)) as instance:
        with pytest.raises(CrashedAtStart) as caught:
            await instance.wait_ready(600.0)
    said = str(caught.value)
    assert "plain-1 ended with exit code 1" in said
    assert "before it was ready: RuntimeError: no such weights" in said
    assert "loading" in said
    assert str(tmp_path / "vllm_stderr.log") in caught.value.remedy
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV", "SIGABRT", "SIGKILL"])
async def test_the_signal_that_ended_the_engine_process_is_named_with_its_frame(tmp_path: Path, name: str) -> None:
    async with started(program(tmp_path, CHILD_DIES, "plain", name, "0")) as instance:
        with pytest.raises(CrashedAtStart) as caught:
            await instance.wait_ready(600.0)
    death = caught.value.death
    assert death is not None
    assert (death.ended_by, death.process) == (name, "EngineCore")
    assert f"plain-1 lost its process EngineCore (pid {death.pid}), which was ended by {name} " in str(caught.value)
    assert death.last_lines[-1] in str(caught.value)
    if name == "SIGKILL":
        assert "OOM killer" in str(caught.value)
    else:
        assert death.frame.endswith("in crash_here")
        assert f"last Python frame {death.frame}" in str(caught.value)


async def test_a_main_process_that_ends_by_a_signal_is_named_too(tmp_path: Path) -> None:
    code = "import faulthandler, os, signal\nfaulthandler.enable()\nos.kill(os.getpid(), signal.SIGSEGV)"
    async with started(program(tmp_path, code)) as instance:
        with pytest.raises(CrashedAtStart, match=r"plain-1 was ended by SIGSEGV .*: last Python frame <string>:3 in"):
            await instance.wait_ready(600.0)


async def test_an_engine_is_dead_while_its_server_lives_on(tmp_path: Path) -> None:
    async with started(program(tmp_path, CHILD_DIES, "plain", "SIGILL", "60")) as instance:
        assert await instance.explain_death() == ""
        for _ in range(600):
            if death := await instance.find_death():
                break
            await asyncio.sleep(0.05)
        assert instance.alive()
        assert death is not None
        assert (death.ended_by, death.process) == ("SIGILL", "EngineCore")


async def test_an_engine_that_was_stopped_has_not_died(tmp_path: Path) -> None:
    async with started(program(tmp_path)) as instance:
        await instance.wait_ready(SOON_S)
        await instance.stop(10.0, 0.0)
        assert await instance.find_death() is None


async def test_a_stall_is_read_once_and_only_when_its_line_is_whole(tmp_path: Path) -> None:
    async with started(program(tmp_path, "import time; time.sleep(600)")) as instance:
        line = "[tracon] a step has run for 5 s, /x/core.py:1 in step (step 7, pid 9)\n"
        with instance.spec.stderr.open("a") as log:
            log.write("caf\xe9\n" + line[:20])
            log.flush()
            assert instance.read_stalls() == ()
            log.write(line[20:])
            log.flush()
            assert [stall.frame for stall in instance.read_stalls()] == ["/x/core.py:1 in step"]
            assert instance.read_stalls(last=True) == ()


HELD = 'Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n  File "/x/core.py", line 2 in wait\n\n'
ENDED = "[tracon] no Python thread ran for 8.1 s (pid 9)\n"


async def test_a_process_that_was_held_up_across_two_calls_is_one_stall(tmp_path: Path) -> None:
    async with started(program(tmp_path, "import time; time.sleep(600)")) as instance:
        with instance.spec.stderr.open("a") as log:

            def read(text: str, *, last: bool = False) -> list[str]:
                log.write(text)
                log.flush()
                return [describe_stall(stall) for stall in instance.read_stalls(last=last)]

            whole = "no Python thread ran for 8.1 s (pid 9): last Python frame /x/core.py:2 in wait"
            unended = "no Python thread ran for 5 s: last Python frame /x/core.py:2 in wait"
            assert read(HELD) == []
            assert read(ENDED) == [whole]
            waited = [read(HELD if call == 0 else "") for call in range(HOLD_CALLS + 1)]
            assert waited == [*([[]] * HOLD_CALLS), [unended]]
            assert read("") == []
            assert read(ENDED) == [], "it has been returned"
            assert read(HELD + ENDED) == [whole]
            assert read(HELD, last=True) == [unended]


async def test_the_log_of_an_earlier_launch_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "vllm_stderr.log").write_text("RuntimeError: from yesterday\n")
    async with started(program(tmp_path, "raise SystemExit(3)")) as instance:
        with pytest.raises(CrashedAtStart) as caught:
            await instance.wait_ready(600.0)
    assert "yesterday" not in str(caught.value)
    assert (tmp_path / "vllm_stderr.log").read_text().startswith("RuntimeError: from yesterday")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ModuleNotFoundError: No module named 'lmcache'", "lacks lmcache"),
        ("ModuleNotFoundError: No module named 'tracon_patches'", "tracon patch apply"),
        ("OSError: [Errno 98] Address already in use", "another server holds a port"),
        ("RuntimeError: Mooncake is not available", "tracon doctor"),
    ],
)
async def test_a_known_symptom_in_the_log_becomes_the_remedy(tmp_path: Path, said: str, remedy: str) -> None:
    async with started(program(tmp_path, f"raise SystemExit({said!r})")) as instance:
        with pytest.raises(CrashedAtStart) as caught:
            await instance.wait_ready(600.0)
    assert remedy in caught.value.remedy


def test_the_cause_is_the_engines_own_exception_not_the_api_servers_echo() -> None:
    log = """(APIServer pid=1) INFO 11-20 12:32:35 [entry.py:1] starting
(EngineCore pid=2) ERROR 11-20 12:32:35 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-20 12:32:35 [core.py:1510] RuntimeError: Mooncake is not available
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
    assert cause(log) == "RuntimeError: Mooncake is not available"
    assert cause("all is well") == ""
    assert "dmesg" in diagnose("", "SIGKILL")


async def test_an_engine_that_never_serves_is_a_timeout_that_says_what_is_missing(tmp_path: Path) -> None:
    async with started(program(tmp_path, "import time; time.sleep(600)")) as instance:
        with pytest.raises(ReadyTimeout, match="does not answer"):
            await instance.wait_ready(1.0)


async def test_a_server_of_another_model_is_not_ready(tmp_path: Path) -> None:
    spec = program(tmp_path)
    wrong = tuple("other-model" if word == "tiny-qwen3" else word for word in spec.argv)
    async with started(replace(spec, argv=wrong)) as instance:
        with pytest.raises(ReadyTimeout, match="lists other-model, not tiny-qwen3"):
            await instance.wait_ready(3.0)


async def test_a_taken_port_is_refused_before_anything_starts_and_its_holder_named(
    tmp_path: Path, occupied: int
) -> None:
    spec = program(tmp_path)
    async with LocalBackend(ENGINE) as backend:
        with pytest.raises(PortTaken) as caught:
            await backend.start(replace(spec, port=occupied, ports={"http": occupied}), ignore_start)
    assert f"port {occupied} (http) is taken by pid {os.getpid()}" in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


async def test_a_port_that_only_the_connector_needs_is_checked_too(tmp_path: Path, occupied: int) -> None:
    spec = program(tmp_path)
    ports = {**spec.ports, "VLLM_NIXL_SIDE_CHANNEL_PORT": occupied}
    async with LocalBackend(ENGINE) as backend:
        with pytest.raises(PortTaken, match="VLLM_NIXL_SIDE_CHANNEL_PORT"):
            await backend.start(replace(spec, ports=ports), ignore_start)


async def test_a_stranger_that_answers_on_our_port_is_refused(tmp_path: Path) -> None:
    spec = program(tmp_path, "import time; time.sleep(600)")
    async with started(spec) as instance:
        # The engine has not bound its port yet, and another server of the same model takes it.
        argv = program(tmp_path).argv
        stale = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
        try:
            with pytest.raises(PortTaken, match=f"pid {stale.pid}"):
                await instance.wait_ready(SOON_S)
        finally:
            stale.kill()
            await stale.wait()


def test_free_ports_are_found_around_a_taken_one(occupied: int) -> None:
    assert not is_free(occupied)
    found = free_port(occupied - 1, 3)
    assert found > occupied or found + 2 < occupied
    assert all(is_free(found + i) for i in range(3))


async def test_stop_ends_everything_and_answers_the_same_again(tmp_path: Path) -> None:
    async with started(program(tmp_path, STUBBORN, "plain", str(tmp_path))) as instance:
        pids = await asyncio.to_thread(pids_noted, tmp_path)
        assert await instance.stop(0.2, 0.0) == await instance.stop(10.0, 10.0)
    assert instance.exit_code == -signal.SIGKILL
    assert running(pids.values()) == []


async def test_the_release_wait_follows_the_end(tmp_path: Path) -> None:
    async with started(program(tmp_path)) as instance:
        await instance.wait_ready(SOON_S)
        began = asyncio.get_running_loop().time()
        assert await instance.stop(10.0, 0.5) == "waited 0.5 s"
        assert asyncio.get_running_loop().time() - began >= 0.5


async def test_leaving_the_backend_ends_what_still_runs(tmp_path: Path) -> None:
    async with started(program(tmp_path, STUBBORN, "plain", str(tmp_path))):
        pids = await asyncio.to_thread(pids_noted, tmp_path)
    assert running(pids.values()) == []


def kill_guards(pid: int) -> None:
    """Kill both guards of the engine whose main process is `pid`, so that neither can end the engine for the other."""
    inner = psutil.Process(pid).parent()
    assert inner is not None
    outer = inner.parent()
    assert outer is not None
    for guard in (inner, outer):
        guard.send_signal(signal.SIGSTOP)
    for guard in (outer, inner):
        guard.kill()


@pytest.mark.fault
async def test_with_both_guards_killed_the_owner_ends_the_engines_session(tmp_path: Path) -> None:
    async with started(program(tmp_path, STUBBORN, "plain", str(tmp_path))) as instance:
        pids = await asyncio.to_thread(pids_noted, tmp_path)
        kill_guards(instance.pid)
        try:
            session = [pids["engine"], pids["worker"]]
            assert await asyncio.to_thread(wait_until, lambda: not running(session))
            assert not instance.alive()
        finally:
            os.kill(pids["daemon"], signal.SIGKILL)  # with both guards gone nothing ties a daemon to its engine


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[ProcessIdentity]:
    """Grows with each look for what is left of an engine. The first one fails for want of descriptors."""
    looks: list[ProcessIdentity] = []

    def end_at_second_look(identity: ProcessIdentity, grace_s: float) -> tuple[int, ...]:
        looks.append(identity)
        if len(looks) == 1:
            raise ProcessesUnseen("too many open files", remedy="raise the limit")
        return end_members(identity, grace_s)

    monkeypatch.setattr("launch.instance.end_members", end_at_second_look)
    return looks


async def test_a_stop_that_could_not_see_what_is_left_is_tried_again(
    tmp_path: Path, looks: list[ProcessIdentity]
) -> None:
    async with started(program(tmp_path)) as instance:
        with pytest.raises(ProcessesUnseen):
            await instance.stop(3.0, 0.0)
        assert await instance.stop(3.0, 0.0) == "waited 0 s"
    assert len(looks) == 2, "one that succeeded is not repeated"


@pytest.mark.fault
async def test_what_could_not_be_seen_when_its_guards_died_is_looked_for_again_at_its_stop(
    tmp_path: Path, looks: list[ProcessIdentity]
) -> None:
    async with started(program(tmp_path)) as instance:
        await instance.wait_ready(SOON_S)
        kill_guards(instance.pid)
        assert await asyncio.to_thread(wait_until, lambda: bool(looks))
        await instance.stop(3.0, 0.0)
    assert len(looks) == 2
    assert running([instance.pid]) == []


async def test_nothing_in_the_event_loop_waits_for_an_engine(tmp_path: Path) -> None:
    """Whatever an engine does, a campaign's other work goes on; the bound is far above what a slow host needs."""
    gaps: list[float] = []

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            gaps.append(loop.time() - before)

    async with started(program(tmp_path, STUBBORN, "plain", str(tmp_path))) as instance:
        await asyncio.to_thread(pids_noted, tmp_path)
        beating = asyncio.create_task(beat())
        await instance.stop(3.0, 0.0)
        beating.cancel()
    assert max(gaps) < 1.0


Leftover = tuple[ProcessIdentity, dict[str, int]]


@pytest.fixture
def leftover(tmp_path: Path) -> Iterator[Leftover]:
    """A stubborn engine without an owner, and its pids by role: only its identity leads to it."""
    process = subprocess.Popen([sys.executable, "-c", STUBBORN, str(tmp_path)], start_new_session=True)
    threading.Thread(target=process.wait, daemon=True).start()
    identity, pids = identify(process.pid), pids_noted(tmp_path)
    yield identity, pids
    for pid in running(pids.values()):
        os.kill(pid, signal.SIGKILL)


def test_a_leftover_is_ended_by_its_identity(leftover: Leftover) -> None:
    identity, pids = leftover
    assert is_alive(identity)
    assert {pids["engine"], pids["worker"]} <= set(members(identity))
    assert end_leftover(identity, grace_s=0.1)
    assert running([pids["engine"], pids["worker"]]) == []
    assert end_leftover(identity)


def test_a_leftover_whose_main_process_is_gone_is_found_by_its_session(leftover: Leftover) -> None:
    identity, pids = leftover
    os.kill(identity.pid, signal.SIGKILL)
    assert wait_until(lambda: not running([identity.pid]))
    assert end_leftover(identity, grace_s=0.1)
    assert running([pids["worker"]]) == []


def test_a_boot_id_that_cannot_be_read_for_the_moment_is_not_another_one(
    leftover: Leftover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process without a free descriptor would take what is left of an engine for gone."""
    identity, pids = leftover
    read, refused = Path.read_text, list[Path]()

    def refuse_once(path: Path, *arguments: Any, **named: Any) -> str:
        if path.name == "boot_id" and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refuse_once)
    assert end_members(identity, 0.1) == ()
    assert refused
    assert running([pids["engine"], pids["worker"]]) == []


read_text = Path.read_text


def refuse_boot_id(path: Path, *arguments: Any, **named: Any) -> str:
    """`Path.read_text` of a process that cannot open what tells it whether another one lives."""
    if path.name == "boot_id":
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    return read_text(path, *arguments, **named)


def test_a_shortage_that_lasts_is_named_with_its_remedy(leftover: Leftover, monkeypatch: pytest.MonkeyPatch) -> None:
    identity, pids = leftover
    monkeypatch.setattr("launch.processes.SHORTAGE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(Path, "read_text", refuse_boot_id)
    with pytest.raises(ProcessesUnseen, match="Too many open files") as of_leftover:
        end_leftover(identity)
    with pytest.raises(ProcessesUnseen, match="Too many open files") as of_members:
        end_members(identity, 0.1)
    assert "`ulimit -n`" in of_leftover.value.remedy
    assert "`ulimit -n`" in of_members.value.remedy
    assert sorted(running(pids.values())) == sorted(pids.values())


async def test_an_engine_that_cannot_be_looked_at_for_the_moment_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(program(tmp_path)) as instance:
        await instance.wait_ready(SOON_S)
        with monkeypatch.context() as short:
            short.setattr(Path, "read_text", refuse_boot_id)
            assert instance.alive()
        assert await instance.find_death() is None


def test_a_process_that_only_has_the_same_pid_is_left_alone(leftover: Leftover) -> None:
    identity, pids = leftover
    assert identity.start_ticks is not None
    assert end_leftover(replace(identity, start_ticks=identity.start_ticks - 1))
    assert end_leftover(replace(identity, boot_id="another boot"))
    assert sorted(running(pids.values())) == sorted(pids.values())


def test_what_cannot_be_verified_is_neither_ended_nor_called_gone(leftover: Leftover) -> None:
    identity, pids = leftover
    assert not end_leftover(replace(identity, host="elsewhere"))
    assert not end_leftover(replace(identity, pid_namespace="pid:[1]"))
    assert not end_leftover(replace(identity, start_ticks=None, process_start=identity.process_start - 3.0))
    assert sorted(running(pids.values())) == sorted(pids.values())


async def test_a_stepped_clock_disowns_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil derives creation times from the boot time, which it reads again after the clock was set."""
    async with started(program(tmp_path)) as instance:
        await instance.wait_ready(SOON_S)
        before, boot_time = identify(instance.pid), psutil._pslinux.boot_time
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_time() + 3.0)
        assert identify(instance.pid).process_start == pytest.approx(before.process_start + 3.0)
        assert instance.alive()
        assert instance.pid in members(instance.identity)
        assert end_leftover(instance.identity, grace_s=1.0)
        assert running([instance.pid]) == []

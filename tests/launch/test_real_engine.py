"""A real vLLM: forked, ready, answering, passing pre-flight; and nothing of it left when its owner is killed."""

from __future__ import annotations

import asyncio
import ctypes
import getpass
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from launch.command import build_launch, write_launch
from launch.environment import find_engine
from launch.instance import Instance, make_http_client
from launch.local import LocalBackend
from launch.preflight import verify
from launch.profile import load_config, load_profile
from results.records.layout import ConfigLayout
from tests.launch.engines import ignore_start, pid_with_model
from tests.launch.programs import running, wait_until
from tests.ports import own_port

pytestmark = pytest.mark.engine

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 240.0
GONE_S = 20.0
"""The product's promise is 5 s; a busy test host gets more."""

OWNER = """
import asyncio, sys
from pathlib import Path
from launch.command import build_launch
from launch.environment import find_engine
from launch.local import LocalBackend
from tests.ports import own_port
from launch.profile import load_config, load_profile
from results.records.layout import ConfigLayout
async def main(folder):
    profile, engine = load_profile("cpu-tiny"), find_engine("cpu")
    def started(pid, *_):
        (folder / "engine").write_text(str(pid))
    async with LocalBackend(engine) as backend:
        spec = build_launch(profile, load_config("plain"), engine, instance="plain-1", port=own_port(22_000, 2),
                            layout=ConfigLayout(folder), launch=1)
        instance = await backend.start(spec, started)
        await instance.wait_ready(240.0)
        (folder / "ready").write_text(str(instance.pid))
        await asyncio.sleep(600)
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a short name as /tmp has one."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def meeting_folders(temporary: Path) -> list[Path]:
    """Where the workers of live engines meet."""
    return [path.parent for path in temporary.rglob("vllm_dist_*")]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_plain_starts_by_fork_server_serves_and_passes_pre_flight(tmp_path: Path, temporary: Path) -> None:
    profile, config, engine = load_profile("cpu-tiny"), load_config("plain"), find_engine("cpu")
    layout = ConfigLayout(tmp_path)
    async with LocalBackend(engine) as backend:
        for launch in (1, 2):
            spec = build_launch(
                profile, config, engine,
                instance=f"plain-{launch}", port=own_port(22_000, 2), layout=layout, launch=launch,
            )  # fmt: skip
            write_launch(spec, layout)
            instance = await backend.start(spec, ignore_start)
            await instance.wait_ready(START_S)
            result = await verify(instance, config, profile, tmp_path / "verify_plain.log")
            family = psutil.Process(instance.pid).children(recursive=True)
            meeting = meeting_folders(temporary)
            await instance.stop(profile.launch.stop_grace_s, 0.0)
            assert result.passed, result.reason
            assert family, "the engine core is a process of its own"
            assert running([instance.pid, *(process.pid for process in family)]) == []
            assert instance.exit_code == 0, instance.tail(60)
            assert len(meeting) == 1, "the file where its workers meet"
            assert meeting_folders(temporary) == []
    assert names_in(temporary) <= {f"torchinductor_{getpass.getuser()}"}


TGKILL = 234
"""The system call's number on x86-64."""
STALL_S = 2.0
"""Short enough to wait for, and longer than what a busy host does to a process that nothing holds up."""


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.usefixtures("patches")
@pytest.mark.parametrize(("number", "executor"), [(signal.SIGSEGV, "uni"), (signal.SIGKILL, "mp")])
async def test_what_stops_the_processes_of_a_serving_engine_is_named(
    backend: LocalBackend, tmp_path: Path, number: signal.Signals, executor: str
) -> None:
    """First the process with the model is held up, then a signal ends the engine process."""
    base = load_profile("cpu-tiny")
    profile = msgspec.structs.replace(base, launch=msgspec.structs.replace(base.launch, executor=executor))
    spec = build_launch(
        profile, load_config("plain"), find_engine("cpu"),
        instance=f"plain-{executor}", port=own_port(22_000, 2), layout=ConfigLayout(tmp_path), launch=1,
        extra_env={"TRACON_STALL_S": str(STALL_S)},
    )  # fmt: skip
    instance = await backend.start(spec, ignore_start)
    try:
        await stop_an_engine(instance, number, executor)
    finally:
        await instance.stop(0.0, 0.0)


async def stop_an_engine(instance: Instance, number: signal.Signals, executor: str) -> None:
    await instance.wait_ready(START_S)
    async with make_http_client(instance.url) as client:
        body = {"model": instance.model, "prompt": [1, 2, 3], "max_tokens": 4}
        answer = await client.post("/v1/completions", json=body, timeout=START_S)
    assert answer.status_code == 200
    instance.read_stalls()  # of a start on a busy host
    (core,) = psutil.Process(instance.pid).children()
    with_model = psutil.Process(pid_with_model(instance.log()))
    assert with_model.pid in {child.pid for child in core.children()} if executor == "mp" else {core.pid}
    with_model.suspend()
    await asyncio.sleep(2 * STALL_S)
    with_model.resume()
    stall = (await wait_for(instance.read_stalls))[0]
    assert re.fullmatch(rf"no Python thread ran for [\d.]+ s \(pid {with_model.pid}\)", stall.text)
    assert stall.frame
    assert await instance.find_death() is None
    signal_main_thread(core.pid, number)
    death = await wait_for(instance.find_death)
    assert (death.ended_by, death.process, death.pid) == (number.name, "EngineCore", core.pid)
    if number is signal.SIGSEGV:
        assert "vllm/v1/engine/core.py" in death.frame
    else:
        assert "OOM killer" in death.kernel
    assert number.name in await instance.explain_death()
    assert death.last_lines


def signal_main_thread(pid: int, number: signal.Signals) -> None:
    """As a fault does, which meets the thread that caused it; a signal to a process may go to any of its threads."""
    assert ctypes.CDLL(None, use_errno=True).syscall(TGKILL, pid, pid, int(number)) == 0, ctypes.get_errno()


async def wait_for(ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever `ask` returns once it is not empty
    for _ in range(200):
        answer = ask()
        if answer := await answer if inspect.isawaitable(answer) else answer:
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError(f"{ask} returned nothing")


@pytest.mark.fault
@pytest.mark.parametrize("moment", ["engine", "ready"], ids=["in the middle of the launch", "while it serves"])
def test_kill_9_of_the_owner_leaves_nothing(tmp_path: Path, moment: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], cwd=REPOSITORY)
    try:
        assert wait_until(lambda: (tmp_path / moment).exists() or owner.poll() is not None, START_S)
        assert owner.poll() is None, "the owner could not start an engine"
        family = {child.pid for child in psutil.Process(owner.pid).children(recursive=True)}
    finally:
        owner.kill()
        owner.wait()
    assert len(family) >= 6, "two guards and the fork server, two guards and the engine"
    assert wait_until(lambda: not running(family | of_folder(tmp_path)), GONE_S)


def of_folder(folder: Path) -> set[int]:
    """Every process that works in that folder: also one that was forked after we looked."""
    return {pid for pid in psutil.pids() if _cwd(pid) == str(folder)} - {os.getpid()}


def _cwd(pid: int) -> str:
    try:
        return psutil.Process(pid).cwd()
    except psutil.Error:
        return ""

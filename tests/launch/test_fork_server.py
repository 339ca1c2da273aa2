"""The fork server: engines as forks, each with its own environment, logs and death; none outlives its owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from launch.command import build_whole_env
from launch.guard_link import GuardLink
from launch.local import ForkServer, ForkServerFailed
from launch.ports import find_holders
from tests.launch.programs import STUBBORN, pids_noted, running, wait_until
from tests.ports import own_port

REPOSITORY = Path(__file__).resolve().parents[2]
SOON_S = 15.0

PRELOADED = "import tempfile, time\nLOADED_AT = time.monotonic_ns()\ntempfile.gettempdir()\n"
ENGINE = """
import json, os, sys, tempfile, preloaded
where = {"argv": sys.argv, "pid": os.getpid(), "sid": os.getsid(0), "pgid": os.getpgid(0), "name": __name__,
         "loaded_at": preloaded.LOADED_AT, "color": os.environ.get("COLOR"), "path0": sys.path[0],
         "sockets": os.environ["VLLM_RPC_BASE_PATH"], "temporary": tempfile.gettempdir()}
if sys.argv[1] == "crash":
    raise RuntimeError("no room")
print(json.dumps(where), flush=True)
sys.exit(int(sys.argv[2]))
"""

LISTENS = """
import multiprocessing, os, socket, sys, time
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
worker.start()
server.listen()
print(os.getpid(), worker.pid, flush=True)
time.sleep(60)
"""

OWNER = """
import asyncio, os, sys
from pathlib import Path
from launch.local import ForkServer
async def main(folder):
    env = {**os.environ, "PYTHONPATH": str(folder)}
    server = await ForkServer.start(Path(sys.executable), env, folder, ("preloaded",))
    (folder / "server").write_text(str(server.pid))
    link = await server.fork()
    log = folder / "log"
    await link.start([sys.executable, "-m", "stubborn", str(folder)], env, cwd=folder, stdout=log, stderr=log)
    link.go()
    await asyncio.sleep(600)
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with modules that stand in for vLLM and its server."""
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    return tmp_path


async def server_in(folder: Path, *preload: str) -> ForkServer:
    env = build_whole_env({"PYTHONPATH": str(folder)})
    return await ForkServer.start(Path(sys.executable), env, folder, preload or ("preloaded",))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[ForkServer]:
    server = await server_in(folder)
    try:
        yield server
    finally:
        await server.close()


async def engine_of(
    server: ForkServer, folder: Path, name: str, module: str, *arguments: str, **variables: str
) -> GuardLink:
    link = await server.fork()
    env = build_whole_env({"PYTHONPATH": str(folder), **variables})
    log = folder / name
    await link.start([sys.executable, "-m", module, *arguments], env, cwd=folder, stdout=log, stderr=log)
    link.go()
    return link


async def test_each_engine_has_its_own_arguments_environment_log_session_and_exit_code(modules: Path) -> None:
    async with serving(modules) as server:
        links = [await engine_of(server, modules, f"log{n}", "engine", "run", str(n), COLOR=f"c{n}") for n in (0, 3)]
        codes = [await asyncio.wait_for(link.exited, SOON_S) for link in links]
        said = [json.loads((modules / f"log{n}").read_text()) for n in (0, 3)]
    assert codes == [0, 3]
    for row, n in zip(said, (0, 3), strict=True):
        assert row["argv"][1:] == ["run", str(n)]
        assert row["color"] == f"c{n}"
        assert row["pid"] == row["sid"] == row["pgid"]
        assert row["name"] == "__main__"
        assert row["temporary"] == row["sockets"], "the folder that its guard removes"
    assert said[0]["loaded_at"] == said[1]["loaded_at"], "the imports happened once, in the server"
    assert said[0]["pid"] != said[1]["pid"]


async def test_an_engine_that_raises_leaves_its_traceback_and_a_non_zero_code(modules: Path) -> None:
    async with serving(modules) as server:
        link = await engine_of(server, modules, "log", "engine", "crash", "0")
        assert await asyncio.wait_for(link.exited, SOON_S) == 1
        assert server.alive(), "a crashed engine does not take the server with it"
    assert "RuntimeError: no room" in (modules / "log").read_text()


async def test_an_engine_that_crashes_leaves_its_stack_in_its_own_log(modules: Path) -> None:
    (modules / "crashes.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    async with serving(modules) as server:
        link = await engine_of(server, modules, "log", "crashes", PYTHONFAULTHANDLER="1")
        assert await asyncio.wait_for(link.exited, SOON_S) == -signal.SIGILL
    log = (modules / "log").read_text()
    assert "Fatal Python error: Illegal instruction" in log
    assert 'crashes.py", line 2 in <module>' in log


async def test_only_the_api_server_holds_its_port_and_not_the_processes_it_forks(modules: Path) -> None:
    (modules / "listens.py").write_text(LISTENS)
    port = own_port(23_500)
    async with serving(modules) as server:
        link = await engine_of(server, modules, "log", "listens", str(port))  # an engine ends with its link
        log = modules / "log"
        assert await asyncio.to_thread(wait_until, lambda: log.exists() and log.read_text().endswith("\n"), SOON_S)
        engine, worker = map(int, log.read_text().split())
        assert await asyncio.to_thread(wait_until, lambda: [one.pid for one in find_holders(port)] == [engine], SOON_S)
        assert running([worker]) == [worker]
        assert not link.exited.done()


async def test_engines_do_not_find_the_modules_beside_the_server(modules: Path) -> None:
    (modules / "looks.py").write_text("import profile\nassert 'launch' not in profile.__file__, profile.__file__\n")
    server = await server_in(modules, "preloaded", "looks")
    await server.close()


async def test_an_import_that_fails_is_an_error_that_names_it(modules: Path) -> None:
    with pytest.raises(ForkServerFailed, match="no_such_module") as caught:
        await server_in(modules, "no_such_module")
    assert "spawn" in caught.value.remedy


async def test_a_server_with_threads_refuses_to_fork(modules: Path) -> None:
    (modules / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    with pytest.raises(ForkServerFailed, match="2 threads"):
        await server_in(modules, "threaded")


async def test_closing_the_server_ends_it_and_its_engines(modules: Path) -> None:
    server = await server_in(modules)
    link = await engine_of(server, modules, "log", "stubborn", str(modules))
    pids = await asyncio.to_thread(pids_noted, modules)
    await server.close()
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not running([*pids.values(), server.pid]), SOON_S)


@pytest.mark.fault
def test_kill_9_of_the_owner_leaves_neither_server_nor_engines(modules: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(modules)], cwd=REPOSITORY)
    pids = pids_noted(modules, ("engine", "worker", "daemon", "server"))
    family = {owner.pid, *(child.pid for child in psutil.Process(owner.pid).children(recursive=True))}
    assert set(pids.values()) < family
    owner.kill()
    owner.wait()
    assert wait_until(lambda: not running(family), SOON_S)


@pytest.mark.fault
async def test_kill_9_of_the_server_ends_its_engines(modules: Path) -> None:
    server = await server_in(modules)
    link = await engine_of(server, modules, "log", "stubborn", str(modules))
    pids = await asyncio.to_thread(pids_noted, modules)
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.wait_for(link.gone, SOON_S)
    assert await asyncio.to_thread(wait_until, lambda: not running(pids.values()), SOON_S)
    await server.close()

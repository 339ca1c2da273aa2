"""Starts engines on this host: each from scratch, or forked from a server that has imported vLLM already."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from launch.builtin_models import write_builtin
from launch.command import LaunchSpec, build_whole_env, make_unwritable
from launch.death import describe_exit_name, name_code
from launch.environment import Engine
from launch.errors import LaunchError
from launch.guard_link import GuardLink, spawn_guard, wait_for_first
from launch.instance import Instance
from launch.ports import require_free
from state.process_identity import ProcessIdentity, identify

OnStarted = Callable[[ProcessIdentity, str], None]
"""(main process, started_by); the engine begins only after it has returned."""

FORK_SERVER = Path(__file__).resolve().with_name("fork_server.py")
PRELOAD = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.utils",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.qwen3",
)
IMPORT_TIMEOUT_S = 300.0
CLOSING_GRACE_S = 3.0


class ForkServerFailed(LaunchError):
    """The fork server could not start, or ended."""

    exit_code = 1


class ForkServer:
    """A process that has imported vLLM once and forks an engine per launch; CPU engines only."""

    def __init__(self, link: GuardLink, control: socket.socket, pid: int) -> None:
        self._link = link
        self._control = control
        self.pid = pid

    @classmethod
    async def start(
        cls, python: Path, env: dict[str, str], folder: Path, preload: tuple[str, ...] = PRELOAD
    ) -> ForkServer:
        """Start it and wait until its imports are done; its log is `folder`/fork_server.log."""
        log = folder / "fork_server.log"
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        link: GuardLink | None = None
        try:
            link = await spawn_guard(log, (theirs.fileno(),))
            argv = (str(python), str(FORK_SERVER), str(theirs.fileno()), *preload)
            pid = await link.start(argv, env, cwd=folder, stdout=log, stderr=log, own_folder=False)
            link.go()
            await cls._wait_ready(link, ours, log)
        except BaseException:
            ours.close()
            if link is not None:
                link.close()
            raise
        finally:
            theirs.close()
        return cls(link, ours, pid)

    @staticmethod
    async def _wait_ready(link: GuardLink, control: socket.socket, log: Path) -> None:
        answer = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(control, 65536))
        await wait_for_first(IMPORT_TIMEOUT_S, answer, link.exited, link.gone)
        if not answer.done():
            answer.cancel()
            how = (
                describe_exit_name(name_code(link.exited.result()))
                if link.exited.done()
                else f"was not ready after {IMPORT_TIMEOUT_S:.0f} s"
            )
            raise ForkServerFailed(
                f"the fork server {how}", remedy=f'see {log}, or set launch.method = "spawn" in the profile'
            )
        message = json.loads(answer.result() or b'{"failed": "it closed its socket"}')
        if "failed" in message:
            raise ForkServerFailed(
                f"the fork server cannot fork engines: {message['failed']}",
                remedy=f'set launch.method = "spawn" in the profile; its log is {log}',
            )

    def alive(self) -> bool:
        return not self._link.exited.done() and not self._link.gone.done()

    async def fork(self) -> GuardLink:
        """A guard, forked from the server, that starts an engine on request."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise ForkServerFailed(f"the fork server is gone: {error}", remedy="start again") from error
        finally:
            theirs.close()
        return await GuardLink.over(ours)

    async def close(self) -> None:
        """End it, and with it every engine that it still holds."""
        self._control.close()
        self._link.stop(CLOSING_GRACE_S)
        await wait_for_first(CLOSING_GRACE_S + 10.0, self._link.gone)
        self._link.close()


class LocalBackend:
    """Engines of one environment on this host. On leaving, every one of them is ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fork_server: ForkServer | None = None
        self._fork_server_lock = asyncio.Lock()
        self._instances: list[Instance] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every engine that still runs, and the fork server."""
        stops = [instance.stop(CLOSING_GRACE_S, 0.0) for instance in self._instances]
        results = await asyncio.gather(*stops, return_exceptions=True)
        server, self._fork_server = self._fork_server, None
        if server is not None:
            await server.close()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

    async def start(self, spec: LaunchSpec, on_started: OnStarted) -> Instance:
        """Start an engine; it begins only after `on_started` has recorded it. Raises LaunchError.

        PortTaken where something listens on one of its ports already.
        """
        started_ns = time.perf_counter_ns()
        await asyncio.to_thread(require_free, dict(spec.ports))
        await asyncio.to_thread(_prepare_launch, spec)
        link = (
            await (await self._ensure_fork_server(spec)).fork()
            if spec.method == "fork_server"
            else await spawn_guard(spec.stderr)
        )
        try:
            pid = await link.start(
                spec.argv, build_whole_env(spec.env), cwd=spec.cwd, stdout=spec.stdout, stderr=spec.stderr
            )
            identity = identify(pid)
            instance = Instance(spec, identity, link, started_ns, self._instances)
            self._instances.append(instance)
            on_started(identity, spec.started_by)
        except BaseException:
            link.close()
            raise
        link.go()
        return instance

    async def _ensure_fork_server(self, spec: LaunchSpec) -> ForkServer:
        """The warm fork server, started at the first launch that wants it."""
        if spec.kind != "cpu":
            raise ForkServerFailed(
                f"a fork server cannot start a {spec.kind} engine", remedy='set launch.method = "spawn" in the profile'
            )
        async with self._fork_server_lock:
            if self._fork_server is None or not self._fork_server.alive():
                # Hashes are seeded when Python starts, so the configs that need a fixed seed get it here.
                env = build_whole_env({**spec.base_env, "PYTHONHASHSEED": "0"})
                self._fork_server = await ForkServer.start(self._engine.python, env, spec.cwd)
            return self._fork_server


def _prepare_launch(spec: LaunchSpec) -> None:
    try:
        for path in (spec.stdout, spec.stderr):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        spec.rings.mkdir(parents=True, exist_ok=True)
        if spec.model_folder is not None:
            write_builtin(spec.model_folder)
    except OSError as error:
        raise make_unwritable(spec.cwd, error) from error

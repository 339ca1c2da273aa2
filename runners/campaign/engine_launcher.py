"""Launches the engines of a run and records each in the journal: before it starts, when it is ready, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from launch.command import LaunchSpec, build_launch, make_unwritable, write_launch
from launch.death import describe_death, describe_stall, explain_death
from launch.environment import Engine, capture
from launch.errors import HostObstacle, LaunchError
from launch.instance import EngineDied, Instance
from launch.local import LocalBackend
from launch.ports import PortTaken
from launch.profile import ConnectorConfig, Profile
from results.records.events import EngineDeath, InstanceChanged, InstanceState, Noted
from results.records.layout import ConfigLayout, RunLayout, append_rows, write_atomic
from results.records.schemas import EngineFault
from state.process_identity import ProcessIdentity
from state.store import RunStore

LAUNCH_TRIES = 2
"""After this many failures in a row of one engine, its cell fails."""
PORT_WAIT_S = 5.0
"""Until the next try where another process listens on a port of the engine."""
STALL_POLL_S = 1.0
_Started = TypeVar("_Started")


class Launcher:
    """Numbers the launches of each config, over all run processes of the run."""

    def __init__(
        self,
        *,
        backend: LocalBackend,
        profile: Profile,
        configs: Mapping[str, ConnectorConfig],
        engine: Engine,
        layout: RunLayout,
        date: str,
        store: RunStore,
    ) -> None:
        self.profile = profile
        self.configs = configs
        self.date = date
        """First part of the run's id: config folders begin with it."""
        self._backend = backend
        self._engine = engine
        self._layout = layout
        self._store = store
        self._last_numbers = _find_last_numbers(store)
        self._captured = b""
        self._capturing = asyncio.Lock()
        self._watches: dict[str, asyncio.Task[None]] = {}

    def find_config_layout(self, config: str) -> ConfigLayout:
        return self._layout.config(self.date, config)

    def take_number(self, config: str) -> int:
        number = self._last_numbers[config] = self._last_numbers.get(config, 0) + 1
        return number

    async def launch(
        self,
        config: str,
        layout: ConfigLayout,
        port: int,
        *,
        preflight: bool = False,
        transfer_log: bool = False,
        prefix: str = "",
        extra_args: Sequence[str] = (),
        extra_env: Mapping[str, str] | None = None,
        profile: Profile | None = None,
    ) -> Instance:
        """A ready engine of the config, its files in `layout`. It is named `<prefix, else config>-<number>`.

        `profile`: the run's with other engine settings; None = the run's. Raises LaunchError. Cancelled or failed, it
        leaves no process.
        """
        number = self.take_number(config)
        spec = build_launch(
            profile or self.profile,
            self.configs[config],
            self._engine,
            instance=f"{prefix or config}-{number}",
            port=port,
            layout=layout,
            launch=number,
            preflight=preflight,
            transfer_log=transfer_log,
            extra_args=extra_args,
            extra_env=extra_env,
        )
        write_launch(spec, layout)
        if not layout.env_txt.exists():
            write_atomic(layout.env_txt, await self._capture_environment())

        instance = await self._backend.start(spec, partial(self._record_start, spec))
        try:
            await instance.wait_ready(self.profile.launch.ready_timeout_s)
        except BaseException as error:
            await asyncio.shield(instance.stop(self.profile.launch.stop_grace_s, 0.0))
            self._note_stalls(instance, last=True)
            failed = isinstance(error, LaunchError)
            death = error.death if isinstance(error, EngineDied) else None
            self._record_state(instance, InstanceState.FAILED if failed else InstanceState.GONE, str(error), death)
            raise
        self._record_state(instance, InstanceState.READY, "")
        self._watches[instance.name] = asyncio.create_task(self._watch_stalls(instance))
        return instance

    def _record_start(self, spec: LaunchSpec, process: ProcessIdentity, started_by: str) -> None:
        """Called before the engine's first instruction, so that a process that takes over the run can end it."""
        self._store.append(
            InstanceChanged(
                spec.instance,
                spec.config,
                InstanceState.STARTING,
                pid=process.pid,
                pgid=process.pid,
                process_start=process.process_start,
                boot_id=process.boot_id,
                url=spec.url,
                started_by=started_by,
                start_ticks=process.start_ticks,
                host=process.host,
                pid_namespace=process.pid_namespace,
                devices=spec.devices,
            )
        )

    async def stop(self, instance: Instance, reason: str) -> None:
        """End it and wait until all of it is gone."""
        death = await instance.find_death()
        self._record_state(instance, InstanceState.STOPPING, reason)
        await instance.stop(self.profile.launch.stop_grace_s, self.profile.launch.release_wait_s)
        await self._end_watch(instance)
        if death is None:
            self._record_state(instance, InstanceState.GONE, reason)
        else:
            self._record_state(instance, InstanceState.FAILED, f"the engine {explain_death(death)}", death)

    async def _watch_stalls(self, instance: Instance) -> None:
        while True:
            await asyncio.sleep(STALL_POLL_S)
            self._note_stalls(instance)

    async def _end_watch(self, instance: Instance) -> None:
        """Raises what ended the watch before its time: the state or the run's folder cannot be written."""
        watch = self._watches.pop(instance.name, None)
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        self._note_stalls(instance, last=True)

    def _note_stalls(self, instance: Instance, *, last: bool = False) -> None:
        for stall in instance.read_stalls(last=last):
            text = describe_stall(stall)
            self._store.append(Noted("warning", instance.name, text))
            fault = EngineFault(time.time(), instance.name, instance.spec.config, "stall", text, stall.frame)
            self._append_fault(fault)

    def _append_fault(self, fault: EngineFault) -> None:
        """Add it to the run's folder, so that the report names it without the state file."""
        path = self._layout.engine_faults
        try:
            append_rows(path, [fault])
        except OSError as error:
            raise make_unwritable(path, error) from error

    async def _capture_environment(self) -> bytes:
        """What the engines run with, looked up once per run process: it takes a second of a core."""
        async with self._capturing:
            if not self._captured:
                self._captured = (await asyncio.to_thread(capture, self._engine)).encode()
            return self._captured

    def _record_state(
        self, instance: Instance, state: InstanceState, reason: str, death: EngineDeath | None = None
    ) -> None:
        spec = instance.spec
        self._store.append(
            InstanceChanged(
                spec.instance, spec.config, state, pid=instance.pid, url=spec.url, reason=reason, death=death
            )
        )
        if death is not None:
            text, signal = describe_death(death), death.ended_by
            fault = EngineFault(
                time.time(), spec.instance, spec.config, "death", text, death.frame, signal, death.last_lines
            )
            self._append_fault(fault)


async def retry_start(start: Callable[[], Awaitable[_Started]]) -> _Started:
    """What `start` returns, after LAUNCH_TRIES tries at most. Raises the LaunchError of the last one.

    It is not repeated while what the first try left cannot be seen: two engines would share the host.
    """
    for _ in range(LAUNCH_TRIES - 1):
        try:
            return await start()
        except PortTaken:  # perhaps by something that is about to end
            await asyncio.sleep(PORT_WAIT_S)
        except HostObstacle:
            raise
        except LaunchError:
            pass
    return await start()


def _find_last_numbers(store: RunStore) -> dict[str, int]:
    """The highest number of a launch, by config.

    A count would not do: a launch that was cut before its record leaves a gap, so the count may be a number in use.
    """
    numbers: dict[str, int] = {}
    for instance in store.view().instances.values():
        number = instance.instance.rpartition("-")[2]
        if number.isdigit():
            numbers[instance.config] = max(numbers.get(instance.config, 0), int(number))
    return numbers

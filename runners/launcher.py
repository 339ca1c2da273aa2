"""Launches the engines of a run and tells the journal of every one: before it begins, when it serves, how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from launch.command import build_launch, write_launch
from launch.environment import Engine, capture
from launch.errors import LaunchError
from launch.instance import Instance
from launch.local import LocalBackend
from launch.profile import ConnectorConfig, Profile
from results.layout import ConfigLayout, RunLayout, write_atomic
from state.events import InstanceChanged
from state.run import InstanceState
from state.store import RunStore


class Launcher:
    """Every launch gets a number of its config's own, over all run processes of the run."""

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
        self._launches = _launches_so_far(store)
        self._captured = b""
        self._capturing = asyncio.Lock()

    def config_layout(self, config: str) -> ConfigLayout:
        """The config's artifact folder."""
        return self._layout.config(self.date, config)

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
    ) -> Instance:
        """A ready engine of the config, its files in `layout`. It is named `<prefix, else config>-<number>`.

        Cancelled or failed, nothing of it stays behind. Raises LaunchError.
        """
        number = self._launches[config] = self._launches.get(config, 0) + 1
        spec = build_launch(
            self.profile,
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
            write_atomic(layout.env_txt, await self._environment())

        def started(pid: int, pgid: int, process_start: float, boot_id: str, started_by: str) -> None:
            self._store.append(
                InstanceChanged(
                    spec.instance,
                    config,
                    InstanceState.STARTING,
                    pid,
                    pgid,
                    process_start,
                    boot_id,
                    spec.url,
                    started_by,
                )
            )

        instance = await self._backend.start(spec, started)
        try:
            await instance.wait_ready(self.profile.launch.ready_timeout_s)
        except BaseException as error:
            # Cancelled or failed: either way nothing of it may stay behind.
            await asyncio.shield(instance.stop(self.profile.launch.stop_grace_s, 0.0))
            failed = isinstance(error, LaunchError)
            self._record(instance, InstanceState.FAILED if failed else InstanceState.GONE, str(error))
            raise
        self._record(instance, InstanceState.READY, "")
        return instance

    async def stop(self, instance: Instance, reason: str) -> None:
        """End it and wait until all of it is gone."""
        died = "" if instance.alive() else f"the engine died: {instance.tail(5)}"
        self._record(instance, InstanceState.STOPPING, reason)
        await instance.stop(self.profile.launch.stop_grace_s, self.profile.launch.release_wait_s)
        self._record(instance, InstanceState.FAILED if died else InstanceState.GONE, died or reason)

    async def _environment(self) -> bytes:
        """What the engines run with, looked up once per run process: it takes a second of a core."""
        async with self._capturing:
            if not self._captured:
                self._captured = (await asyncio.to_thread(capture, self._engine)).encode()
            return self._captured

    def _record(self, instance: Instance, state: InstanceState, reason: str) -> None:
        spec = instance.spec
        self._store.append(
            InstanceChanged(spec.instance, spec.config, state, pid=instance.pid, url=spec.url, reason=reason)
        )


def _launches_so_far(store: RunStore) -> dict[str, int]:
    counts: dict[str, int] = {}
    for instance in store.view().instances.values():
        counts[instance.config] = counts.get(instance.config, 0) + 1
    return counts

"""The campaign's one engine at a time: launched when a cell needs it, shared by those that follow, then released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from launch.command import build_launch, ports_needed, write_launch
from launch.environment import Engine, capture
from launch.errors import LaunchError
from launch.instance import Instance
from launch.local import LocalBackend
from launch.ports import free_port
from launch.profile import ConnectorConfig, Profile
from results.layout import ConfigLayout, RunLayout, write_atomic
from state.events import InstanceChanged
from state.run import InstanceState
from state.store import RunStore

LAUNCH_TRIES = 2


class EngineSlot:
    """Holds at most one live instance; every change of it is an event.

    The key says which cells may share an instance: cells of one config in one stage do.
    """

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
        self._backend = backend
        self._profile = profile
        self._configs = configs
        self._engine = engine
        self._layout = layout
        self._date = date
        self._store = store
        self._key: tuple[str, str] | None = None
        self._instance: Instance | None = None
        self._failures: dict[tuple[str, str], LaunchError] = {}
        self._launches = _launches_so_far(store)

    def config_layout(self, config: str) -> ConfigLayout:
        """The config's artifact folder."""
        return self._layout.config(self._date, config)

    async def get(self, config: str, purpose: str, *, preflight: bool = False) -> Instance:
        """A ready instance of the config: the one at hand if it serves this purpose and lives, else a fresh one.

        One launched for pre-flight has what its proofs need, so the purpose must not be shared with a measurement.
        Raises LaunchError. A config that failed to start LAUNCH_TRIES times in a row for a purpose is not tried again.
        """
        key = (config, purpose)
        if self._instance is not None and self._key == key and self._instance.alive():
            return self._instance
        await self.release("another engine is needed" if self._key != key else "the engine died")
        if key in self._failures:
            raise self._failures[key]
        for tries in range(1, LAUNCH_TRIES + 1):
            try:
                self._instance = await self._launch(
                    config, self.config_layout(config), self._profile.launch.port_base, preflight
                )
            except LaunchError as error:
                if tries == LAUNCH_TRIES:
                    self._failures[key] = error
                    raise
            else:
                self._key = key
                return self._instance
        raise AssertionError("unreachable")

    async def release(self, reason: str) -> None:
        """Stop the instance, if there is one, and wait until all of it is gone."""
        instance, self._instance, self._key = self._instance, None, None
        if instance is not None:
            await self._stop(instance, reason)

    async def _stop(self, instance: Instance, reason: str) -> None:
        died = "" if instance.alive() else f"the engine died: {instance.tail(5)}"
        self._record(instance, InstanceState.STOPPING, reason)
        await instance.stop(self._profile.launch.stop_grace_s, self._profile.launch.release_wait_s)
        self._record(instance, InstanceState.FAILED if died else InstanceState.GONE, died or reason)

    @asynccontextmanager
    async def counterpart(self, config: str, folder: Path) -> AsyncIterator[Instance]:
        """A second instance of the config, launched for pre-flight, with its files in `folder`. Raises LaunchError."""
        needed = ports_needed(self._configs[config])
        port = await asyncio.to_thread(free_port, self._profile.launch.port_base + needed, needed)
        instance = await self._launch(config, ConfigLayout(folder), port, preflight=True)
        try:
            yield instance
        finally:
            await asyncio.shield(self._stop(instance, "the proof is over"))

    async def _launch(self, config: str, layout: ConfigLayout, port: int, preflight: bool) -> Instance:
        number = self._launches[config] = self._launches.get(config, 0) + 1
        spec = build_launch(
            self._profile,
            self._configs[config],
            self._engine,
            instance=f"{config}-{number}",
            port=port,
            layout=layout,
            launch=number,
            preflight=preflight,
        )
        write_launch(spec, layout)
        if not layout.env_txt.exists():
            write_atomic(layout.env_txt, (await asyncio.to_thread(capture, self._engine)).encode())

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
            await instance.wait_ready(self._profile.launch.ready_timeout_s)
        except BaseException as error:
            # Cancelled or failed: either way nothing of it may stay behind.
            await asyncio.shield(instance.stop(self._profile.launch.stop_grace_s, 0.0))
            failed = isinstance(error, LaunchError)
            self._record(instance, InstanceState.FAILED if failed else InstanceState.GONE, str(error))
            raise
        self._record(instance, InstanceState.READY, "")
        return instance

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

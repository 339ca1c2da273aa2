"""The campaign's one engine at a time: launched when a cell needs it, shared by those that follow, then released."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from launch.command import count_ports_needed
from launch.errors import LaunchError
from launch.instance import Instance
from launch.ports import free_port
from launch.profile import Profile
from results.records.layout import ConfigLayout
from runners.campaign.engine_launcher import Launcher, retry_start


class EngineSlot:
    """Holds at most one live instance.

    The key says which cells may share an instance: cells of one config in one stage do.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._key: tuple[str, str] | None = None
        self._instance: Instance | None = None
        self._failures: dict[tuple[str, str], LaunchError] = {}

    async def get(
        self, config: str, purpose: str, *, preflight: bool = False, profile: Profile | None = None
    ) -> Instance:
        """A ready instance of the config: the current one if it is alive and of this purpose, else a fresh one.

        One launched for pre-flight has what its proofs need, and perhaps a `profile` of its own: no measurement may
        have that purpose. Raises LaunchError. A config that failed to start LAUNCH_TRIES times in a row for a purpose
        is not tried again.
        """
        key = (config, purpose)
        if self._instance is not None and self._key == key and await self._instance.find_death() is None:
            return self._instance
        await self.release("another engine is needed" if self._key != key else "the engine died")
        if key in self._failures:
            raise self._failures[key]
        layout, port = self._launcher.find_config_layout(config), self._launcher.profile.launch.port_base
        launch = partial(self._launcher.launch, config, layout, port, preflight=preflight, profile=profile)
        try:
            self._instance = await retry_start(launch)
        except LaunchError as error:
            self._failures[key] = error
            raise
        self._key = key
        return self._instance

    async def release(self, reason: str) -> None:
        """Stop the instance, if there is one, and wait until all of it is gone."""
        instance, self._instance, self._key = self._instance, None, None
        if instance is not None:
            await self._launcher.stop(instance, reason)

    async def release_dead(self) -> None:
        """Release the instance if it has died, so that the journal has its death."""
        if self._instance is not None and await self._instance.find_death() is not None:
            await self.release("the engine died")

    @asynccontextmanager
    async def counterpart(
        self, config: str, folder: Path, extra_env: Mapping[str, str] | None = None, profile: Profile | None = None
    ) -> AsyncIterator[Instance]:
        """A second instance of the config, launched for pre-flight, with its files in `folder`. Raises LaunchError."""
        launcher = self._launcher
        needed = count_ports_needed(launcher.configs[config])
        port = await asyncio.to_thread(free_port, launcher.profile.launch.port_base + needed, needed)
        instance = await launcher.launch(
            config, ConfigLayout(folder), port, preflight=True, extra_env=extra_env, profile=profile
        )
        try:
            yield instance
        finally:
            await asyncio.shield(launcher.stop(instance, "the proof is over"))

"""Launchers of a run's engines before a backend that a test chooses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from launch.command import LaunchSpec
from launch.environment import Engine
from launch.instance import Instance
from launch.local import LocalBackend, OnStarted
from launch.profile import load_config, load_profile
from results.records.layout import RunLayout
from runners.campaign.engine_launcher import Launcher
from state.store import RunStore
from tests.launch.engines import ENGINE
from tests.ports import own_port

DATE = "20990101"


class Programs(LocalBackend):
    """Starts a small program instead of vLLM."""

    def __init__(self, code: str, *arguments: str) -> None:
        super().__init__(ENGINE)
        self._code, self._arguments = code, arguments

    async def start(self, spec: LaunchSpec, on_started: OnStarted) -> Instance:
        argv = (sys.executable, "-c", self._code, *(self._arguments or spec.argv[3:]))
        return await super().start(replace(spec, argv=argv, method="spawn", model_folder=None), on_started)


def make_launcher(folder: Path, backend: LocalBackend, store: RunStore) -> Launcher:
    """Of the run in this folder, which has the config `plain`."""
    layout, profile = RunLayout(folder), load_profile("cpu-tiny")
    launch = msgspec.structs.replace(profile.launch, port_base=own_port(24_000, 2))
    env = layout.config(DATE, "plain").env_txt  # captured once per config: here already
    env.parent.mkdir(parents=True, exist_ok=True)
    env.write_text("as captured before\n")
    return Launcher(
        backend=backend,
        profile=msgspec.structs.replace(profile, launch=launch),
        configs={"plain": load_config("plain")},
        engine=Engine("cpu", Path(sys.executable), folder, folder, {}),
        layout=layout,
        date=DATE,
        store=store,
    )

"""Launches whose program is one of the small ones of this folder, started by the real backend."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from launch.command import LaunchSpec, build_launch
from launch.environment import Engine
from launch.instance import Instance
from launch.local import LocalBackend
from launch.profile import Profile, load_config, load_profile
from results.records.layout import ConfigLayout
from state.process_identity import ProcessIdentity
from tests.launch.programs import SERVER
from tests.ports import own_port

PROFILE: Profile = load_profile("cpu-tiny")
ENGINE = Engine(
    kind="cpu", python=Path(sys.executable), root=Path(sys.prefix), site_packages=Path(sys.prefix), versions={}
)  # fmt: skip


def program(folder: Path, code: str = SERVER, config: str = "plain", *arguments: str) -> LaunchSpec:
    """A launch of `code`, with the arguments vLLM would get unless others are given."""
    spec = build_launch(
        PROFILE, load_config(config), ENGINE,
        instance=f"{config}-1", port=own_port(21_000, 2), layout=ConfigLayout(folder), launch=1,
    )  # fmt: skip
    argv = (sys.executable, "-c", code, *(arguments or spec.argv[3:]))
    return replace(spec, argv=argv, method="spawn", model_folder=None)


def ignore_start(process: ProcessIdentity, started_by: str) -> None:
    """For tests that need no record."""


@asynccontextmanager
async def started(spec: LaunchSpec) -> AsyncIterator[Instance]:
    """The launch, running; ended afterwards."""
    async with LocalBackend(ENGINE) as backend:
        yield await backend.start(spec, ignore_start)


def pid_with_model(log: str) -> int:
    """The process of an engine that runs the model."""
    (pid,) = set(re.findall(r"pid=(\d+)\).*Starting to load model", log))
    return int(pid)

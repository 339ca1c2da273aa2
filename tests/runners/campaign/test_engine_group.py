"""A group of engines: all of them or none, each with ports and files of its own, and none left when the cell ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from launch.errors import LaunchError
from launch.profile import load_config, load_profile
from results.records.decisions import Role
from results.records.layout import ConfigLayout
from runners.campaign.engine_group import GroupPlan, engine_group
from runners.campaign.engine_launcher import LAUNCH_TRIES, Launcher

PROFILE = load_profile("cpu-tiny")


class Fleet:
    """A launcher whose engines are names; those in `broken` do not start this many times."""

    def __init__(self, broken: dict[str, int] | None = None, kind: str = "cpu") -> None:
        self.profile = msgspec.structs.replace(PROFILE, engine=msgspec.structs.replace(PROFILE.engine, kind=kind))
        self.configs = {"plain": load_config("plain")}
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self._broken = broken or {}

    async def launch(
        self,
        config: str,
        layout: ConfigLayout,
        port: int,
        *,
        transfer_log: bool,
        prefix: str,
        extra_args: Sequence[str],
        extra_env: dict[str, str],
    ) -> SimpleNamespace:
        await asyncio.sleep(0)
        if self._broken.get(prefix, 0) > 0:
            self._broken[prefix] -= 1
            raise LaunchError(f"{prefix} would not start", remedy="read the log")
        known = {"name": prefix, "port": port, "args": extra_args, "env": extra_env, "at": layout.root}
        self.started.append(known | {"transfer_log": transfer_log})
        return SimpleNamespace(name=prefix)

    async def stop(self, engine: SimpleNamespace, reason: str) -> None:
        await asyncio.sleep(0)
        self.stopped.append(engine.name)


def plan(folder: Path, count: int = 3, **changed: Any) -> GroupPlan:
    settings: dict[str, Any] = {"ports": 1, "events": False, "gpus": 0} | changed
    role: Role = "both"
    return GroupPlan(("plain",) * count, (role,) * count, folder, **settings)


async def test_every_engine_has_its_own_ports_and_files_and_all_are_stopped(tmp_path: Path) -> None:
    fleet = Fleet()
    async with engine_group(cast(Launcher, fleet), plan(tmp_path, ports=3, events=True)) as members:
        assert [member.name for member in members] == ["e0", "e1", "e2"]
        assert not fleet.stopped
    assert sorted(fleet.stopped) == ["e0", "e1", "e2"]
    ports = {each["port"] for each in fleet.started}
    assert ports == {PROFILE.launch.port_base + 3 * place for place in range(3)}
    assert {each["at"] for each in fleet.started} == {tmp_path / f"e{place}" for place in range(3)}
    endpoints = [json.loads(each["args"][1])["endpoint"] for each in fleet.started]
    assert len(set(endpoints)) == 3
    assert all(endpoint.startswith("tcp://127.0.0.1:") for endpoint in endpoints)
    assert {member.events.endpoint for member in members if member.events} == set(endpoints)


async def test_engines_that_only_decode_have_arguments_of_their_own(tmp_path: Path) -> None:
    fleet = Fleet()
    pools = GroupPlan(("plain",) * 3, ("prefill", "decode", "both"), tmp_path, 3, True, 0, decode_args=("--one", "1"))
    async with engine_group(cast(Launcher, fleet), pools):
        pass
    args = {each["name"]: each["args"] for each in fleet.started}
    assert args["e1"][-2:] == ("--one", "1")
    assert args["e1"][0] == "--kv-events-config"
    assert not {"--one"} & {*args["e0"], *args["e2"]}


async def test_one_engine_that_does_not_start_ends_the_others_and_all_are_tried_again(tmp_path: Path) -> None:
    fleet = Fleet({"e1": 1})
    async with engine_group(cast(Launcher, fleet), plan(tmp_path)) as members:
        assert len(members) == 3
    assert len(fleet.started) == len(fleet.stopped)


async def test_a_group_that_never_starts_is_an_error_and_leaves_none(tmp_path: Path) -> None:
    fleet = Fleet({"e1": LAUNCH_TRIES})
    with pytest.raises(LaunchError, match="e1 would not start"):
        async with engine_group(cast(Launcher, fleet), plan(tmp_path)):
            raise AssertionError("it has no engines")
    assert sorted(each["name"] for each in fleet.started) == sorted(fleet.stopped)


async def test_a_cell_that_is_cut_leaves_no_engine(tmp_path: Path) -> None:
    fleet = Fleet()

    async def cell() -> None:
        async with engine_group(cast(Launcher, fleet), plan(tmp_path)):
            await asyncio.sleep(60)

    running = asyncio.create_task(cell())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(fleet.started) == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(fleet.stopped) == ["e0", "e1", "e2"]


@pytest.mark.parametrize(("gpus", "seen"), [(0, ["0", "1", "2"]), (2, ["0", "1", "0"])])
async def test_gpus_are_given_out_in_turn(tmp_path: Path, gpus: int, seen: list[str]) -> None:
    fleet = Fleet(kind="cuda")
    async with engine_group(cast(Launcher, fleet), plan(tmp_path, gpus=gpus)):
        pass
    devices = {each["name"]: each["env"]["CUDA_VISIBLE_DEVICES"] for each in fleet.started}
    assert [devices[f"e{place}"] for place in range(3)] == seen


async def test_every_engine_writes_the_transfer_log_where_the_plan_says_so(tmp_path: Path) -> None:
    for wanted in (False, True):
        fleet = Fleet()
        async with engine_group(cast(Launcher, fleet), plan(tmp_path, transfer_log=wanted)):
            pass
        assert [each["transfer_log"] for each in fleet.started] == [wanted] * 3

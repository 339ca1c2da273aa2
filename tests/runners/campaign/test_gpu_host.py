"""Engines of a CUDA profile on a host whose GPUs are made up: what is launched, with what, and when the next begins."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from launch.command import LaunchSpec
from launch.environment import Engine
from launch.instance import Instance
from launch.local import LocalBackend, OnStarted
from launch.profile import Profile, load_config, load_profile
from results.records.decisions import Role
from results.records.events import InstanceChanged
from results.records.launches import LaunchRecord
from results.records.layout import ConfigLayout, RunLayout
from runners.campaign.engine_group import GroupPlan, engine_group
from runners.campaign.engine_launcher import Launcher
from state.store import RunStore
from tests.fake_gpus import FakeGpu, make_host
from tests.launch.programs import SERVER
from tests.ports import own_port
from tests.runners.campaign.scripted import scripted_plan

ENGINES = 3


class Programs(LocalBackend):
    """Starts a small server instead of vLLM, after everything else that a launch prepares."""

    async def start(self, spec: LaunchSpec, on_started: OnStarted) -> Instance:
        return await super().start(replace(spec, argv=(sys.executable, "-c", SERVER, *spec.argv[3:])), on_started)


def make_profile() -> Profile:
    profile = load_profile("h200-qwen3-0.6b-dummy")
    launch = msgspec.structs.replace(profile.launch, port_base=own_port(23_000, 2 * ENGINES), release_wait_s=0.01)
    return msgspec.structs.replace(profile, launch=launch)


async def test_engines_share_a_gpu_start_in_turn_and_find_their_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=100 << 20), FakeGpu(used=100 << 20))
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    profile, layout = make_profile(), RunLayout(tmp_path / "run")
    engine = Engine("cuda", Path(sys.executable), tmp_path, tmp_path, {})
    store = RunStore.create(tmp_path / "state", "run", scripted_plan(), "test")
    async with Programs(profile, engine) as backend:
        launcher = Launcher(
            backend=backend, profile=profile, configs={"mooncake_both": load_config("mooncake_both")}, engine=engine,
            layout=layout, date="20990101", store=store,
        )  # fmt: skip
        role: Role = "both"
        plan = GroupPlan("mooncake_both", (role,) * ENGINES, tmp_path / "group", ports=2, events=False, gpus=1)
        async with engine_group(launcher, plan) as members:
            engines = [member.engine for member in members]
            specs = [one.spec for one in engines]
            assert all(member.engine.alive() for member in members)
    assert [spec.env["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["1"] * ENGINES, "of those that the user named"
    for spec in specs:
        assert json.loads((Path(spec.argv[spec.argv.index("--model") + 1]) / "config.json").read_text())["hidden_size"]
        assert spec.method == "spawn"
        assert not {"TORCHDYNAMO_DISABLE", "TRACON_CPU_CONNECTORS"} & spec.env.keys(), "a CPU engine's alone"
    changes = [one.event for one in store.events() if isinstance(one.event, InstanceChanged)]
    order = [(change.instance, str(change.state)) for change in changes]
    ready = [place for place, (_, state) in enumerate(order) if state == "ready"]
    begun = [place for place, (_, state) in enumerate(order) if state == "starting"]
    assert len(ready) == len(begun) == ENGINES
    assert all(ready[number] < begun[number + 1] for number in range(ENGINES - 1)), (
        "each takes its part of what is free"
    )
    released = [(await one.stop(0.0, 0.0)).release for one in engines]
    assert all("GPU memory in use 100 MiB" in text for text in released), "of the GPU they were on"
    rows = (ConfigLayout(tmp_path / "group" / "e0").launches).read_bytes().splitlines()
    assert msgspec.json.decode(rows[0], type=LaunchRecord).started_by == "spawn/default"

"""Engines of a CUDA profile on a host whose GPUs are fake: what is launched, with what, and when the next begins."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from console.feed import Picture
from console.glyphs import UNICODE
from console.widgets.header import make_header_lines
from launch.command import LaunchSpec
from launch.environment import Engine
from launch.instance import Instance
from launch.local import LocalBackend, OnStarted
from launch.profile import Profile, load_config, load_profile
from results.records.decisions import Role
from results.records.events import GpusSampled, InstanceChanged, InstanceState
from results.records.gpu import read_gpu_log
from results.records.launches import LaunchRecord
from results.records.layout import ConfigLayout, RunLayout
from results.records.plan import CellPlan
from runners.campaign.cell_loop import CellLoop
from runners.campaign.engine_group import GroupPlan, engine_group
from runners.campaign.engine_launcher import Launcher
from runners.campaign.experiment import CellOutcome
from state import lease as leases
from state.status import to_json
from state.store import RunStore
from tests.fake_gpus import FakeGpu, FakeHost, make_host
from tests.launch.programs import SERVER
from tests.ports import own_port
from tests.runners.campaign.scripted import Scripted, scripted_plan

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
    async with Programs(engine) as backend:
        launcher = Launcher(
            backend=backend, profile=profile, configs={"mooncake_both": load_config("mooncake_both")}, engine=engine,
            layout=layout, date="20990101", store=store,
        )  # fmt: skip
        role: Role = "both"
        configs, roles = ("mooncake_both",) * ENGINES, (role,) * ENGINES
        plan = GroupPlan(configs, roles, tmp_path / "group", ports=2, events=False, gpus=1)
        async with engine_group(launcher, plan) as members:
            engines = [member.engine for member in members]
            specs = [one.spec for one in engines]
            assert all(member.engine.alive() for member in members)
            held = [list(one.held_mib.items()) for one in engines]
    assert held == [[(FakeHost.uuid(1), mib)] for mib in (100, 0, 0)], "what the first holds is none of the others'"
    assert [spec.env["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["1"] * ENGINES, "of those that the user named"
    for spec in specs:
        assert json.loads((Path(spec.argv[spec.argv.index("--model") + 1]) / "config.json").read_text())["hidden_size"]
        assert spec.method == "spawn"
        assert not {"TORCHDYNAMO_DISABLE", "TRACON_CPU_CONNECTORS"} & spec.env.keys(), "a CPU engine's alone"
    changes = [one.event for one in store.events() if isinstance(one.event, InstanceChanged)]
    assert {change.devices for change in changes if change.state == "starting"} == {("1",)}
    order = [(change.instance, str(change.state)) for change in changes]
    ready = [place for place, (_, state) in enumerate(order) if state == "ready"]
    begun = [place for place, (_, state) in enumerate(order) if state == "starting"]
    assert len(ready) == len(begun) == ENGINES
    assert all(ready[number] < begun[number + 1] for number in range(ENGINES - 1)), (
        "each takes its part of what is free"
    )
    released = [await engine.stop(0.0, 0.0) for engine in engines]
    assert all("GPU memory in use 100 MiB" in text for text in released), "of the GPU they were on"
    rows = (ConfigLayout(tmp_path / "group" / "e0").launches).read_bytes().splitlines()
    assert msgspec.json.decode(rows[0], type=LaunchRecord).started_by == "spawn/default"


class Sampled(Scripted):
    """Each cell has an engine on GPU 3 and lasts until the GPUs were sampled with it."""

    def __init__(self, folder: Path, store: RunStore) -> None:
        super().__init__(folder)
        self._store = store

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        self._store.append(InstanceChanged("plain-1", "plain", InstanceState.STARTING, devices=("3",)))
        while not any(isinstance(one.event, GpusSampled) for one in self._store.events()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self._store.append(InstanceChanged("plain-1", "plain", InstanceState.GONE))
        return await super().run_cell(cell, attempt)


async def test_journal_status_and_console_have_the_gpus_of_the_engines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, *(FakeGpu(milliwatts=100_000 * (1 + gpu)) for gpu in range(4)))
    folder = tmp_path / "run"
    RunStore.create(folder, "run", scripted_plan(stages=1, cells=1), "test").close()
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        await asyncio.wait_for(CellLoop(store, lease, folder, Sampled(folder, store)).run(), 30)
        view = store.view()
        sent = [sample for one in store.events() if isinstance(one.event, GpusSampled) for sample in one.event.samples]
    assert {(sample.gpu, sample.engines) for sample in sent} == {(3, 1)}
    assert [(gpu["gpu"], gpu["power_w"]) for gpu in to_json(view, time.time())["gpus"]] == [(3, 400.0)]
    assert view.gpus_unix_s is not None
    _, second, _ = make_header_lines(Picture(view, loading=False), (), UNICODE, 198, view.gpus_unix_s)
    line = "".join(text for text, _ in second)
    assert "GPU 3 97 % 1755 MHz 400 W" in line
    assert line.count("GPU") == 1
    assert {sample.gpu for sample in read_gpu_log(RunLayout(folder).gpu_csv).samples} == {0, 1, 2, 3}

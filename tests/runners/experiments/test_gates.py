"""The pre-flight of a config whose proof needs a second engine, by the GPUs of the host."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launch.errors import LaunchError
from launch.ports import PortTaken
from launch.preflight import GateResult
from launch.processes import ProcessesUnseen
from launch.profile import Profile, load_config, load_profile
from results.records.events import CellState
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from results.records.run_folder import read_preflight_decisions
from runners.campaign.context import RunContext
from runners.errors import CellSkipped
from runners.experiments import gates
from state.model import CellView, RunView
from tests.fake_gpus import FakeGpu, make_host

CELL = CellPlan("preflight/nixl_both", "preflight", "preflight", "nixl_both", "nixl_both", {}, 1.0)
LATER = CellPlan("phase-a/nixl_both/r4", "phase-a", "load", "nixl_both", "4 req/s", {}, 1.0)
H100 = FakeGpu("NVIDIA H100 80GB HBM3", used=0, total=81559 << 20)
H200 = FakeGpu(used=0, total=143771 << 20)


class Slot:
    """Records with what profile and devices each engine is launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[Profile, dict[str, str]]] = []

    async def get(self, config: str, purpose: str, *, preflight: bool, profile: Profile) -> None:
        self.launches.append((profile, {}))

    @asynccontextmanager
    async def counterpart(self, config: str, folder: Path, extra_env: dict[str, str], profile: Profile) -> Any:  # noqa: ANN401
        self.launches.append((profile, extra_env))
        yield

    async def release(self, reason: str) -> None:
        pass


async def launch_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, config: str = "nixl_both") -> Slot:
    async def verify(instance: object, config: object, profile: object, log: Path, counterpart: Any) -> GateResult:  # noqa: ANN401
        async with counterpart():
            return GateResult(str(config), True, (), "")

    monkeypatch.setattr(gates, "verify", verify)
    slot = Slot()
    context = SimpleNamespace(
        layout=RunLayout(tmp_path / "run"),
        slot=slot,
        profile=load_profile(profile),
        configs={config: load_config(config)},
    )
    cell = CellPlan(f"preflight/{config}", "preflight", "preflight", config, config, {}, 1.0)
    await gates.verify_config(cell, 1, cast(RunContext, context))
    return slot


@pytest.mark.parametrize("profile", ["h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy"])
async def test_on_one_gpu_both_engines_of_a_proof_share_its_memory(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, H200)
    slot = await launch_both(tmp_path, monkeypatch, profile)
    assert [one.engine.gpu_memory_utilization for one, _ in slot.launches] == [0.46, 0.46]
    assert [devices for _, devices in slot.launches] == [{}, {}]
    assert all("--max-num-seqs" in one.engine.extra_args for one, _ in slot.launches)


async def test_on_two_gpus_each_engine_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, H200, H200)
    slot = await launch_both(tmp_path, monkeypatch, "h200-qwen3-coder-30b-dummy")
    assert [one.engine.gpu_memory_utilization for one, _ in slot.launches] == [0.9, 0.9]
    assert [devices for _, devices in slot.launches] == [{}, {"CUDA_VISIBLE_DEVICES": "1"}]


async def test_a_config_whose_proof_needs_one_engine_is_proven_with_the_measured_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, H200)
    slot = await launch_both(tmp_path, monkeypatch, "h200-qwen3-coder-30b-dummy", "mooncake_both")
    assert slot.launches[0][0].engine.gpu_memory_utilization == 0.9


async def test_a_gpu_without_room_for_two_skips_the_config_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, H100)
    with pytest.raises(CellSkipped, match=r"not possible on this host: .* would have 36\.6"):
        await launch_both(tmp_path, monkeypatch, "h200-qwen3-coder-30b-dummy")
    decision = read_preflight_decisions(tmp_path / "run")[0]["nixl_both"]
    assert not decision.included
    gate = CellView(CELL.cell, CELL, CellState.SKIPPED, 1, reason=decision.reason)
    view = cast(RunView, SimpleNamespace(cells={CELL.cell: gate}))
    assert gates.explain_gated(LATER, view) == decision.reason


async def test_a_second_gpu_that_others_hold_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = FakeGpu(used=60 << 30, total=143771 << 20)
    make_host(tmp_path, monkeypatch, H200, held, H200)
    slot = await launch_both(tmp_path, monkeypatch, "h200-qwen3-coder-30b-dummy")
    assert [devices for _, devices in slot.launches] == [{}, {"CUDA_VISIBLE_DEVICES": "2"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    slot = await launch_both(tmp_path / "again", monkeypatch, "h200-qwen3-coder-30b-dummy")
    assert [one.engine.gpu_memory_utilization for one, _ in slot.launches] == [0.46, 0.46], "they share the first"
    assert [devices for _, devices in slot.launches] == [{}, {}]


@pytest.mark.parametrize("why", [PortTaken("port 1 is taken by pid 2"), ProcessesUnseen("too many open files")])
async def test_what_every_config_would_meet_decides_nothing_about_this_one(tmp_path: Path, why: LaunchError) -> None:
    class Occupied(Slot):
        async def get(self, config: str, purpose: str, *, preflight: bool, profile: Profile) -> None:
            raise why

    slot, profile, config = Occupied(), load_profile("cpu-tiny"), load_config("plain")
    context = SimpleNamespace(layout=RunLayout(tmp_path / "run"), slot=slot, profile=profile, configs={"plain": config})
    cell = CellPlan("preflight/plain", "preflight", "preflight", "plain", "plain", {}, 1.0)
    with pytest.raises(type(why)):
        await gates.verify_config(cell, 1, cast(RunContext, context))
    assert read_preflight_decisions(tmp_path / "run")[0] == {}

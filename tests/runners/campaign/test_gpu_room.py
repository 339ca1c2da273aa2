"""What is refused, and what is proposed, where an engine of a run fits into no GPU of the host by the estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.gpu_devices import VISIBLE
from launch.profile import load_profile
from runners.campaign.experiment import RunOptions
from runners.campaign.gpus import require_gpu_room
from runners.errors import RunnerError
from runners.experiments.registry import select_experiment
from tests.fake_gpus import FakeGpu, make_host

CODER, SMALL = "h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy"
MIB = 1 << 20
H200, H20, H100, A100 = 143_771 * MIB, 97_871 * MIB, 81_559 * MIB, 40_960 * MIB
"""All of a GPU's memory, as nvidia-smi states it."""


def require(experiment: str, preset: str, profile: str = CODER, *, simulated: bool = False) -> None:
    asked = RunOptions(experiment=experiment, profile=profile, preset=preset, simulated=simulated)
    entry = select_experiment(experiment)
    require_gpu_room(entry, asked, entry.draft_plan(asked, load_profile(profile)))


def refusal(experiment: str, preset: str, profile: str = CODER) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        require(experiment, preset, profile)
    assert caught.value.exit_code == 2
    assert caught.value.remedy.endswith("start it anyway: --accept-small-gpus")
    return caught.value


@pytest.fixture
def two_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, *(FakeGpu(used=0, total=H100) for _ in range(2)))


@pytest.mark.usefixtures("two_h100")
def test_a_preset_that_fits_is_named() -> None:
    error = refusal("routing", "gpu-demo")
    assert str(error) == (
        "an engine of routing, preset gpu-demo, fits into none of the GPUs that it may take (0, 1), by an estimate: it "
        "needs about 63.4 GiB, and 46 % of the GPU's memory are 36.6 GiB"
    )
    assert error.remedy.startswith("use a preset that fits: --preset two-gpus; or ")
    require("routing", "two-gpus")


@pytest.mark.usefixtures("two_h100")
def test_a_preset_that_needs_more_gpus_than_are_visible_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "1")
    error = refusal("routing", "gpu-demo")
    assert "may take (1)" in str(error)
    assert "two-gpus" not in error.remedy


@pytest.mark.usefixtures("two_h100")
def test_where_no_preset_fits_the_doctors_command_and_a_smaller_model_are_named() -> None:
    remedy = refusal("connector-tax", "gpu-demo").remedy
    assert f'`tracon doctor --profile {CODER} --only "GPU memory"`' in remedy
    assert f"--profile {SMALL}" in remedy
    assert "--preset" not in remedy


def test_the_doctor_is_not_named_where_it_finds_nothing_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=0, total=H20))
    remedy = refusal("routing", "gpu-demo").remedy
    assert "tracon doctor" not in remedy
    assert f"--profile {SMALL}" in remedy


def test_of_the_small_model_fewer_engines_on_a_gpu_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=0, total=A100))
    remedy = refusal("routing", "eight", SMALL).remedy
    assert "--preset two" in remedy
    assert not {"--preset eight", "--preset four", "--preset two-gpus"} & {*remedy.replace(";", ",").split(", ")}
    assert "--profile" not in remedy


def test_one_gpu_with_room_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=0, total=H100), FakeGpu(used=0, total=H200))
    require("connector-tax", "gpu-demo")
    monkeypatch.setenv(VISIBLE, "0")
    refusal("connector-tax", "gpu-demo")


def test_nothing_is_refused_where_no_memory_is_known_or_engines_are_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=0, total=A100))
    refusal("routing", "gpu-demo")
    require("routing", "gpu-demo", simulated=True)
    (host.folder / "nvidia-smi").unlink()
    require("routing", "gpu-demo")

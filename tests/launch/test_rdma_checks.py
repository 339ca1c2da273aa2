"""What the doctor reports of RDMA adapters, all of them fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import rdma_checks
from launch.doctor import examine
from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.profile import Profile, load_profile
from launch.rdma_checks import check_rdma
from tests.fake_gpus import FakeGpu, FakeHost, make_host

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
NAMES = ("WITH_NVIDIA_PEERMEM", "MC_FORCE_TCP")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """Without an adapter and without nvidia_peermem."""
    return make_host(tmp_path, monkeypatch, FakeGpu(used=0), rdma=())


def row_of(host: FakeHost, **environ: str) -> Row:
    return check_rdma(host.folder / "infiniband", environ)


def test_an_adapter_that_reaches_no_gpu_memory_is_missing_with_every_way_out(host: FakeHost) -> None:
    assert row_of(host).state == WARN
    host.add_adapter("mlx5_0", DOWN)
    row = row_of(host)
    assert (row.state, row.detail) == (WARN, "mlx5_0 (DOWN): no port is active")
    host.add_adapter("mlx5_1", ACTIVE)
    row = row_of(host)
    assert row.state == MISSING
    assert "nvidia_peermem is not loaded: Mooncake registers" in row.detail
    for remedy in ("modprobe nvidia_peermem", "WITH_NVIDIA_PEERMEM=0", "MC_FORCE_TCP=1", "make gpu GPU_CONFIGS="):
        assert remedy in row.remedy
    rdma_checks.PEER_MEMORY.mkdir()
    assert row_of(host) == Row("RDMA", OK, "mlx5_0 (DOWN), mlx5_1 (ACTIVE); nvidia_peermem is loaded")


def test_an_adapter_that_no_engine_can_open_is_none(host: FakeHost) -> None:
    """As in a container that sees the host's /sys and got no device."""
    host.add_adapter("mlx5_0", ACTIVE)
    (rdma_checks.DEVICE_NODES / "uverbs0").unlink()
    row = row_of(host)
    assert row.state == WARN
    assert "can be opened: transfers fall back to TCP" in row.detail
    assert f"pass {rdma_checks.DEVICE_NODES} through" in row.remedy
    host.add_adapter("mlx5_1", DOWN)
    assert row_of(host).detail == "mlx5_0 (ACTIVE), mlx5_1 (DOWN): no port is active", "the active one has no node"


def test_a_node_of_another_user_is_none(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.add_adapter("mlx5_0", ACTIVE)
    asked = []

    def refuse(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr("os.access", refuse)
    assert row_of(host).state == WARN
    assert asked == [(rdma_checks.DEVICE_NODES / "uverbs0", 6)]


def test_the_node_is_also_found_by_the_adapters_own_folder(host: FakeHost) -> None:
    host.add_adapter("mlx5_0", ACTIVE)
    (host.folder / "infiniband_verbs").rename(host.folder / "elsewhere")
    assert row_of(host).state == WARN
    (host.folder / "infiniband" / "mlx5_0" / "device" / "infiniband_verbs" / "uverbs0").mkdir(parents=True)
    assert row_of(host).state == MISSING


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("WITH_NVIDIA_PEERMEM", "0", WARN),
        ("WITH_NVIDIA_PEERMEM", "false", WARN),
        ("WITH_NVIDIA_PEERMEM", "1", MISSING),
        ("MC_FORCE_TCP", "1", WARN),
        ("MC_FORCE_TCP", "0", WARN),  # Mooncake looks only whether it is set
    ],
)
def test_settings_of_mooncake_that_need_no_peer_memory_are_a_warning(
    name: str, value: str, state: str, host: FakeHost
) -> None:
    host.add_adapter("mlx5_0", ACTIVE)
    row = row_of(host, **{name: value})
    assert row.state == state
    assert name in row.detail + row.remedy


@pytest.mark.parametrize("name", NAMES)
def test_they_count_in_the_environment_and_in_the_profile(
    name: str, host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.add_adapter("mlx5_0", ACTIVE)

    def find_state(profile: Profile) -> str:
        rows = examine(profile, {}, before_install=True).rows
        return {row.what: row for row in rows}["RDMA"].state

    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    profile = load_profile("h200-qwen3-0.6b-dummy")
    assert find_state(profile) == MISSING
    monkeypatch.setenv(name, "0")
    assert find_state(profile) == WARN
    monkeypatch.delenv(name)
    path = tmp_path / "mine.toml"
    text = Path(rdma_checks.__file__).with_name("profiles").joinpath("h200-qwen3-0.6b-dummy.toml").read_text()
    path.write_text(text.replace('HF_HUB_OFFLINE = "1"', f'HF_HUB_OFFLINE = "1"\n{name} = "0"'))
    assert find_state(load_profile(str(path))) == WARN

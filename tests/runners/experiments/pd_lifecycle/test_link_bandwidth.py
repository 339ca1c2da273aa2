"""What the link between two engines carries: measured, given, or not known and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from launch.profile import load_profile
from launch.tiny_model import MODEL_ID, write_tiny_model
from results.pd_lifecycle.analysis_settings import Settings
from results.records.layout import ConfigLayout, write_indented_json
from results.records.link import LinkRecord
from runners.experiments.pd_lifecycle import link_bandwidth as pd_lifecycle_link
from runners.experiments.pd_lifecycle.link_bandwidth import find_link, measure_link, read_transport
from tests.runners.experiments.pd_lifecycle.test_cell import grid

CPU, H20 = load_profile("cpu-tiny"), load_profile("h20-qwen3-coder-30b")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    return tmp_path


def test_it_is_measured_with_the_largest_transfer_of_the_grid(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(home / "models" / MODEL_ID)
    sizes: list[int] = []

    def measure(size: int) -> LinkRecord:
        sizes.append(size)
        return measure_link(size)

    monkeypatch.setattr(pd_lifecycle_link, "measure_link", measure)
    link = find_link(grid(new_tokens=(64, 2048)), CPU)
    assert sizes == [2048 * 512]
    assert (link.known_from, link.reason) == ("measured", "")
    assert link.gbps is not None
    assert link.low is not None
    assert link.high is not None
    assert 0 < link.low <= link.gbps <= link.high
    assert str(2048 * 512) in link.method


def test_what_the_preset_gives_is_taken() -> None:
    link = find_link(grid(analysis=Settings(link_gbps=200.0)), H20)
    assert (link.gbps, link.known_from) == (200.0, "given")


def test_what_cannot_be_measured_is_null_with_the_reason(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(size: int) -> LinkRecord:
        raise OSError("no sockets here")

    assert "link_gbps" in find_link(grid(), H20).reason
    other = msgspec.structs.replace(CPU, model=msgspec.structs.replace(CPU.model, source=str(home / "model")))
    assert "model does not state" in find_link(grid(), other).reason
    write_tiny_model(home / "models" / MODEL_ID)
    monkeypatch.setattr(pd_lifecycle_link, "measure_link", fails)
    link = find_link(grid(), CPU)
    assert (link.gbps, link.known_from) == (None, "")
    assert link.reason == "it could not be measured: OSError: no sockets here"


def test_the_file_says_where_it_is_known_from(tmp_path: Path) -> None:
    write_indented_json(tmp_path / "link.json", LinkRecord(2.0, 1.0, 3.0, "by hand", "measured"))
    content = msgspec.json.decode((tmp_path / "link.json").read_bytes())
    assert content == {
        "gbps": 2.0, "low": 1.0, "high": 3.0, "method": "by hand", "from": "measured", "reason": "", "transport": [],
    }  # fmt: skip


def test_the_transport_is_what_mooncake_logged(tmp_path: Path) -> None:
    layout = ConfigLayout(tmp_path)
    assert read_transport(layout) == ()
    layout.stdout.write_text(
        "(EngineCore pid=1) INFO 11-23 03:10:23 [mooncake_connector.py:1208] The Mooncake Transfer Engine is using "
        "rdma as its protocol.\n(EngineCore pid=1) INFO [api.py:2] ready\n"
    )
    layout.stderr.write_text(
        "I1123 03:10:23.5 20256 transfer_engine_impl.cpp:274] Topology discovery complete. Found 0 HCAs.\n"
        "I1123 03:10:23.5 20256 transfer_engine_impl.cpp:290] Using TCP transport (no HCA detected)\n"
        "I1123 03:10:23.5 20256 tcp_transport.cpp:391] TcpTransport: listen on port 15028\n"
        "I1123 03:10:24.5 20256 tcp_transport.cpp:391] TcpTransport: listen on port 15029\n"
    )
    assert read_transport(layout) == (
        "The Mooncake Transfer Engine is using rdma as its protocol", "Topology discovery complete. Found 0 HCAs",
        "Using TCP transport (no HCA detected)", "TcpTransport: listen",
    )  # fmt: skip

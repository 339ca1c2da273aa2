"""`tracon run` with CUDA profiles on a host with made-up GPUs: real engines under asynchronous scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from results.records.launches import LaunchRecord
from results.records.layout import RunLayout
from tests.e2e.cli import data, tracon
from tests.e2e.gpu_runs import arguments, gpu_host, write_config
from tests.e2e.test_routing import came_from_elsewhere, transfers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

RUN_S = 800.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with gpu_host(tmp_path_factory.mktemp("gpus")) as profile:
        yield profile


def launches(folder: Path) -> list[LaunchRecord]:
    files = sorted(folder.glob("**/launches.jsonl"))
    return [msgspec.json.decode(line, type=LaunchRecord) for file in files for line in file.open("rb")]


@pytest.mark.long
def test_engines_share_a_gpu_and_sessions_migrate_between_them(host: Path, tmp_path: Path) -> None:
    config = write_config(host.parent, "mooncake_both")
    done = tracon(*arguments("routing", host, config), "--json", workspace=tmp_path, timeout_s=RUN_S)
    assert done.returncode == 0, done.stderr[-4000:]
    run = Path(data(done)["folder"])
    pair = [launch for launch in launches(run) if launch.instance.startswith("e")]
    assert {launch.instance.partition("-")[0] for launch in pair} == {"e0", "e1"}
    for launch in pair:
        options = dict(pairwise(launch.argv))
        assert (options["--load-format"], options["--gpu-memory-utilization"]) == ("dummy", "0.45")
        assert launch.env["CUDA_VISIBLE_DEVICES"] == "0"
        assert launch.started_by == "spawn/default"
        assert not {"TORCHDYNAMO_DISABLE", "TRACON_CPU_CONNECTORS"} & launch.env.keys(), "a CPU engine's alone"
    assert [move for move in transfers(run, "EAR") if move.status == "transferred"]
    assert came_from_elsewhere(run, "EAR") > 0
    assert "GPU 0 was sampled once a second" in RunLayout(run).report_md.read_text()

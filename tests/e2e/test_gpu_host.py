"""`tracon run` with CUDA profiles on a host with fake GPUs: real engines under asynchronous scheduling."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from results.records.environment import parse_environment
from results.records.events import CellChanged, CellState, GpusSampled, RunState
from results.records.gpu import read_gpu_log
from results.records.host import read_host
from results.records.launches import LaunchRecord
from results.records.layout import LifecycleLayout, RunLayout
from results.records.link import LinkRecord
from results.records.router_spec import HealthRules
from results.records.run_folder import read_preflight_decisions
from runners.experiments.gates import SHARE, SHARED_REQUESTS
from runners.simulator.calibrate import FEWEST_STEPS
from runners.simulator.engine_file import read_engine
from state.store import RunStore
from tests.e2e.cli import data, tracon, view_of, wait_until, wait_until_no_engine, worker_pid
from tests.e2e.gpu_runs import arguments, gpu_host, write_config
from tests.e2e.outbound import Outbound, reached_by_python
from tests.e2e.test_routing import came_from_elsewhere, transfers
from tests.patches.ring_file import decode

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CONFIG, FIRST, SECOND = "plain", "phase-a/plain/r4", "phase-a/plain/r8"
RUN_S = 800.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with gpu_host(tmp_path_factory.mktemp("gpus")) as profile:
        yield profile


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Outbound:
    """On the workspace of `tax`."""
    return Outbound(tmp_path_factory.mktemp("tax"))


@pytest.fixture(scope="module")
def tax(host: Path, watch: Outbound) -> Path:
    """A run whose process was killed with -9 after the first piece that measures, and resumed to its end."""
    with watch:
        return run_tax(host, watch.workspace)


def run_tax(host: Path, workspace: Path) -> Path:
    started = tracon(*arguments("connector-tax", host, CONFIG), "--detach", "--json", workspace=workspace)
    assert started.returncode == 0, started.stderr
    run = Path(data(started)["folder"])
    wait_until(run, lambda view: view.cells[FIRST].state is CellState.DONE, RUN_S)
    pid = worker_pid(run)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until_no_engine(run)
    resumed = tracon("resume", run.name, "--json", workspace=workspace, timeout_s=RUN_S)
    assert resumed.returncode == 0, resumed.stderr[-4000:]
    return run


def launches(folder: Path) -> list[LaunchRecord]:
    files = sorted(folder.glob("**/launches.jsonl"))
    return [msgspec.json.decode(line, type=LaunchRecord) for file in files for line in file.open("rb")]


def test_killed_between_two_pieces_it_measures_every_cell_once(tax: Path) -> None:
    view = view_of(tax)
    assert view.state is RunState.DONE
    assert {cell.state for cell in view.cells.values()} <= {CellState.DONE, CellState.SKIPPED}
    with RunStore.open(tax, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    done = Counter(event.cell for event in events if isinstance(event, CellChanged) and event.state is CellState.DONE)
    assert set(done.values()) == {1}


def test_no_process_of_it_reaches_another_host(host: Path, tax: Path, watch: Outbound) -> None:
    """Installed, an experiment needs no network (docs/gpu.md)."""
    assert watch.failure is None
    assert watch.samples > 100
    engines = {instance.pgid for instance in view_of(tax).instances.values()}
    assert len(engines & watch.pids) > 1, "engines before the kill and after it"
    assert watch.beyond == set()
    assert reached_by_python(host.parent / "host" / "reached") == []


def test_engines_have_the_arguments_and_the_environment_of_the_cuda_profile(tax: Path) -> None:
    for launch in launches(tax):
        options = dict(pairwise(launch.argv))
        assert options["--load-format"] == "dummy"
        assert options["--gpu-memory-utilization"] == "0.9"
        assert launch.started_by == "spawn/default"
        assert not {"TORCHDYNAMO_DISABLE", "TRACON_CPU_CONNECTORS"} & launch.env.keys(), "a CPU engine's alone"


def test_overlapping_steps_are_timed_by_the_probe(tax: Path) -> None:
    layout = RunLayout(tax).config(tax.name[:8], CONFIG)
    rings = [decode(path) for path in layout.root.glob("rings/*/engine_step.engine.*.ring")]
    assert rings
    for ring in rings:
        assert (ring.status["batch_queue"], ring.status["settings"]["async_scheduling"]) == (True, True)
        assert ring.status["step_timing_available"], ring.status["reason"]
    record: dict[str, Any] = msgspec.json.decode(layout.cell("A", "r4").read_bytes())
    assert record["step_timing"]["available"], record["step_timing"]["reason"]
    steps = pd.read_json(layout.engine_step("A", "r4"), lines=True)
    overlapping = steps.t_ns.shift(-1) < steps.t_ns + 1000 * steps.engine_step_us
    assert overlapping.mean() > 0.5, "the next step is scheduled while one runs"


def test_every_gpu_is_sampled_and_cells_report_and_status_have_the_engines_alone(tax: Path) -> None:
    log = read_gpu_log(RunLayout(tax).gpu_csv)
    measured = {cell.plan.cell for cell in view_of(tax).cells.values() if cell.state is CellState.DONE}
    sampled = {sample.cell for sample in log.samples}
    assert {FIRST, SECOND} <= sampled <= measured
    assert {sample.gpu for sample in log.samples} == {0, 1}
    layout = RunLayout(tax).config(tax.name[:8], CONFIG)
    used = msgspec.json.decode(layout.cell("A", "r8").read_bytes())["gpu"]
    assert (used["gpus"], used["utilisation"]) == ([0], pytest.approx(0.97))
    report = RunLayout(tax).report_md.read_text()
    assert "GPU 0 was sampled once a second" in report
    assert "GPU 1 was sampled" not in report
    assert "No engine of this run used GPU 1 of this host" in report
    assert "power cap 100 % of the time" in report, "of the GPU that the engines used"
    status = data(tracon("status", tax.name, "--json", workspace=tax.parent))
    assert [gpu["power_w"] for gpu in status["gpus"]] == [698.0]
    with RunStore.open(tax, read_only=True) as store:
        assert any(isinstance(recorded.event, GpusSampled) for recorded in store.events())


@pytest.mark.long
def test_an_engine_model_is_fitted_to_overlapping_steps(tax: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted.json"
    done = tracon("simulate", "calibrate", tax.name, "--out", str(out), "--json", workspace=tax.parent)
    assert done.returncode == 0, done.stderr
    step = read_engine(str(out)).model.step
    assert data(done)["steps"] >= FEWEST_STEPS
    assert step.base_s > 0
    assert step.prefill_token_s > 0


@pytest.mark.long
@pytest.mark.timeout(2700)
def test_the_confirm_stage_judges_every_config_by_its_launches(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host with one GPU: NIXL's two engines share it in pre-flight."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    shipped, moved = ("plain", "plain_again", "noop_connector"), ("mooncake_both", "nixl_both", "lmcache_only")
    configs = [write_config(host.parent, name) for name in moved]
    with Outbound(tmp_path) as watch:
        done = tracon(
            *arguments("connector-tax", host, *shipped, *configs, preset="confirmed"),
            "--json",
            workspace=tmp_path,
            timeout_s=2500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (watch.failure, watch.beyond) == (None, set())
    assert reached_by_python(host.parent / "host" / "reached") == []
    run = Path(data(done)["folder"])
    assert watch.samples > 100
    engines = {instance.pgid for instance in view_of(run).instances.values()}
    assert len(engines & watch.pids) > len(moved), "the watch saw the engines"
    names = {*shipped, *moved}
    decisions, _ = read_preflight_decisions(run)
    assert {name: decision.included for name, decision in decisions.items()} == dict.fromkeys(names, True)
    measured = Counter(
        cell.plan.config
        for cell in view_of(run).cells.values()
        if cell.plan.stage == "confirm" and cell.state is CellState.DONE
    )
    assert set(measured) == names
    assert min(measured.values()) >= 3
    assert_nixl_is_proven_on_one_gpu(run)
    report = RunLayout(run).report_md.read_text()
    assert "between launches" in report
    changed = report.partition("What vLLM changed for each config")[2]
    assert [f"| {name} | on |" in changed for name in sorted(names)] == [True] * len(names), "async scheduling"


def assert_nixl_is_proven_on_one_gpu(run: Path) -> None:
    """Two engines with a part of its memory each, and smaller steps than those that are measured afterwards."""
    options = [dict(pairwise(launch.argv)) for launch in launches(run) if launch.config == "nixl_both"]
    settings = Counter((own["--gpu-memory-utilization"], own.get("--max-num-seqs")) for own in options)
    assert settings.pop((str(SHARE), str(SHARED_REQUESTS))) == 2
    assert list(settings) == [("0.9", None)]
    assert "counterpart: " in RunLayout(run).preflight_log("nixl_both").read_text()


def assert_they_share_a_gpu(run: Path, engines: int, fraction: str) -> None:
    assert gpus_of_engines(run, fraction) == {f"e{number}": {"0"} for number in range(engines)}


def gpus_of_engines(run: Path, fraction: str) -> dict[str, set[str]]:
    """By engine of the groups, the GPUs of its launches; each takes this fraction of a GPU's memory."""
    gpus: dict[str, set[str]] = {}
    for launch in launches(run):
        engine, _, _ = launch.instance.partition("-")
        if re.fullmatch(r"e\d+", engine):
            gpus.setdefault(engine, set()).add(launch.env["CUDA_VISIBLE_DEVICES"])
            assert dict(pairwise(launch.argv))["--gpu-memory-utilization"] == fraction
    return gpus


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "engines", "fraction"), [("two", 2, "0.45"), ("four", 4, "0.225"), ("eight", 8, "0.11")]
)
def test_engines_share_a_gpu_and_sessions_migrate_between_them(
    preset: str, engines: int, fraction: str, host: Path, tmp_path: Path
) -> None:
    config = write_config(host.parent, "mooncake_both")
    done = tracon(
        *arguments("routing", host, config, preset=f"short-{preset}"), "--json", workspace=tmp_path, timeout_s=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = Path(data(done)["folder"])
    assert_they_share_a_gpu(run, engines, fraction)
    assert_sessions_migrate(run)
    assert "GPU 0 was sampled once a second" in RunLayout(run).report_md.read_text()


def assert_sessions_migrate(run: Path) -> None:
    """Skips a run whose host stood still for as long as an engine may answer no probe: no session migrates to it."""
    stood_s = max(sample.late_s for sample in read_host(RunLayout(run).host_csv))
    if stood_s > HealthRules().probe_timeout_s:
        pytest.skip(f"the host ran nothing for {stood_s:.0f} s (host.csv)")
    assert [move for move in transfers(run, "EAR") if move.status == "transferred"]
    assert came_from_elsewhere(run, "EAR") > 0


@pytest.mark.long
def test_sessions_migrate_between_two_gpus(host: Path, tmp_path: Path) -> None:
    config = write_config(host.parent, "mooncake_both")
    done = tracon(
        *arguments("routing", host, config, preset="short-two-gpus"), "--json", workspace=tmp_path, timeout_s=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = Path(data(done)["folder"])
    assert gpus_of_engines(run, "0.9") == {"e0": {"0"}, "e1": {"1"}}
    assert_sessions_migrate(run)


@pytest.mark.long
def test_two_engines_on_one_gpu_have_every_phase_of_a_transfer(host: Path, tmp_path: Path) -> None:
    config = write_config(host.parent, "mooncake_both")
    done = tracon(
        *arguments("pd-lifecycle", host, config, preset="short-gpu-demo"), "--json", workspace=tmp_path, timeout_s=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = Path(data(done)["folder"])
    assert_they_share_a_gpu(run, 2, "0.45")
    assert "GPU 0 was sampled once a second" in RunLayout(run).report_md.read_text()
    assert "Breakdown is complete" in tracon("report", run.name, workspace=tmp_path).stdout


@pytest.mark.long
def test_two_gpus_have_every_phase_of_a_transfer_and_the_record_names_the_transport(host: Path, tmp_path: Path) -> None:
    config = write_config(host.parent, "mooncake_both")
    done = tracon(
        *arguments("pd-lifecycle", host, config, preset="short-two-gpus"), "--json", workspace=tmp_path, timeout_s=RUN_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = Path(data(done)["folder"])
    assert gpus_of_engines(run, "0.9") == {"e0": {"0"}, "e1": {"1"}}
    assert "Breakdown is complete" in tracon("report", run.name, workspace=tmp_path).stdout
    link = msgspec.json.decode(LifecycleLayout(run).link.read_bytes(), type=LinkRecord)
    assert "The Mooncake Transfer Engine is using tcp as its protocol" in link.transport
    environment = next(iter(run.glob("results/lifecycle/engines/*/e0/env.txt"))).read_text()
    assert "NV18" in "".join(parse_environment(environment).topology)

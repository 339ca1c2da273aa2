"""`tracon run connector-tax` on real engines: every config measured, every artifact there, stdout nothing but data."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from results.records.layout import RunLayout, sha256
from state.status import to_json
from tests.e2e.cli import data, engine_processes, port, tracon, view_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(480)]

CONFIGS = ("plain", "noop_connector", "mooncake_both", "nixl_both")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def done(workspace: Path) -> subprocess.CompletedProcess[str]:
    return tracon(
        "run", "connector-tax", "--preset", "smoke", "--port", port(), "--json", workspace=workspace, timeout_s=420
    )


@pytest.fixture(scope="module")
def folder(done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(data(done)["folder"])


def test_a_run_in_a_pipe_prints_only_data_and_ends_with_zero(
    done: subprocess.CompletedProcess[str], folder: Path
) -> None:
    status = data(done)
    assert status["state"] == "done"
    assert {cell["state"] for cell in status["cells"]} <= {"done", "skipped"}
    assert "phase-a" in done.stderr


def test_status_prints_what_every_viewer_folds_from_the_journal(workspace: Path, folder: Path) -> None:
    status = data(tracon("status", folder.name, "--json", workspace=workspace))
    view = view_of(folder)
    expected = msgspec.json.decode(msgspec.json.encode(to_json(view, view.last_t_unix_s)))
    for clock in ("now_unix_s", "eta_s", "elapsed_s"):
        status.pop(clock, None)
        expected.pop(clock, None)
    assert {key: status[key] for key in expected} == expected


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_has_its_artifacts_whole(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    for path in (
        layout.config_json,
        layout.launch_sh,
        layout.stdout,
        layout.env_txt,
        layout.summary_json,
        layout.launches,
    ):
        assert path.stat().st_size > 0, path.name
    assert layout.stderr.exists()
    for phase, cell in (("A", "r4"), ("A", "r8"), ("B", "64x8")):
        record: dict[str, Any] = msgspec.json.decode(layout.cell(phase, cell).read_bytes())
        assert {layout.requests(phase, cell).name, layout.metrics(phase, cell).name} <= set(record["checksums"])
        for name, digest in record["checksums"].items():
            assert sha256(layout.root / name) == digest


@pytest.mark.parametrize("config", CONFIGS)
def test_requests_have_exact_lengths_and_never_hit_a_prefix(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    rows = pd.read_json(layout.requests("A", "r8"), lines=True)
    completed = rows[rows.status == "ok"]
    assert len(completed) >= 10
    assert set(completed.prompt_tokens) == {128}
    assert set(completed.completion_tokens) == {8}
    assert completed.cached_tokens.fillna(0).sum() == 0


@pytest.mark.parametrize("config", CONFIGS)
def test_steps_are_timed_in_the_engine_and_joined_with_the_worker(folder: Path, config: str) -> None:
    layout = RunLayout(folder).config(folder.name[:8], config)
    record: dict[str, Any] = msgspec.json.decode(layout.cell("A", "r8").read_bytes())
    assert record["step_timing"]["available"], record["step_timing"]["reason"]
    steps = pd.read_json(layout.engine_step("A", "r8"), lines=True)
    busy = steps[steps.prefill_tokens + steps.decode_tokens > 0]
    assert (busy.engine_step_us > busy.step_duration_us).all()
    if config != "plain":
        assert busy.build_meta_us.notna().mean() > 0.9
        assert busy.get_finished_us.notna().mean() > 0.9
        assert record["step_timing"]["worker_join_ratio"] > 0.99


def test_the_same_arrivals_and_prompts_reach_every_config(folder: Path) -> None:
    seen = set()
    for config in CONFIGS:
        layout = RunLayout(folder).config(folder.name[:8], config)
        rows = pd.read_json(layout.requests("A", "r4"), lines=True)
        seen.add(tuple((rows.t_intended_ns - rows.t_intended_ns.iloc[0]).head(8)))
    assert len(seen) == 1


def test_the_report_has_tax_reference_rates_and_manifest(workspace: Path, folder: Path) -> None:
    layout = RunLayout(folder)
    for path in (
        layout.reference_rates,
        layout.aggregate_json,
        layout.aggregate_csv,
        layout.tax_json,
        layout.report_md,
    ):
        assert path.stat().st_size > 0, path.name
    manifest = layout.manifest.read_text()
    assert all(config in manifest for config in CONFIGS)
    printed = tracon("report", folder.name, workspace=workspace)
    assert printed.returncode == 0
    assert "mooncake_both" in printed.stdout
    assert data(tracon("report", folder.name, "--json", workspace=workspace))["tax"]


def test_pre_flight_says_what_it_checked(folder: Path) -> None:
    gates: dict[str, Any] = msgspec.json.decode(RunLayout(folder).preflight_status.read_bytes())
    assert {config: gate["decision"] for config, gate in gates.items()} == dict.fromkeys(CONFIGS, "include")
    for config in CONFIGS:
        assert RunLayout(folder).preflight_log(config).stat().st_size > 0


def test_nothing_is_left_running_and_the_probe_is_removed(workspace: Path, folder: Path) -> None:
    assert not engine_processes(folder)
    assert not data(tracon("patch", "status", "--json", workspace=workspace))["applied"]

"""What the command line promises: help that teaches, data on stdout, one-paragraph errors with remedy and exit code."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from launch.gpu_devices import DRIVER
from runners.campaign.experiment import RunOptions
from runners.cli import app
from runners.cli.runs import resolve_paths
from runners.errors import RunnerError
from tests.e2e.cli import tracon


def commands(of: typer.Typer) -> list[tuple[str, object]]:
    pairs = []

    def walk(name: str, command: object) -> None:
        pairs.append((name, command))
        for child, sub in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", sub)

    walk("tracon", get_command(of))
    return pairs


def test_every_command_and_option_has_help() -> None:
    for name, command in commands(app):
        if getattr(command, "hidden", False):
            continue
        assert getattr(command, "help", None), f"{name} is missing its help"
        for parameter in getattr(command, "params", []):
            if parameter.param_type_name == "option" and parameter.name not in (
                "help",
                "install_completion",
                "show_completion",
            ):
                assert parameter.help, f"{name} --{parameter.name} is missing its help"


def test_the_list_of_commands_is_grouped() -> None:
    listed = [one for one in get_command(app).commands.values() if not one.hidden]  # type: ignore[attr-defined]
    assert [one.name for one in listed if not isinstance(one.rich_help_panel, str)] == []
    assert len({one.rich_help_panel for one in listed}) == 5


def test_version_and_help_with_shell_completion(tmp_path: Path) -> None:
    assert tracon("--version", workspace=tmp_path).stdout.startswith("tracon ")
    shown = tracon("--help", workspace=tmp_path)
    assert shown.returncode == 0
    assert "resume" in shown.stdout
    assert "--install-completion" in shown.stdout


def test_simulate_alone_teaches_its_ways(tmp_path: Path) -> None:
    shown = " ".join(tracon("simulate", workspace=tmp_path).stdout.split())
    for way in (
        "tracon simulate --trace FILE --policy unified --policy EAR --instances N",
        "tracon simulate --preset fleet-loads",
        "tracon simulate capacity --slo",
        "tracon simulate calibrate RUN",
        "tracon simulate check LIVE_RUN SIMULATED_RUN",
    ):
        assert way in shown, way


def test_simulate_with_a_preset_as_a_word_names_the_option_for_it() -> None:
    refused = CliRunner().invoke(app, ["simulate", "fleet-loads"]).exception
    assert isinstance(refused, RunnerError)
    assert "`tracon simulate --preset fleet-loads`" in refused.remedy


@pytest.mark.parametrize("words", [[], ["policies"]], ids=["options alone", "the command's name"])
def test_simulate_with_options_replays_a_trace_through_policies(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned: list[RunOptions] = []
    monkeypatch.setattr("runners.cli.runs.print_plan", lambda options, _workspace, _json: planned.append(options))
    trace, given = str(tmp_path / "mine.jsonl"), ["--set", "replay.time_scale=2", "--instances", "4", "--on", "ray"]
    sampled = ["--preset", "fleet-mooncake", "--trace", trace]
    for arguments in (["--preset=fleet-loads"], ["--trace", trace, "--policy", "EAR", *given], sampled):
        assert CliRunner().invoke(app, ["simulate", *words, *arguments, "--dry-run"]).exit_code == 0
    of_h20: dict[str, Any] = {"profile": "h20-qwen3-coder-30b", "simulated": True}
    assert planned == [
        RunOptions("routing", preset="fleet-loads", **of_h20),
        RunOptions(
            "routing",
            preset="fleet",
            trace=trace,
            policies=("EAR",),
            settings=("replay.time_scale=2", "trace.sessions=0"),
            instances=4,
            on="ray",
            **of_h20,
        ),
        RunOptions("routing", preset="fleet-mooncake", trace=trace, **of_h20),
    ]


def test_a_dry_run_of_simulate_shows_what_it_would_replay(tmp_path: Path) -> None:
    done = tracon("simulate", "--preset", "fleet-light", "--policy", "EAR", "--dry-run", "--json", workspace=tmp_path)
    plan = json.loads(done.stdout)
    assert (plan["experiment"], plan["preset"]) == ("routing", "fleet-light")
    assert {cell["label"] for cell in plan["cells"] if cell["kind"] == "replay"} == {"EAR"}
    assert any("nothing is measured" in note for note in plan["notes"])
    assert not list(tmp_path.iterdir())


def test_a_misspelled_command_of_simulate_is_corrected() -> None:
    assert "Did you mean 'capacity'?" in CliRunner().invoke(app, ["simulate", "capacty"]).output


def test_plan_prints_what_it_promises(tmp_path: Path) -> None:
    done = tracon("plan", "connector-tax", "--profile", "cpu-tiny", "--json", workspace=tmp_path)
    plan = json.loads(done.stdout)
    assert {"experiment", "profile", "configs", "stages", "cells", "estimated_s"} <= set(plan)
    stages = ["preflight", "phase-a", "reference", "confirm", "analysis"]
    assert [stage["stage"] for stage in plan["stages"]] == stages
    assert 2 * 3600 < plan["estimated_s"] < 3 * 3600
    assert not list(tmp_path.iterdir()), "a plan runs and writes nothing"


def test_a_routing_plan_takes_policies_and_settings_and_names_what_is_wrong_with_them(tmp_path: Path) -> None:
    chosen = ("plan", "routing", "--policy", "lmetric", "--policy", "unified")
    done = tracon(*chosen, "--set", "unified.overload_factor=1.3", "--trials", "2", "--json", workspace=tmp_path)
    plan = json.loads(done.stdout)
    labels = {cell["label"] for cell in plan["cells"] if cell["kind"] == "replay"}
    assert labels == {"lmetric", "unified overload_factor=1.3"}
    wrong = tracon(*chosen, "--set", "unified.overlod_factor=1.3", workspace=tmp_path)
    assert wrong.returncode == 2
    assert "overload_factor" in wrong.stderr
    assert wrong.stdout == ""


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    lifecycle = ("pd-lifecycle", "--preset", "smoke", "--set", "new_tokens=[64]", "--json")
    planned = tracon("plan", *lifecycle, workspace=tmp_path)
    dry = tracon("run", *lifecycle, "--dry-run", workspace=tmp_path)
    assert dry.returncode == 0, dry.stderr
    dry_plan, plan = (json.loads(done.stdout) for done in (dry, planned))
    for one in (dry_plan, plan):
        del one["notes"]  # the host may come to rest, or be disturbed, between the two
    assert dry_plan == plan
    assert not list(tmp_path.iterdir())


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    text = done.stderr.strip()
    assert "Traceback" not in text
    assert "\n\n" not in text
    assert done.stdout == ""
    return " ".join(text.split())


def test_a_malformed_profile_names_file_and_key(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    from launch.profile import PROFILES_FOLDER

    profile.write_text((PROFILES_FOLDER / "cpu-tiny.toml").read_text().replace("max_model_len", "max_modl_len"))
    text = refused(tracon("run", "connector-tax", "--profile", str(profile), workspace=tmp_path))
    assert "mine.toml" in text
    assert "max_modl_len" in text
    assert "max_model_len" in text


def test_a_missing_engine_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "nothing"))
    text = refused(tracon("run", "connector-tax", workspace=tmp_path))
    assert "tracon engine install cpu" in text


@pytest.mark.engine
@pytest.mark.skipif(DRIVER.exists(), reason="this host has NVIDIA's driver")
def test_without_a_gpu_a_cuda_profile_can_be_planned_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    workspace, profile = tmp_path / "runs", ("--profile", "h200-qwen3-0.6b-dummy")
    planned = tracon("plan", "connector-tax", *profile, "--preset", "gpu-demo", workspace=workspace)
    assert planned.returncode == 0
    for command in (("run", "connector-tax", "--preset", "gpu-demo"), ("engine", "up", "plain")):
        refused = tracon(*command, *profile, workspace=workspace)
        assert refused.returncode == 2
        assert "need an NVIDIA GPU, and this host has none" in " ".join(refused.stderr.split())
        assert "--profile cpu-tiny" in " ".join(refused.stderr.split())
    assert not workspace.exists()


def test_a_strict_doctor_names_what_is_missing_after_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    refused = tracon("doctor", "--strict", workspace=tmp_path)
    assert refused.returncode == 4
    assert "missing on this host: engine." in refused.stderr


def test_an_occupied_port_names_who_holds_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        text = refused(tracon("run", "connector-tax", "--port", str(number), workspace=tmp_path))
    assert str(number) in text
    assert "pid" in text


@pytest.mark.engine
@pytest.mark.timeout(120)
def test_an_engine_that_dies_at_start_is_quoted_and_fails_the_gate(tmp_path: Path) -> None:
    from launch.profile import PROFILES_FOLDER
    from tests.ports import own_port

    profile = tmp_path / "broken.toml"
    text = (PROFILES_FOLDER / "cpu-tiny.toml").read_text()
    profile.write_text(text.replace("extra_args = [", 'extra_args = ["--no-such-argument", '))
    done = tracon(
        *("run", "connector-tax", "--profile", str(profile), "--preset", "smoke", "-c", "plain"),
        *("--port", str(own_port(19300, 4)), "--json"),
        workspace=tmp_path,
    )
    assert done.returncode == 4
    status = json.loads(done.stdout)
    cells = {cell["cell"]: cell for cell in status["cells"]}
    assert "no-such-argument" in cells["preflight/plain"]["reason"]
    assert cells["phase-a/plain/r4"]["state"] == "skipped"


def test_asking_for_a_run_that_is_not_there_says_what_is(tmp_path: Path) -> None:
    assert "tracon" in refused(tracon("status", "20990101", workspace=tmp_path))


def test_an_unknown_experiment_and_preset_are_refused(tmp_path: Path) -> None:
    assert "connector-tax" in refused(tracon("plan", "conector-tax", workspace=tmp_path))
    assert "demo" in refused(tracon("plan", "connector-tax", "--preset", "huge", workspace=tmp_path))


def test_a_preset_of_another_profile_names_that_profile(tmp_path: Path) -> None:
    text = refused(tracon("plan", "routing", "--preset", "fleet-light", workspace=tmp_path))
    assert text.endswith("or a profile that has it: --profile h20-qwen3-coder-30b.")


def test_a_full_disk_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runners.campaign import disk

    monkeypatch.setattr(disk, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(disk.DiskFull, match="MiB are free") as refused:
        disk.require_disk(tmp_path / "not" / "there" / "yet")
    assert refused.value.exit_code == 2
    assert "--workspace" in refused.value.remedy


def test_paths_of_a_run_do_not_depend_on_the_folder_it_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = RunOptions(
        "routing",
        profile="mine.toml",
        configs=("plain", "configs/own.toml"),
        policies=("lmetric", "own.py", "own.py:Mine"),
        trace="trace.jsonl",
    )
    rooted = resolve_paths(options)
    assert rooted.profile == f"{tmp_path}/mine.toml"
    assert rooted.configs == ("plain", f"{tmp_path}/configs/own.toml")
    assert rooted.policies == ("lmetric", f"{tmp_path}/own.py", f"{tmp_path}/own.py:Mine")
    assert rooted.trace == f"{tmp_path}/trace.jsonl"


def test_the_console_gets_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _python, arguments: executed.append(arguments[1:]))
    CliRunner().invoke(app, ["console", "--workspace", str(tmp_path), "--read-only", "--ascii"])
    assert executed == [["-m", "console", "--workspace", str(tmp_path), "--read-only", "--ascii"]]


def test_the_options_of_a_run_are_those_of_its_struct(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[RunOptions] = []
    monkeypatch.setattr("runners.cli.runs.print_plan", lambda options, _workspace, _json: planned.append(options))
    given = ["--config", "plain", "-c", "nixl_both", "--seed", "7", "--set", "trials=2", "--port", "9000"]
    for arguments in ([], given):
        assert CliRunner().invoke(app, ["plan", "routing", *arguments]).exit_code == 0
    changed = RunOptions("routing", configs=("plain", "nixl_both"), seed=7, settings=("trials=2",), port=9000)
    assert planned == [RunOptions("routing"), changed]
    for name in ("tracon plan", "tracon run"):
        helps = {one.name: one.help for one in getattr(dict(commands(app))[name], "params", []) if hasattr(one, "help")}
        assert "(default: cpu-tiny)" in helps["profile"]
        assert {field.name for field in fields(RunOptions)} <= set(helps)

"""What continuous integration relies on: an empty machine, both commands, and a demo that is whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TIMED_FOLDERS

ROOT = Path(__file__).resolve().parents[1]
CI = (ROOT / ".ci" / "run").read_text()
CONFIGS = ("plain", "plain_again", "noop_connector", "mooncake_both", "nixl_both")
PAGE = "each config against plain\nplain_again\nreport.html\ntracon report"


def a_status(launches: int = 3) -> dict[str, Any]:
    """What `tracon status --json` says of a whole demo."""
    names = [f"confirm/{config}/512x32-ref_safe{f'/t{n}' if n else ''}" for n in range(launches) for config in CONFIGS]
    cells = [{"cell": name, "state": "done", "reason": "", "degraded": ""} for name in ("preflight/probe", *names)]
    return {"run": "r", "state": "done", "cells": cells, "started_unix_s": 0.0, "ended_unix_s": 160.0}


def judge(tmp_path: Path, status: dict[str, Any], page: str = PAGE) -> subprocess.CompletedProcess[str]:
    """Run the check with a `tracon` that prints this status beside the Python that runs it."""
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    (tmp_path / "status.json").write_text(json.dumps(status))
    (tmp_path / "tracon").write_text(f"#!/bin/sh\ncat {tmp_path / 'status.json'}\n")
    (tmp_path / "tracon").chmod(0o755)
    (tmp_path / "demo").write_text(page)
    check = ROOT / ".ci" / "demo_is_whole.py"
    return subprocess.run(
        [python, "-S", check, tmp_path / "demo"], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_whole_demo_passes(tmp_path: Path) -> None:
    done = judge(tmp_path, a_status())
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 cells, all done in 160 s" in done.stdout


@pytest.mark.parametrize("state", ["failed", "skipped", "pending"])
def test_a_cell_that_is_not_done_fails_and_is_named(tmp_path: Path, state: str) -> None:
    status = a_status()
    status["cells"][3] |= {"state": state, "reason": "why"}
    done = judge(tmp_path, status)
    assert done.returncode == 1
    assert f"{status['cells'][3]['cell']}: {state} why" in done.stderr


@pytest.mark.parametrize(
    ("status", "page", "said"),
    [
        (a_status(launches=2), PAGE, "in 3 launches"),
        (a_status() | {"state": "interrupted"}, PAGE, "interrupted"),
        (a_status() | {"cells": []}, PAGE, "the demo's run"),
        (a_status(), PAGE.replace("report.html", ""), "no report.html"),
    ],
    ids=["two launches", "interrupted", "no cell", "no page"],
)
def test_a_demo_that_lacks_something_fails(tmp_path: Path, status: dict[str, Any], page: str, said: str) -> None:
    done = judge(tmp_path, status, page)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    "variable",
    [
        "HOME", "TMPDIR", "UV_CACHE_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
    ],
)  # fmt: skip
def test_ci_starts_from_an_empty_folder(variable: str) -> None:
    exported = " ".join(line for line in CI.splitlines() if line.startswith("export "))
    folder = re.search(rf'\b{variable}="\$root/(\w+)"', exported)
    assert folder is not None, f"{variable} is not a folder of the run"
    assert re.search(rf"^for folder in .*\b{folder[1]}\b", CI, re.MULTILINE)


def test_ci_runs_both_commands_and_checks_the_demo() -> None:
    parts = dict(re.findall(r"^part (\w+) (.+)$", CI, re.MULTILINE))
    assert parts["test"] == "make test"
    assert "demo_is_whole.py" in parts["whole"]
    assert "make demo" in CI
    assert "test-long" not in CI


def test_what_takes_longer_has_a_command_of_its_own_that_the_readme_names() -> None:
    make = (ROOT / "Makefile").read_text()
    commands = re.search(r"^test: .*\n((?:\t.*\n)+)", make, re.MULTILINE)
    assert commands is not None
    assert all("not long" in line for line in commands[1].splitlines())
    assert re.search(r"^test-long:", make, re.MULTILINE)
    assert "make test-long" in (ROOT / "README.md").read_text()


def test_timing_tests_are_looked_for_where_they_are() -> None:
    """tests/conftest.py refuses one elsewhere."""
    folders = re.search(r"^TIMED := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert folders is not None
    assert folders[1].split() == [f"tests/{folder}" for folder in TIMED_FOLDERS]


def read_pins(lock: str) -> dict[str, list[str]]:
    """Each pin of a lock file with its hashes."""
    pins: dict[str, list[str]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if line.startswith("    --hash="):
            pins[next(reversed(pins))].append(line.strip(" \\"))
        else:
            pins[line.strip(" \\")] = []
    return pins


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "ray.lock", "launch/engines/cpu.lock", "launch/engines/cuda.lock"]
)
def test_every_locked_package_has_the_hashes_of_its_files(lock: str) -> None:
    pins = read_pins(lock)
    assert len(pins) > 65
    unhashed = [pin for pin, hashes in pins.items() if not hashes]
    assert unhashed == (["torch==2.13.0+cpu"] if "cpu" in lock else [])  # of PyTorch's own index, or a wheel of yours
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for hashes in pins.values() for one in hashes)


def test_the_lock_of_ray_changes_no_package_of_the_environment_that_it_is_added_to() -> None:
    installed, added = (
        {pin.partition("==")[0] for pin in read_pins(lock)} for lock in ("requirements.lock", "ray.lock")
    )
    assert "ray" in added - installed
    shared = {pin for pin in read_pins("ray.lock") if pin.partition("==")[0] in installed}
    assert len(shared) > 50
    assert shared <= read_pins("requirements.lock").keys()
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-long:")[2].partition("\n\n")[0]
    assert "--require-hashes --requirements ray.lock" in recipe


def test_an_install_takes_only_what_has_a_locked_hash() -> None:
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps --editable ." not in line] == [
        line for line in installs if "apt install" in line
    ]


def test_make_gpu_takes_an_environment_of_the_host() -> None:
    settings = "GPU_SET=phase_a.rates_per_s=[1] trials=3"
    chosen = ("ENGINE_PYTHON=/opt/vllm/bin/python", "GPU_CONFIGS=plain nixl_both", settings)
    done = subprocess.run(["make", "-n", "gpu", *chosen], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "engine install" not in done.stdout
    assert "--strict --engine-python /opt/vllm/bin/python --only plain --only nixl_both" in done.stdout
    assert "--preset gpu-demo --engine-python /opt/vllm/bin/python --config plain --config nixl_both" in done.stdout
    assert "--set 'phase_a.rates_per_s=[1]' --set 'trials=3'; code=" in done.stdout
    assert "--before-install" not in done.stdout
    shipped = subprocess.run(["make", "-n", "gpu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "engine install cuda" in shipped
    assert not {"--engine-python", "--config", "--set"} & set(shipped.split())


def test_make_gpu_checks_the_host_before_it_downloads_the_environment() -> None:
    make = ["make", "-n", "gpu", "GPU_CONFIGS=plain nixl_both"]
    lines = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    steps = [line.partition("tracon ")[2] for line in lines if "tracon doctor" in line or "tracon engine" in line]
    assert [step.partition(" --profile")[0] for step in steps] == ["doctor", "engine install cuda", "doctor"]
    before, after = steps[0], steps[2]
    assert before.endswith("--strict --before-install --only plain --only nixl_both")
    assert "--before-install" not in after
    assert "--strict" in after

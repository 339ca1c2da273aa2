"""The console's environment on the other Pythons that Tracon promises: built from the lock, imported, and run."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
import uv

from launch.install import diagnose
from tests.console import demo

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("console", "runners", "launch", "state", "results")
IMPORT_ALL = """
import importlib, pkgutil, sys
for room in sys.argv[1:]:
    package = importlib.import_module(room)
    for module in pkgutil.walk_packages(package.__path__, f"{room}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(sum(name.partition(".")[0] in sys.argv[1:] for name in sys.modules))
"""

pytestmark = pytest.mark.timeout(200)


def find_python(version: str) -> Path | None:
    """An interpreter of this version: on PATH, of pyenv, or of uv."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # HOME may be a folder of this run's own
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    managed = home / ".local" / "share" / "uv" / "python"
    candidates = [
        Path(shutil.which(f"python{version}") or "/nowhere"),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")),
        *sorted(managed.glob(f"cpython-{version}.*/bin/python{version}")),
    ]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in candidates:
        if python.exists():  # a shim of pyenv's is there and fails
            answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
            if answer.stdout.strip() == version:
                return python
    return None


@pytest.fixture(scope="module", params=["3.12", "3.13"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with everything that the lock names, from wheels alone."""
    found = find_python(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on PATH, in pyenv or in uv")
    root = tmp_path_factory.mktemp("console") / "venv"
    python, lock = root / "bin" / "python", ROOT / "requirements.lock"
    install = ("pip", "install", "--python", str(python), "--only-binary", ":all:", "--requirements", str(lock))
    for arguments in (("venv", "--no-project", "--python", str(found), str(root)), install):
        done = subprocess.run([uv.find_uv_bin(), *arguments], capture_output=True, text=True, check=False)
        cause, _ = diagnose(done.stderr)
        if done.returncode and "registry" in cause:
            pytest.skip(f"the packages cannot be had: {cause}")
        assert done.returncode == 0, done.stderr
    return python


def run(python: Path, *arguments: str) -> str:
    home = python.parents[1] / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPYCACHEPREFIX": str(home / "bytecode")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported(python: Path) -> None:
    modules = sum(len(list(ROOT.glob(f"{room}/**/*.py"))) for room in ROOMS)
    assert int(run(python, "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, *ROOMS)) > 0.9 * modules


def test_the_command_runs(python: Path) -> None:
    assert "doctor" in run(python, "-m", "runners.cli", "--help")
    report = json.loads(run(python, "-m", "runners.cli", "doctor", "--json"))
    assert {config["config"] for config in report["configs"]} >= {"plain", "mooncake_both"}
    (row,) = (row for row in report["rows"] if row["what"] == "python")
    assert row["state"] == "ok"
    plan = json.loads(run(python, "-m", "runners.cli", "plan", "connector-tax", "--json"))
    assert len(plan["cells"]) > 100


def test_a_run_made_by_another_python_is_read_and_drawn(python: Path, tmp_path: Path) -> None:
    folder, picture = tmp_path / "20260101-120000-connector-tax-cpu-tiny", tmp_path / "console.svg"
    demo.write(folder, tale=demo.CONNECTOR_TAX)
    status = json.loads(run(python, "-m", "runners.cli", "status", "--json", str(folder)))
    assert {cell["state"] for cell in status["cells"]} == {"done", "failed"}
    run(python, "-m", "console", str(folder), "--screenshot", str(picture))
    assert "mooncake" in picture.read_text()

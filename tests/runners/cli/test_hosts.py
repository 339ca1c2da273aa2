"""Hosts that Tracon refuses, and users that may write less than root: one sentence each, never a traceback."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from runners import cli
from runners.errors import RunnerError
from state import operator_requests
from tests.unprivileged import drop_capabilities

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("here", [("Darwin", "arm64"), ("Linux", "aarch64"), ("Windows", "AMD64")])
def test_other_systems_and_architectures_are_refused_at_the_start(
    here: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: here[0])
    monkeypatch.setattr(platform, "machine", lambda: here[1])
    monkeypatch.setattr(sys, "argv", ["tracon", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f"this is {here[0]} on {here[1]}" in output.err
    assert "Linux x86-64 host" in output.err


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 14, 0)])
def test_other_pythons_are_refused(version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(RunnerError, match=r"Python 3\.11 to 3\.13") as refused:
        cli.refuse_host()
    assert "make demo PYTHON=" in refused.value.remedy


def test_package_and_command_promise_the_same_pythons() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"]
    first, last = cli.PYTHONS
    assert declared == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


def make(
    folder: Path, programs: Mapping[str, str], *arguments: str, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Make the console's environment without root's rights, with these shell scripts first on PATH."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return subprocess.run(
        ["make", ".venv/.installed", *arguments], cwd=folder, capture_output=True, text=True, timeout=60,
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **environ}, preexec_fn=drop_capabilities,
    )  # fmt: skip


def test_make_refuses_another_system(tmp_path: Path) -> None:
    done = make(tmp_path, {"uname": "echo Darwin arm64"})
    assert done.returncode != 0
    assert "this is Darwin arm64" in done.stderr
    assert not (tmp_path / ".venv").exists()


def version(number: str) -> str:
    """A program that answers what Make's Python lines ask, as a Python of that version would."""
    parts = ", ".join(number.split("."))
    return f'code="import sys; sys.version_info = ({parts}, 0); $2"; shift 2; exec {sys.executable} -c "$code" "$@"'


def test_make_refuses_a_python_it_was_given_and_names_it(tmp_path: Path) -> None:
    done = make(tmp_path, {"python3.14": version("3.14")}, "PYTHON=python3.14")
    assert done.returncode != 0
    assert "python3.14 is 3.14" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_make_takes_the_first_python_that_fits(tmp_path: Path) -> None:
    fits = f'case "$2" in *venv*) echo "would make $3" >&2; exit 9;; esac\n{version("3.12")}'
    lacking = {"python3.11": "exit 127", "python3": version("3.14"), "python3.13": "exit 127"}
    done = make(tmp_path, {**lacking, "python3.12": fits})
    assert "would make .venv" in done.stderr
    assert "python3.12 cannot make a virtual environment: install its venv module" in done.stderr
    none = {name: version("3.9") for name in ("python3", "python3.11", "python3.12", "python3.13")}
    (tmp_path / "none").mkdir()
    assert "PATH has none of them" in make(tmp_path / "none", none).stderr


@pytest.mark.parametrize(
    ("mode", "named", "cache"),
    [(0o500, {}, ".venv/uv-cache"), (0o700, {}, ""), (0o500, {"UV_CACHE_DIR": "/elsewhere"}, "/elsewhere")],
    ids=["read-only home", "home of one's own", "named"],
)
def test_make_gives_uv_a_cache_that_it_may_write(
    tmp_path: Path, mode: int, named: Mapping[str, str], cache: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=mode)
    uv = '#!/bin/sh\necho "uv keeps its cache in [$UV_CACHE_DIR]" >&2\nexit 9\n'
    ends = f"""case "$2" in *venv*)
        mkdir -p .venv/bin; printf '#!/bin/sh\\n' >.venv/bin/python; printf '%s' '{uv}' >.venv/bin/uv
        chmod +x .venv/bin/*; exit 0;; esac
    {version("3.12")}"""
    done = make(tmp_path, {"python3.12": ends}, "PYTHON=python3.12", environ={"HOME": str(home), **named})
    expected = str(tmp_path / cache) if cache else ""
    assert f"uv keeps its cache in [{expected}]" in done.stderr, done.stderr


COMMANDS = (
    ("doctor", "--json"), ("plan", "connector-tax", "--json"), ("list", "--json"), ("status",), ("engine", "list"),
    ("engine", "install", "cpu"), ("engine", "up", "plain"), ("run", "connector-tax"), ("resume",), ("report",),
    ("patch", "status"), ("trace", "synth", "trace.jsonl"),
)  # fmt: skip


def unprivileged(
    *arguments: str, home: Path, cwd: Path, umask: int = -1, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """The command without root's rights and with nothing set but its home folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRACON_", "XDG_", "HOME"))}
    try:
        return subprocess.run(
            [sys.executable, "-m", "runners.cli", *arguments], env={**inherited, "HOME": str(home), **environ}, cwd=cwd,
            capture_output=True, text=True, timeout=120, umask=umask, preexec_fn=drop_capabilities,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        pytest.skip(f"root may not give up its rights here: {error}")


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    return home


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_with_a_home_that_cannot_be_written_a_command_works_or_names_the_remedy(
    arguments: tuple[str, ...], read_only: Path
) -> None:
    done = unprivileged(*arguments, home=read_only, cwd=read_only)
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.returncode == 2
        named = r"--workspace|TRACON_HOME|XDG_STATE_HOME|tracon engine install"
        assert re.search(named, done.stderr), done.stderr
    assert not list(read_only.iterdir())


def test_with_a_home_that_is_a_file_the_remedy_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    into_it = ("trace", "synth", str(home / "x.jsonl"))
    install = ("engine", "install", "cpu")
    for arguments, remedy in ((("list",), "--workspace"), (install, "TRACON_HOME"), (into_it, "folder")):
        done = unprivileged(*arguments, home=home, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert remedy in done.stderr
        assert "Traceback" not in done.stderr
    assert home.read_text() == ""


def test_with_its_folders_elsewhere_a_read_only_home_is_no_obstacle(read_only: Path, tmp_path: Path) -> None:
    folders = {"TRACON_HOME": str(tmp_path / "engines"), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = unprivileged("doctor", "--json", home=read_only, cwd=tmp_path, environ=folders)
    assert done.returncode == 0, done.stderr
    assert f"free at {tmp_path / 'engines'}" in done.stdout
    assert f"free at {tmp_path / 'state' / 'tracon'}" in done.stdout
    assert "cannot be written" not in done.stdout


def test_what_is_written_under_a_strict_umask_its_owner_can_read(read_only: Path, tmp_path: Path) -> None:
    made = unprivileged("trace", "synth", "trace.jsonl", home=read_only, cwd=tmp_path, umask=0o077)
    assert made.returncode == 0, made.stderr
    trace = tmp_path / "trace.jsonl"
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    described = unprivileged("trace", "describe", "trace.jsonl", "--json", home=read_only, cwd=tmp_path, umask=0o077)
    assert described.returncode == 0, described.stderr


def test_caches_of_libraries_move_out_of_a_read_only_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.touch()
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TRITON_CACHE_DIR", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    environ = dict(os.environ) | {"HOME": str(home), "TRACON_HOME": str(tmp_path / "engines")}
    monkeypatch.setattr(os, "environ", environ)
    cli.place_caches()
    assert environ["XDG_CACHE_HOME"] == str(tmp_path / "engines" / "caches" / "cache")


def test_a_user_without_an_account_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", unknown)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert operator_requests.find_user_name() == "uid 12345"


def test_a_user_without_an_account_and_home_gets_no_folder_called_tilde(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "def fail(*_): raise RuntimeError('Could not determine home directory.')\n"
        "pathlib.Path.home = classmethod(fail)\n"
        "os.environ.pop('HOME', None)\n"
        "sys.argv = ['tracon', 'list']\n"
        "from runners.cli import main\n"
        "main()\n"
    )
    environ = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())

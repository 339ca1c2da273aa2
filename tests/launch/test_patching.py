"""The patches go into an environment as a distribution, and come out without a trace."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uv

from launch import patching
from launch.errors import PatchFailed
from launch.patching import PACKAGE, PatchUse, apply, revert, status
from tests.launch import fake_uv


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment of its own."""
    fake_uv.make_environment(tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


def site_packages(python: Path) -> Path:
    return python.parent.parent / "lib" / "python3.11" / "site-packages"


def everything(python: Path) -> dict[str, bytes]:
    folder = site_packages(python)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ask(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


ENTRY_POINTS = """
from importlib.metadata import entry_points
print([(point.name, point.value) for point in entry_points(group="vllm.general_plugins")])
"""


def test_vllm_would_find_the_plugin_and_can_import_it(python: Path) -> None:
    assert ask(python, ENTRY_POINTS) == "[]"
    done = apply(python)
    assert done.applied
    assert done.intact
    assert done.current
    assert ask(python, ENTRY_POINTS) == f"[('tracon', '{PACKAGE}.plugin:register')]"
    assert ask(python, f"import {PACKAGE}.plugin as p; print(callable(p.register))") == "True"


def test_revert_leaves_the_environment_as_it_was(python: Path) -> None:
    (site_packages(python) / "other.py").write_text("x = 1\n")
    before = everything(python)
    apply(python)
    assert everything(python).items() >= before.items()
    ask(python, f"import {PACKAGE}.plugin")  # bytecode is written beside it
    done = revert(python)
    assert not done.applied
    assert everything(python) == before
    assert not (site_packages(python) / PACKAGE).exists()


def test_both_ways_are_idempotent(python: Path) -> None:
    apply(python)
    first = everything(python)
    assert apply(python).reason == "already applied"
    assert everything(python) == first
    revert(python)
    assert revert(python).reason == "was not applied"


def test_status_tells_what_is_there(python: Path) -> None:
    nothing = status(python)
    assert not nothing.applied
    assert nothing.files == ()
    done = apply(python)
    assert status(python) == patching.status(python)
    assert (status(python).version, status(python).digest) == (done.version, nothing.digest)
    assert f"{PACKAGE}/plugin.py" in done.files
    assert not [name for name in done.files if "__pycache__" in name]


def test_a_changed_file_shows_and_apply_mends_it(python: Path) -> None:
    apply(python)
    changed = site_packages(python) / PACKAGE / "plugin.py"
    changed.write_text("raise SystemExit\n")
    (site_packages(python) / PACKAGE / "hooks.py").unlink()
    found = status(python)
    assert found.applied
    assert not found.intact
    assert f"{PACKAGE}/plugin.py" in found.reason
    assert f"{PACKAGE}/hooks.py" in found.reason
    assert apply(python).intact


@contextmanager
def another_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it, Tracon carries other patches, of version 9.9."""
    own = folder / "own" / "patches"
    own.mkdir(parents=True, exist_ok=True)
    (own / "__init__.py").write_text('"""Other."""\n__version__ = "9.9"\n')
    (own / "plugin.py").write_text("def register(): pass\n")
    (own / "only_here.py").write_text("")
    with monkeypatch.context() as patched:
        spec = importlib_spec(own)
        patched.setattr("importlib.util.find_spec", lambda name: spec)
        yield


def test_another_build_is_replaced_with_all_its_files(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_build(tmp_path, monkeypatch):
        assert apply(python).version == "9.9"
    found = status(python)
    assert found.intact
    assert not found.current
    done = apply(python)
    assert done.current
    assert "replaced 9.9" in done.reason
    assert not (site_packages(python) / PACKAGE / "only_here.py").exists()
    assert len(list(site_packages(python).glob(f"{PACKAGE}-*"))) == 1


def importlib_spec(folder: Path) -> object:
    import importlib.machinery

    return importlib.machinery.ModuleSpec("patches", None, origin=str(folder / "__init__.py"))


def test_what_a_killed_apply_or_revert_left_is_cleaned_up(python: Path) -> None:
    before = everything(python)
    apply(python)
    folder = site_packages(python)
    info = next(folder.glob(f"{PACKAGE}-*.dist-info"))
    info.rename(folder / f".{info.name}.removed")  # a revert that got no further
    assert not status(python).applied
    assert "unfinished" in status(python).reason
    (folder / f".{PACKAGE}-x1y2" / PACKAGE).mkdir(parents=True)  # an apply that got no further
    assert apply(python).intact
    revert(python)
    assert everything(python) == before
    assert not list(folder.glob(f".{PACKAGE}*"))


def test_files_of_others_in_the_package_folder_are_not_deleted(python: Path) -> None:
    apply(python)
    foreign = site_packages(python) / PACKAGE / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(PatchFailed, match=r"notes\.txt"):
        revert(python)
    assert foreign.read_text() == "mine"
    assert not status(python).applied
    foreign.unlink()
    assert apply(python).intact


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "run as the user who owns that environment"),
        (errno.ENOSPC, "free space on that disk"),
        (errno.EMFILE, "`ulimit -n`"),
    ],
)
def test_what_cannot_be_written_gets_the_remedy_of_its_cause(
    python: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(PatchFailed, match=os.strerror(number)) as caught:
        apply(python)
    assert remedy in caught.value.remedy


def test_an_environment_that_cannot_be_written_is_named(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    with pytest.raises(PatchFailed) as caught:
        apply(python)
    assert str(site_packages(python)) in str(caught.value)
    assert "Permission denied" in str(caught.value)
    assert "owns that environment" in caught.value.remedy


def test_a_package_installer_knows_it_too(python: Path) -> None:
    before = everything(python)
    apply(python)
    command = [uv.find_uv_bin(), "pip", "uninstall", "--quiet", "--offline", "--python", str(python), "tracon-patches"]
    subprocess.run(command, check=True, capture_output=True)
    assert everything(python) == before


RUN = Path("/runs/20260131-120000-routing-cpu-tiny")
LOCKS = Path("/proc/locks")
USER = """
import sys, pathlib
from launch.patching import PatchUse
use = PatchUse(pathlib.Path(sys.argv[1]))
use.apply()
print("in use", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_run(python: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the patches of the same environment."""
    as_a_run = ["-m", "runners.cli", "work", str(RUN)]  # its command line is that of a run process
    command = [sys.executable, "-c", USER, str(python), *as_a_run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in use\n"
        yield process
        process.kill()


def test_the_first_run_to_end_leaves_the_patches_to_the_other(python: Path, other_run: subprocess.Popen[str]) -> None:
    own = PatchUse(python)
    assert own.apply().reason == "already applied"
    left = own.revert()
    assert left.applied
    assert left.intact
    assert "uses them" in left.reason
    other_run.communicate(timeout=30)  # it ends as it should
    assert not own.revert().applied


def test_another_build_does_not_replace_the_one_that_a_run_uses(
    python: Path, other_run: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(python)
    use = PatchUse(python)
    for ask_for_it in (use.apply, lambda: apply(python)):
        with another_build(tmp_path, monkeypatch), pytest.raises(PatchFailed, match="another build") as refused:
            ask_for_it()
        assert everything(python) == before
        if LOCKS.exists():
            assert f"run {RUN.name} (process {other_run.pid}) uses" in str(refused.value)
            assert f"`tracon stop {RUN}`" in refused.value.remedy
        assert "--engine-python" in refused.value.remedy
    assert "uses them" in revert(python).reason, "the refusals left the run's own mark"
    other_run.communicate(timeout=30)
    with another_build(tmp_path, monkeypatch):
        assert use.apply().version == "9.9"
    with pytest.raises(PatchFailed, match="another build"):
        apply(python)
    assert status(python).version == "9.9"
    assert not use.revert().applied, "no refused attempt still uses them"


def test_a_damaged_build_is_mended_under_a_run_that_uses_it(python: Path, other_run: subprocess.Popen[str]) -> None:
    (site_packages(python) / PACKAGE / "plugin.py").unlink()
    assert PatchUse(python).apply().intact
    assert other_run.poll() is None


def test_a_run_that_was_killed_uses_nothing_any_more(python: Path, other_run: subprocess.Popen[str]) -> None:
    before = revert(python)
    assert before.applied
    other_run.send_signal(signal.SIGKILL)
    other_run.wait(timeout=30)
    done = revert(python)
    assert not done.applied
    assert done.reason == "removed"


def test_a_use_ends_with_its_own_revert_and_may_begin_again(python: Path) -> None:
    own, other = PatchUse(python), PatchUse(python)
    own.apply()
    other.apply()
    assert own.revert().applied
    assert own.revert().applied, "asked again, the other still uses them"
    assert own.apply().applied
    assert other.revert().applied
    assert not own.revert().applied
    assert not (site_packages(python) / PACKAGE).exists()


def test_a_use_writes_nothing_into_the_environment(python: Path) -> None:
    apply(python)
    before = everything(python)
    use = PatchUse(python)
    use.apply()
    assert everything(python) == before
    use.revert()


def test_a_run_leaves_the_patches_in_an_environment_that_it_may_not_change(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(python)
    use = PatchUse(python)
    use.apply()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    left = use.revert()
    assert left.applied
    assert "another user" in left.reason
    assert status(python).intact

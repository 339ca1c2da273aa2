"""Processes without root's rights, for tests that run as root: permission bits then bind them like anybody else."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import WORKER

_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
UID = 54_321
"""Of no account, as in a container that was started with a user id."""


def drop_capabilities() -> None:
    """For `preexec_fn`. The next program keeps its user and loses every capability. Raises OSError where it may not."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1 and libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot drop a capability")


@dataclass(frozen=True, slots=True)
class OtherUser:
    """Another user, who may read the Pythons here and write into `folder` alone."""

    folder: Path
    python: Path
    """The console's."""
    engine_python: Path
    """Of the engine that the test's user has installed; its folder cannot be written."""
    libraries: Path
    reason: str = ""
    """Why there is no such user here; empty where there is."""

    def become(self) -> None:
        """For `preexec_fn`, last of all."""
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)

    def environ(self, **more: str) -> dict[str, str]:
        """With the folders that a user has of their own; `LD_LIBRARY_PATH` finds the copied Python's library."""
        shared = {name: os.environ[name] for name in ("PATH", "LANG", WORKER) if name in os.environ}
        home = {"HOME": str(self.folder / "home"), "TRACON_HOME": str(self.folder / "tracon")}
        return {**shared, **home, "LD_LIBRARY_PATH": str(self.libraries), "PYTHONDONTWRITEBYTECODE": "1", **more}


@contextmanager
def another_user(engine_root: Path) -> Iterator[OtherUser]:
    """Pythons that any user may run, and a folder of this user's own; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tracon-other-user-"))
    try:
        folder.chmod(0o755)
        user = OtherUser(
            folder / "own", folder / "console" / "bin" / "python", folder / "engine" / "bin" / "python",
            folder / "python" / "lib", "" if os.geteuid() == 0 else "only root can become another user",
        )  # fmt: skip
        yield _prepare(user, folder, engine_root) if not user.reason else user
    finally:
        shutil.rmtree(folder)


def _prepare(user: OtherUser, folder: Path, engine_root: Path) -> OtherUser:
    """Copy the interpreter, which may be in root's home folder, and put both environments around the copy."""
    skipped = shutil.ignore_patterns("site-packages", "test", "tests", "config-*", "*.a", "share", "include")
    shutil.copytree(sys.base_prefix, folder / "python", symlinks=True, copy_function=_link_or_copy, ignore=skipped)
    for python, root in ((user.python, Path(sys.prefix)), (user.engine_python, engine_root)):
        python.parent.mkdir(parents=True)
        python.symlink_to(folder / "python" / "bin" / f"python3.{sys.version_info[1]}")
        (python.parents[1] / "pyvenv.cfg").write_text(f"home = {folder / 'python' / 'bin'}\n")
        for name in ("lib", "borrowed", "engine.json", "bin/uv"):
            if (root / name).exists():
                (python.parents[1] / name).symlink_to(root / name)
    for path in (user.folder, user.folder / "home", user.folder / "tracon"):
        path.mkdir()
        os.chown(path, UID, UID)
    (user.folder / "home").chmod(0o500)
    for python, package in ((user.python, "msgspec, tests.unprivileged"), (user.engine_python, "torch")):
        tried = subprocess.run(
            [python, "-c", f"import {package}"], env=user.environ(), preexec_fn=user.become,
            cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
        )  # fmt: skip
        if tried.returncode:
            reason = f"another user cannot run {python}: {tried.stderr.strip()[-300:]}"
            return OtherUser(user.folder, user.python, user.engine_python, user.libraries, reason)
    return user


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)

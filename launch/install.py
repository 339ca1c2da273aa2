"""Builds an engine environment: runs the plan, reports progress, names the cause of a failure."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
import uv

from launch.environment import Engine, EngineRecord, built, home, inspect_python, intact, make_library_env
from launch.errors import InstallFailed
from launch.install_plan import (
    DISK_BYTES,
    PYTHON,
    VERIFIED,
    InstallPlan,
    Step,
    install_environ,
    install_plan,
    lock_file,
    lock_hash,
)
from launch.libraries import provide
from launch.redaction import redact_arguments
from results.records.layout import write_atomic

Progress = Callable[[int, int, str], None]
"""Called with (step from 1, number of steps, text); (0, 0, text) while it waits for another install."""

LOCK_WAIT_S = 3600.0
KEPT_LINES = 200
QUOTED_LINES = 12
_REPORTED = re.compile(r"^(Resolved|Prepared|Installed)\b|^Downloading \S+ \(\d{2,}\.\d+MiB\)|^Downloading .*GiB")


def install(kind: str, *, progress: Progress = lambda step, of, text: None) -> Engine:
    """Build the `kind` environment, or return the existing one at once if it is complete.

    Raises InstallFailed with the failed step's last lines; a partial build is removed.
    """
    lock_file(kind)
    folder = home() / "engines"
    root = folder / f"{kind}-{lock_hash(kind)}"
    record = intact(root, kind)
    if record is not None:
        return built(root, record)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / f"{kind}.lock", progress):
            record = intact(root, kind) or _build_environment(kind, folder, progress)
    except OSError as error:
        raise InstallFailed(
            f"cannot write engine environments below {folder}: {error.strerror or error}",
            remedy="free space there or get the right to write, or set TRACON_HOME to another folder",
        ) from error
    return built(root, record)


def _build_environment(kind: str, folder: Path, progress: Progress) -> EngineRecord:
    check_disk(kind, folder)
    plan = install_plan(kind, folder, uv=uv.find_uv_bin(), interpreter=choose_interpreter())
    began = time.monotonic()
    shutil.rmtree(plan.partial, ignore_errors=True)
    try:
        imports = run_plan(plan, progress)
        description = inspect_python(plan.partial / "bin" / "python")
        record = EngineRecord(
            kind=kind,
            lock_hash=plan.lock_hash,
            python=description["python"],
            versions=description["versions"],
            imports=imports,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            install_s=round(time.monotonic() - began, 1),
            tracon=version("tracon"),
        )
        write_atomic(plan.partial / "engine.json", msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        _replace_folder(plan.partial, plan.root)
    except BaseException:
        shutil.rmtree(plan.partial, ignore_errors=True)
        raise
    return record


def choose_interpreter() -> str:
    """This process's own Python where it is of the version wanted, else the version: uv finds or downloads one."""
    here = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    return str(here) if here.exists() else PYTHON


def run_plan(plan: InstallPlan, progress: Progress) -> dict[str, str]:
    """Run every step; returns what the verification reported for each connector's import (empty text = it worked)."""
    log = plan.root.with_suffix(".log")
    log.unlink(missing_ok=True)
    output: deque[str] = deque()
    for number, step in enumerate(plan.steps, start=1):
        environ = install_environ(os.environ)
        if step.uses_engine_libraries:
            libraries = provide(plan.kind, plan.site_packages, plan.partial / "borrowed")
            environ |= {**make_library_env(libraries), "PYTHONDONTWRITEBYTECODE": "1"}
        progress(number, len(plan.steps), step.title)
        output = run_step(step, environ, log, partial(_report_line, progress, number, len(plan.steps)))
    verdict = next((line for line in reversed(output) if line.startswith(VERIFIED)), VERIFIED + "{}")
    imports: dict[str, str] = json.loads(verdict.removeprefix(VERIFIED))
    return imports


def _report_line(progress: Progress, number: int, of: int, line: str) -> None:
    if _REPORTED.match(line):
        progress(number, of, line)


def run_step(step: Step, environ: Mapping[str, str], log: Path, report: Callable[[str], None]) -> deque[str]:
    """Run one command to its end; its output goes to `log` and, line by line, to `report`. Returns the last lines.

    Raises InstallFailed naming the cause where the output shows it. When the caller is interrupted, it ends the
    command.
    """
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    with log.open("a") as file, subprocess.Popen(
        step.argv, env=dict(environ), cwd=log.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        file.write(f"$ {' '.join(redact_arguments(step.argv))}\n")
        timer = threading.Timer(step.timeout_s, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                lines.append(line.rstrip())
                report(line.strip())
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if code not in step.fine_exit_codes:
        raise _describe_failure(step, code, lines, log)
    return lines


def _describe_failure(step: Step, code: int, lines: deque[str], log: Path) -> InstallFailed:
    cause, remedy = diagnose("\n".join(lines))
    if not cause:
        cause = (
            f"it ran longer than {step.timeout_s:.0f} s"
            if code == -9
            else f"{Path(step.argv[0]).name} ended with {code}"
        )
    quoted = "\n".join(f"  {line}" for line in list(lines)[-QUOTED_LINES:])
    return InstallFailed(
        f"building the engine failed at `{step.title}`: {cause}\n{quoted}\n  (all of it: {log})",
        remedy=remedy or "read the lines above and run `tracon engine install` again",
    )


_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device|os error 28|ENOSPC|Disk quota exceeded", "the disk is full",
     "free space, or set TRACON_HOME (and UV_CACHE_DIR for the downloads) to a folder on a larger disk"),
    (r"python-build-standalone|No interpreter found", f"no Python {PYTHON} was found, and none could be downloaded",
     f"install Python {PYTHON} beside the one that runs Tracon, so that `python{PYTHON}` is on PATH: the engine's "
     f"environment is locked and tested for {PYTHON}"),
    (r"download\.pytorch\.org", "the CPU build of torch could not be downloaded from PyTorch's index",
     "check the network and its proxy, or point PIP_FIND_LINKS at a folder that holds the torch wheel"),
    (r"dns error|failed to lookup address|error sending request|tcp connect|Connection refused|operation timed out"
     r"|Network is unreachable|client error \(Connect\)", "the package registry could not be reached",
     "check the network and its proxy; a mirror of the registry is named with UV_DEFAULT_INDEX"),
    (r"Permission denied|os error 13|Read-only file system", "a folder cannot be written",
     "set TRACON_HOME (and UV_CACHE_DIR for the downloads) to folders you may write"),
    (r"cannot open shared object file", "a shared library is missing",
     "`tracon doctor` names the system package that has it"),
)  # fmt: skip
"""Pattern of the output, cause, remedy."""


def diagnose(output: str) -> tuple[str, str]:
    """Cause and remedy as far as a failed command's output shows them, else two empty texts."""
    return next(((cause, remedy) for pattern, cause, remedy in _CAUSES if re.search(pattern, output)), ("", ""))


def check_disk(kind: str, folder: Path) -> None:
    """Raises InstallFailed where the disk below `folder` has too little room for the `kind` environment."""
    free, need = shutil.disk_usage(folder).free, DISK_BYTES[kind]
    if free < need:
        raise InstallFailed(
            f"{folder} has {free / 1e9:.1f} GB free, the {kind} engine needs {need / 1e9:.0f} GB while it is built",
            remedy="free space there, or set TRACON_HOME to a folder on a larger disk",
        )


def _replace_folder(partial: Path, root: Path) -> None:
    old = root.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    if root.exists():
        root.replace(old)
    partial.replace(root)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def hold_lock(path: Path, progress: Progress, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock file while the block runs, after waiting for another install. A dead process holds no lock."""
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise InstallFailed(
                    f"another install has held {path} for {wait_s:.0f} s", remedy="see what it does, or end it"
                )
            progress(0, 0, "waiting for another install")
            time.sleep(min(2.0, wait_s))
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Standalone engines (`tracon engine up`): each held by a small process of its own until `engine down`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from launch.command import LaunchSpec, build_launch, write_launch
from launch.environment import Engine, find_engine
from launch.errors import LaunchError, PatchFailed
from launch.gpu_choice import choose_gpus
from launch.gpu_devices import require_gpu
from launch.instance import Instance
from launch.local import LocalBackend
from launch.patching import PatchUse
from launch.profile import Profile, load_config, load_profile
from results.records.errors import DAMAGED_JSON
from results.records.layout import ConfigLayout, write_atomic
from results.records.visible import visible
from runners.errors import RunnerError
from state.process_identity import boot_id, identify_this_process, is_alive
from state.workspace import find_default_root

POLL_S = 0.2
STOP_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class StandaloneEngine:
    """One standalone engine, as in its folder's `engine.json`."""

    name: str
    config: str
    profile: str
    model: str
    url: str
    state: str
    """`starting`, `ready`, `gone` or `failed`."""
    holder_pid: int
    holder_start: float
    """Creation time of the holder process."""
    pid: int | None = None
    folder: str = ""
    reason: str = ""
    remedy: str = ""
    exit_code: int = 0
    holder_ticks: int | None = None
    """Start of the holder process in ticks since boot: a reused pid is not it. None = an older Tracon wrote this."""
    holder_boot_id: str = ""
    """Boot id of its host since the last boot; empty = an older Tracon wrote this."""


def bring_up(
    config: str, profile: str, name: str, port: int | None, engine_python: Path | None, workspace: Path | None
) -> StandaloneEngine:
    """Start an engine and wait until it is ready. Raises LaunchError or RunnerError where it does not become so."""
    checked = load_profile(profile)
    load_config(config)
    require_gpu(checked)
    engine = find_engine(checked.engine.kind, engine_python)
    folder = _folder(workspace, name)
    old = _read_engine(folder)
    if old is not None and _is_held(old):
        raise RunnerError(
            f"an engine named {name!r} is already up at {old.url}",
            remedy=f"`tracon engine down {name}`, or choose another --name",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.json").unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "runners.cli",
        "engine",
        "hold",
        name,
        config,
        profile,
        str(folder),
        str(port or checked.launch.port_base),
        str(engine.python),
    ]
    with (folder / "holder.log").open("ab") as log:
        holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    limits = checked.launch  # the holder itself waits, stops the engine and then writes why
    deadline = time.monotonic() + limits.ready_timeout_s + limits.stop_grace_s + 2 * STOP_MARGIN_S
    while time.monotonic() < deadline:
        ended = holder.poll() is not None  # asked before the row is read, which is then its last
        row = _read_engine(folder)
        if row is not None and row.state == "ready":
            return row
        if row is not None and row.state == "failed":
            raise RunnerError(row.reason, remedy=row.remedy, exit_code=row.exit_code)
        if ended:
            raise RunnerError(f"the process that holds {name!r} ended at once", remedy=f"read {folder / 'holder.log'}")
        time.sleep(POLL_S)
    raise RunnerError(
        f"engine {name!r} was not ready in time",
        remedy=f"`tracon engine logs {name}`, then `tracon engine down {name}`",
    )


def take_down(name: str, workspace: Path | None) -> StandaloneEngine:
    """Stop it and wait until its holder has ended, and all of the engine with it."""
    folder = _folder(workspace, name)
    row = _read_engine(folder)
    if row is None or not _is_held(row):
        known = ", ".join(engine.name for engine in list_running(workspace)) or "none"
        raise RunnerError(f"no engine named {name!r} is up", remedy=f"engines that are up: {known}")
    os.kill(row.holder_pid, signal.SIGTERM)
    limit_s = load_profile(row.profile).launch.stop_grace_s + STOP_MARGIN_S
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not _is_held(row):
            return _read_engine(folder) or row
        time.sleep(POLL_S)
    raise RunnerError(
        f"engine {name!r} is still up after {limit_s:.0f} s", remedy=f"end its holder, process {row.holder_pid}"
    )


def list_running(workspace: Path | None) -> list[StandaloneEngine]:
    """The engines that are up, by name."""
    root = _find_engines_root(workspace)
    rows = (_read_engine(folder) for folder in sorted(root.iterdir())) if root.is_dir() else ()
    return [row for row in rows if row is not None and _is_held(row)]


def read_log_lines(name: str, lines: int, workspace: Path | None) -> list[str]:
    """The last lines of its stderr and stdout."""
    layout = ConfigLayout(_folder(workspace, name))
    if not layout.stderr.exists() and not layout.stdout.exists():
        raise RunnerError(f"no engine named {name!r} was ever started here", remedy="`tracon engine list`")
    last: list[str] = []
    for path in (layout.stdout, layout.stderr):
        if path.exists():
            with path.open(errors="replace") as file:
                last += [line.rstrip("\n") for line in deque(file, lines)]
    return last


def hold(name: str, config: str, profile: str, folder: Path, port: int, python: Path) -> int:
    """Start the engine and hold it until a signal arrives or it dies; returns the exit code."""
    checked, holder = load_profile(profile), identify_this_process()
    row = StandaloneEngine(
        name=name,
        config=config,
        profile=profile,
        model=checked.model.served_name,
        url="",
        state="starting",
        holder_pid=holder.pid,
        holder_start=holder.process_start,
        folder=str(folder),
        holder_ticks=holder.start_ticks,
        holder_boot_id=holder.boot_id,
    )
    _write_engine(folder, row)
    try:
        asyncio.run(_hold(row, checked, folder, port, python))
    except LaunchError as error:
        _write_engine(
            folder, replace(row, state="failed", reason=str(error), remedy=error.remedy, exit_code=error.exit_code)
        )
        return error.exit_code
    return 0


async def _hold(row: StandaloneEngine, profile: Profile, folder: Path, port: int, python: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    engine, connector = find_engine(profile.engine.kind, python), load_config(row.config)
    layout = ConfigLayout(folder)
    choice = choose_gpus(profile)
    spec = build_launch(
        profile, connector, engine, instance=row.name, port=port, layout=layout, launch=1,
        extra_env={} if choice is None else choice.name_free(profile.engine.tensor_parallel_size),
    )  # fmt: skip
    write_launch(spec, layout)
    kind = profile.engine.kind
    needs_patches = kind == "cpu" or "patches" in connector.requires_on(kind)  # on a CPU they ask for AMX tiles
    with _use_patches(engine) if needs_patches else contextlib.nullcontext():
        await _serve(row, spec, profile, engine, stop)


@contextlib.contextmanager
def _use_patches(engine: Engine) -> Iterator[None]:
    """They stay as long as this engine, whatever runs end meanwhile. Raises PatchFailed."""
    use = PatchUse(engine)
    use.apply()
    try:
        yield
    finally:
        try:
            use.revert()
        except PatchFailed as error:  # the engine's own end is the news
            sys.stderr.write(visible(f"the patches stay: {error}\n"))


async def _serve(
    row: StandaloneEngine, spec: LaunchSpec, profile: Profile, engine: Engine, stop: asyncio.Event
) -> None:
    """Start the engine, write its row when it is ready and when it has ended."""
    folder = Path(row.folder)
    async with LocalBackend(engine) as backend:
        instance = await backend.start(spec, lambda *_started: None)
        try:
            await _wait_until_ready(instance, profile.launch.ready_timeout_s, stop)
            ready = replace(row, state="ready", url=spec.url, pid=instance.pid)
            _write_engine(folder, ready)
            await _wait_until_over(instance, stop)
            died = await instance.explain_death()
        finally:
            await instance.stop(profile.launch.stop_grace_s, 0.0)
        reason = died or "stopped"
        _write_engine(folder, replace(ready, state="failed" if died else "gone", reason=reason))


async def _wait_until_ready(instance: Instance, timeout_s: float, stop: asyncio.Event) -> None:
    """Raises LaunchError where it does not become ready, or is stopped before."""
    waiting, stopping = asyncio.ensure_future(instance.wait_ready(timeout_s)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise LaunchError("stopped before it was ready", remedy="start it again with `tracon engine up`")
        await waiting
    finally:
        for task in (waiting, stopping):
            task.cancel()


async def _wait_until_over(instance: Instance, stop: asyncio.Event) -> None:
    while instance.alive() and not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), 1.0)
        except TimeoutError:
            continue


def _find_engines_root(workspace: Path | None) -> Path:
    return (workspace or find_default_root()) / "engines"


def _folder(workspace: Path | None, name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise RunnerError(f"{name!r} is no name for an engine", remedy="use letters, digits, - and _")
    return _find_engines_root(workspace) / name


def _read_engine(folder: Path) -> StandaloneEngine | None:
    """None where there is none. Raises RunnerError where its row is damaged."""
    path = folder / "engine.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=StandaloneEngine)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DAMAGED_JSON as error:
        remedy = "end the engine if it still runs (`pgrep -f 'engine hold'`), then remove that folder"
        raise RunnerError(f"{path} is damaged: {error}", remedy=remedy) from error


def _write_engine(folder: Path, row: StandaloneEngine) -> None:
    write_atomic(folder / "engine.json", msgspec.json.encode(asdict(row)))


def _is_held(row: StandaloneEngine) -> bool:
    """Whether its holder is alive."""
    holder = replace(
        identify_this_process(),
        pid=row.holder_pid,
        process_start=row.holder_start,
        start_ticks=row.holder_ticks,
        boot_id=row.holder_boot_id or boot_id(),
    )
    return is_alive(holder)

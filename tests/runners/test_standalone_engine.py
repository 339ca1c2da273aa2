"""An engine that belongs to no run: what it is refused for, and which process keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import psutil
import pytest

from launch.errors import LaunchError
from launch.instance import Instance
from launch.profile import list_config_names
from results.records.layout import write_atomic
from runners import standalone_engine
from runners.errors import RunnerError
from state.process_identity import identify_this_process
from tests.fake_gpus import FakeGpu, make_host


@pytest.mark.parametrize("config", list_config_names())
def test_the_patches_of_a_cpu_engine_are_in_use_until_it_ends(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every config, plain too: without them nothing asks the kernel for AMX tiles, and no death has a name."""
    steps: list[str] = []

    class Use:
        def __init__(self, engine: object) -> None:
            self.apply, self.revert = (partial(steps.append, step) for step in ("apply", "revert"))

    async def serve(*_: object) -> None:
        steps.append(f"listed as {', '.join(row.state for row in standalone_engine.list_running(tmp_path))}")
        raise LaunchError("the engine died", remedy="none")

    monkeypatch.setattr(standalone_engine, "find_engine", lambda kind, python: SimpleNamespace(kind=kind))
    monkeypatch.setattr(standalone_engine, "build_launch", lambda *_, **__: None)
    monkeypatch.setattr(standalone_engine, "write_launch", lambda *_: None)
    monkeypatch.setattr(standalone_engine, "PatchUse", Use)
    monkeypatch.setattr(standalone_engine, "_serve", serve)
    folder = tmp_path / "engines" / "mine"
    folder.mkdir(parents=True)
    standalone_engine.hold("mine", config, "cpu-tiny", folder, 8100, Path())
    assert steps == ["apply", "listed as starting", "revert"]


def test_a_signal_ends_an_engine_that_is_not_ready_yet() -> None:
    class Loading:
        async def wait_ready(self, timeout_s: float) -> None:
            await asyncio.sleep(timeout_s)

    async def stop_early() -> None:
        stop = asyncio.Event()
        stop.set()
        await standalone_engine._wait_until_ready(cast(Instance, Loading()), 600.0, stop)

    with pytest.raises(LaunchError, match="stopped before it was ready"):
        asyncio.run(stop_early())


def test_a_stepped_clock_does_not_take_an_engine_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me, boot_time = identify_this_process(), psutil._pslinux.boot_time
    facts = {"name": "mine", "config": "plain", "profile": "cpu-tiny", "model": "m", "url": "u", "state": "ready"}
    started = {**facts, "holder_pid": me.pid, "holder_start": me.process_start}
    ticks = {"holder_ticks": me.start_ticks, "holder_boot_id": me.boot_id}
    for name, row in (("mine", started | ticks), ("older", started | {"name": "older"})):
        write_atomic(tmp_path / "engines" / name / "engine.json", msgspec.json.encode(row))
    assert [row.name for row in standalone_engine.list_running(tmp_path)] == ["mine", "older"]
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_time() + 3.0)
    assert [row.name for row in standalone_engine.list_running(tmp_path)] == ["mine"]


@pytest.mark.parametrize("row", [b"", b'{"name":"mine"}', b"[" * 5_000, b"\xff"])
def test_a_damaged_row_of_an_engine_is_named(row: bytes, tmp_path: Path) -> None:
    path = tmp_path / "engines" / "mine" / "engine.json"
    write_atomic(path, row)
    with pytest.raises(RunnerError, match="is damaged") as refused:
        standalone_engine.list_running(tmp_path)
    assert str(path) in str(refused.value)
    assert refused.value.remedy


def test_an_engine_skips_a_gpu_that_others_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=120 << 30), FakeGpu(used=0))
    added: list[Mapping[str, str]] = []

    def build_launch(*_: object, extra_env: Mapping[str, str], **__: object) -> None:
        added.append(extra_env)
        raise LaunchError("this test starts no engine", remedy="none")

    monkeypatch.setattr(standalone_engine, "find_engine", lambda kind, python: SimpleNamespace(kind=kind))
    monkeypatch.setattr(standalone_engine, "build_launch", build_launch)
    (tmp_path / "mine").mkdir()
    standalone_engine.hold("mine", "plain", "h200-qwen3-0.6b-dummy", tmp_path / "mine", 8100, Path())
    assert added == [{"CUDA_VISIBLE_DEVICES": "1"}]

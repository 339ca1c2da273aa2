"""How long a launch waits for the memory of the engine before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from launch.command import LaunchSpec
from launch.gpu_memory import wait_for_release
from launch.local import LocalBackend
from tests.fake_gpus import FakeGpu, FakeHost, make_host
from tests.launch.engines import ENGINE, PROFILE, ignore_start, program

LONG_S = 3600.0
"""A test that waited this long would be ended."""
FREE, HELD = 100 << 20, 60 << 30


async def test_a_neighbour_on_another_gpu_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD), FakeGpu(used=FREE))
    text = await wait_for_release(("1",), LONG_S)
    assert text == "waited 0 s; GPU memory in use 100 MiB"


async def test_memory_that_is_free_at_once_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=FREE), FakeGpu(used=FREE))
    by_uuid = FakeHost.uuid(0)
    assert await wait_for_release(("0", "1"), LONG_S) == "waited 0 s; GPU memory in use 100/100 MiB"
    assert await wait_for_release((by_uuid,), LONG_S) == "waited 0 s; GPU memory in use 100 MiB"


async def test_the_engines_gpu_is_waited_for_until_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=HELD), FakeGpu(used=HELD))
    # The first question finds the memory held, and every later one finds it free.
    script = (
        '#!/bin/sh\nif [ -e "$0.asked" ]; then echo "0, GPU-0, 100"; else : > "$0.asked"; echo "0, GPU-0, 61440"; fi'
    )
    (host.folder / "nvidia-smi").write_text(script)
    (host.folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setattr("launch.gpu_memory.POLL_S", 0.01)
    assert (await wait_for_release(("0",), LONG_S)).endswith("GPU memory in use 100 MiB")


async def test_memory_that_stays_held_is_waited_for_no_longer_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD))
    assert (await wait_for_release(("0",), 0.01)).endswith("GPU memory in use 61440 MiB")


HELD_MIB = HELD >> 20


async def test_what_other_engines_held_before_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD), FakeGpu(used=HELD))
    both = f"GPU memory in use {HELD_MIB}/{HELD_MIB} MiB"
    assert await wait_for_release(("0", "1"), LONG_S, (HELD_MIB, HELD_MIB)) == f"waited 0 s; {both}"
    for shared_mib in ((HELD_MIB, 0), (HELD_MIB,)):
        waited = asyncio.wait_for(wait_for_release(("0", "1"), LONG_S, shared_mib), 0.5)
        with pytest.raises(TimeoutError):
            await waited


async def test_the_second_engine_on_a_gpu_is_released_while_the_first_holds_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=FREE))

    def sleeper(name: str) -> LaunchSpec:
        return replace(program(tmp_path / name, "import time; time.sleep(600)"), devices=("0",))

    async with LocalBackend(PROFILE, ENGINE) as backend:
        await backend.start(sleeper("first"), ignore_start)
        host.gpus[0].used = HELD
        host.write_tools()
        second = await backend.start(sleeper("second"), ignore_start)
        stopped = await asyncio.wait_for(second.stop(5.0, LONG_S), 60.0)
        assert stopped.release == f"waited 0 s; GPU memory in use {HELD_MIB} MiB"


async def test_a_part_of_a_gpu_waits_for_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=FREE), FakeGpu(used=2 * FREE))
    assert (await wait_for_release(("MIG-1",), LONG_S)).endswith("GPU memory in use 100/200 MiB")


@pytest.mark.parametrize(
    ("devices", "text"), [((), "waited 0.01 s"), (("7",), "waited 0 s; nvidia-smi did not answer")]
)
async def test_what_is_not_known_is_waited_for_as_long_as_asked(
    devices: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=FREE))
    assert await wait_for_release(devices, 0.01) == text

"""How long a launch waits for the memory of the engine before it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from launch.command import LaunchSpec
from launch.gpu_memory import measure_held, wait_for_release
from launch.guard_link import wait_for_first
from launch.local import LocalBackend
from tests.fake_gpus import FakeGpu, FakeHost, make_host
from tests.launch.engines import ENGINE, ignore_start, program
from tests.ports import own_port

LONG_S = 3600.0
"""A test that waited this long would be ended."""
FREE, HELD = 100 << 20, 60 << 30


async def test_a_neighbor_on_another_gpu_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
GPU = FakeHost.uuid(0)


@dataclass
class Engine:
    """Of the run; holds HELD of GPU 0 as it did when it was ready."""

    living: bool = True
    held_mib: Mapping[str, int] = field(default_factory=lambda: {GPU: HELD_MIB})

    def alive(self) -> bool:
        return self.living


async def is_waited_for(*engines: Engine) -> bool:
    """Whether an engine that ended on GPU 0 beside these is waited for."""
    try:
        text = await asyncio.wait_for(wait_for_release(("0",), LONG_S, engines), 0.5)
    except TimeoutError:
        return True
    assert text.startswith("waited 0 s; ")
    return False


async def test_what_living_engines_of_the_run_hold_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nvidia-smi lists no process, as in a container."""
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD))
    assert not await is_waited_for(Engine())
    assert not await is_waited_for(Engine(), Engine(living=False))
    assert await is_waited_for(Engine(held_mib={FakeHost.uuid(1): HELD_MIB})), "it is on another GPU"
    assert await is_waited_for(Engine(held_mib={})), "it is not known what it holds"


async def test_what_an_engine_held_that_has_ended_since_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines: the memory of the first is free again, and the second ends."""
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD))
    assert await is_waited_for(Engine(living=False))


async def test_what_living_processes_hold_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nvidia-smi lists processes, also those of other users' jobs."""
    other_job = (os.getpid(), HELD_MIB)
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=HELD + (300 << 20), processes=(other_job,)))
    assert not await is_waited_for()
    host.gpus[0].used = 2 * HELD
    host.write_tools()
    assert await is_waited_for()
    assert await is_waited_for(Engine()), "the list counts, not what an engine held when it was ready"


@pytest.mark.parametrize("row", [(2**22 + 1, HELD_MIB), (os.getpid(), "[N/A]")])
async def test_a_list_of_processes_that_says_nothing_leaves_what_engines_held_when_they_were_ready(
    row: tuple[int, int | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid of another namespace, and a process whose memory is not stated."""
    make_host(tmp_path, monkeypatch, FakeGpu(used=HELD, processes=(row,)))
    assert await is_waited_for()
    assert not await is_waited_for(Engine())


def server(folder: Path, port: int) -> LaunchSpec:
    spec = program(folder)
    argv = tuple(str(port) if word == str(spec.port) else word for word in spec.argv)
    return replace(spec, argv=argv, port=port, ports={"http": port}, devices=("0",))


async def test_two_engines_share_a_gpu_and_each_is_waited_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=HELD))

    def use(used: int) -> None:
        host.gpus[0].used = used
        host.write_tools()

    port = own_port(21_100, 2)
    async with LocalBackend(ENGINE) as backend:
        first = await backend.start(server(tmp_path / "first", port), ignore_start)
        await first.wait_ready(30.0)
        use(HELD + 2 * HELD // 3)
        second = await backend.start(server(tmp_path / "second", port + 1), ignore_start)
        await second.wait_ready(30.0)
        assert (first.held_mib, second.held_mib) == ({GPU: HELD_MIB}, {GPU: 2 * HELD_MIB // 3})
        use(2 * HELD // 3)
        released = await asyncio.wait_for(first.stop(5.0, LONG_S), 60.0)
        assert released == f"waited 0 s; GPU memory in use {2 * HELD_MIB // 3} MiB"
        # Of the second, too, all is waited for, although the GPU shows less than what the first held beside it.
        stopping = asyncio.create_task(second.stop(5.0, LONG_S))
        monkeypatch.setattr("launch.gpu_memory.POLL_S", 0.05)
        await wait_for_first(2.0, stopping)
        assert not stopping.done()
        use(FREE)
        assert (await asyncio.wait_for(stopping, 30.0)).endswith("GPU memory in use 100 MiB")


async def test_a_part_of_a_gpu_waits_for_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=FREE), FakeGpu(used=2 * FREE))
    assert (await wait_for_release(("MIG-1",), LONG_S)).endswith("GPU memory in use 100/200 MiB")
    assert await measure_held(("MIG-1",), ()) == {}, "which GPU it is a part of is not known"


@pytest.mark.parametrize(
    ("devices", "text"), [((), "waited 0.01 s"), (("7",), "waited 0 s; nvidia-smi did not answer")]
)
async def test_what_is_not_known_is_waited_for_as_long_as_asked(
    devices: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=FREE))
    assert await wait_for_release(devices, 0.01) == text

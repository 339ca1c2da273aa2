"""What the launcher writes of an engine that dies or stalls: the journal's event and the run's file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from launch.instance import CrashedAtStart
from launch.local import LocalBackend
from results.records.events import InstanceChanged, InstanceState, Noted
from results.records.layout import RunLayout
from results.records.schemas import EngineFault
from runners.campaign.engine_launcher import Launcher
from state.store import RunStore
from tests.launch.programs import CHILD_DIES, SERVER
from tests.ports import own_port
from tests.runners.campaign.launchers import Programs, make_launcher
from tests.runners.campaign.scripted import scripted_plan

MARKER = "[tracon] a step has run for 5 s, /x/core.py:1 in step (step 7, pid 9)"


@asynccontextmanager
async def launcher_of(folder: Path, backend: LocalBackend) -> AsyncIterator[tuple[Launcher, RunStore]]:
    store = RunStore.create(folder / "state", "run", scripted_plan(), "test")
    async with backend:
        yield make_launcher(folder, backend, store), store


def faults(folder: Path) -> list[EngineFault]:
    lines = RunLayout(folder).engine_faults.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=EngineFault) for line in lines]


def last_change(store: RunStore) -> InstanceChanged:
    return [one.event for one in store.events() if isinstance(one.event, InstanceChanged)][-1]


async def test_a_death_at_start_is_an_event_and_a_line_with_signal_frame_and_last_lines(tmp_path: Path) -> None:
    async with launcher_of(tmp_path, Programs(CHILD_DIES, "SIGILL", "0")) as (launcher, store):
        with pytest.raises(CrashedAtStart, match="SIGILL"):
            await launcher.launch("plain", launcher.find_config_layout("plain"), own_port(24_000, 2))
    event = last_change(store)
    assert event.state is InstanceState.FAILED
    assert event.death is not None
    assert (event.death.ended_by, event.death.process) == ("SIGILL", "EngineCore")
    (fault,) = faults(tmp_path)
    assert (fault.what, fault.signal, fault.instance) == ("death", "SIGILL", "plain-1")
    assert fault.frame == event.death.frame
    assert fault.frame.endswith("in crash_here")
    assert fault.last_lines == event.death.last_lines
    assert fault.last_lines


async def test_a_death_while_it_serves_is_recorded_when_it_is_stopped(tmp_path: Path) -> None:
    async with launcher_of(tmp_path, Programs(SERVER)) as (launcher, store):
        engine = await launcher.launch("plain", launcher.find_config_layout("plain"), own_port(24_000, 2))
        with engine.spec.stderr.open("a") as log:
            log.write("[tracon] process EngineCore pid 7 died of SIGSEGV\n")
        await launcher.stop(engine, "the cell is over")
    event = last_change(store)
    assert event.death is not None
    assert event.reason.startswith("the engine lost its process EngineCore (pid 7), which was ended by SIGSEGV")
    assert [fault.signal for fault in faults(tmp_path)] == ["SIGSEGV"]


async def test_stalls_are_noted_while_the_engine_serves_and_at_its_end(tmp_path: Path) -> None:
    async with launcher_of(tmp_path, Programs(SERVER)) as (launcher, store):
        engine = await launcher.launch("plain", launcher.find_config_layout("plain"), own_port(24_000, 2))
        with engine.spec.stderr.open("a") as log:
            log.write(f"{MARKER}\n")
        for _ in range(100):
            if noted := [one.event for one in store.events() if isinstance(one.event, Noted)]:
                break
            await asyncio.sleep(0.1)
        assert [(event.level, event.subject) for event in noted] == [("warning", "plain-1")]
        assert "last Python frame /x/core.py:1 in step" in noted[0].text
        with engine.spec.stderr.open("a") as log:
            log.write(f"{MARKER}\n")
        await launcher.stop(engine, "the cell is over")
    assert last_change(store).state is InstanceState.GONE
    assert [(fault.what, fault.frame) for fault in faults(tmp_path)] == [("stall", "/x/core.py:1 in step")] * 2


async def test_a_launch_that_was_cut_before_its_record_does_not_make_the_next_one_take_a_number_twice(
    tmp_path: Path,
) -> None:
    async with launcher_of(tmp_path, Programs(SERVER)) as (launcher, store):
        for number in (1, 3):  # 2 was cut before its record
            for state in (InstanceState.STARTING, InstanceState.GONE):
                store.append(InstanceChanged(f"plain-{number}", "plain", state, pid=1, pgid=1, process_start=1.0))
        resumed = make_launcher(tmp_path, launcher._backend, store)
        engine = await resumed.launch("plain", launcher.find_config_layout("plain"), own_port(24_000, 2))
        assert engine.name == "plain-4"
        await resumed.stop(engine, "the cell is over")

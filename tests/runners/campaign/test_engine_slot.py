"""The engine slot: one engine at a time, each start a record, a config that will not start is not tried for ever."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launch.errors import LaunchError
from launch.local import LocalBackend
from launch.ports import PortTaken
from launch.processes import ProcessesUnseen
from runners.campaign import engine_launcher
from runners.campaign.engine_launcher import LAUNCH_TRIES, PORT_WAIT_S, retry_start
from runners.campaign.engine_slot import EngineSlot
from state.store import RunStore
from tests.runners.campaign.launchers import make_launcher
from tests.runners.campaign.scripted import scripted_plan


class NeverStarts:
    """A backend whose engines die at once."""

    def __init__(self) -> None:
        self.tries = 0

    async def start(self, spec: object, on_started: object) -> None:
        self.tries += 1
        raise LaunchError(f"it would not start, try {self.tries}", remedy="read the log")


@pytest.fixture
def backend() -> NeverStarts:
    return NeverStarts()


@pytest.fixture
def slot(tmp_path: Path, backend: NeverStarts) -> EngineSlot:
    store = RunStore.create(tmp_path / "state", "run", scripted_plan(), "test")
    return EngineSlot(make_launcher(tmp_path, cast(LocalBackend, backend), store))


async def test_a_config_that_will_not_start_is_tried_twice_and_then_refused_at_once(
    slot: EngineSlot, backend: NeverStarts
) -> None:
    for _ in range(3):
        with pytest.raises(LaunchError, match=f"try {LAUNCH_TRIES}"):
            await slot.get("plain", "phase-a/0/1")
    assert backend.tries == LAUNCH_TRIES


class Occupied:
    """A backend on whose port another process listens during the first try."""

    def __init__(self) -> None:
        self.tries = 0

    async def start(self) -> str:
        self.tries += 1
        if self.tries == 1:
            raise PortTaken("port 1 is taken by pid 2")
        return "started"


async def test_a_port_that_is_taken_for_a_moment_costs_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    monkeypatch.setattr(engine_launcher, "asyncio", SimpleNamespace(sleep=sleep))
    assert await retry_start(Occupied().start) == "started"
    assert waits == [PORT_WAIT_S]


async def test_nothing_starts_beside_what_cannot_be_seen() -> None:
    tries: list[int] = []

    async def start() -> str:
        tries.append(1)
        raise ProcessesUnseen("too many open files", remedy="raise the limit")

    with pytest.raises(ProcessesUnseen):
        await retry_start(start)
    assert len(tries) == 1


async def test_a_repeated_attempt_tries_again(slot: EngineSlot, backend: NeverStarts) -> None:
    for purpose in ("phase-a/0/1", "phase-a/0/2"):
        with pytest.raises(LaunchError):
            await slot.get("plain", purpose)
    assert backend.tries == 2 * LAUNCH_TRIES

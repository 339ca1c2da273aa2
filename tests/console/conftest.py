"""Run folders to look at, and a way to read what the console shows."""

from __future__ import annotations

import html
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot

from console.app import TraconApp
from console.host import Options
from state import lease
from state.events import RequestSubmitted
from state.store import RunStore
from tests.console import demo

RUN = "20260302-101112-connector-tax-cpu-tiny"
ROUTING_RUN = "20260302-111213-routing-cpu-tiny"
LIFECYCLE_RUN = "20260302-121314-pd-lifecycle-cpu-tiny"
WIDE, NARROW = (120, 40), (80, 24)
FRESH_S = 120.0
"""A journal older than this is written again: the plots of a live run show the last 5 min."""
CELL_WIDTH, LINE_HEIGHT = 12.2, 24.4
"""Of a character in Textual's SVG."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run in the middle of its work and one that ended, written once."""
    root = tmp_path_factory.mktemp("made")
    folders = {"middle": root / "middle" / RUN, "ended": root / "ended" / RUN}
    demo.write(folders["middle"], seconds=150)
    demo.write(folders["ended"])
    return folders


@pytest.fixture
def dead_run(made: dict[str, Path], tmp_path: Path) -> Path:
    """A run whose process died without a word in the middle of a cell."""
    middle = made["middle"]
    if time.time() - middle.stat().st_mtime > FRESH_S:
        shutil.rmtree(middle)
        demo.write(middle, seconds=150)
    return Path(shutil.copytree(middle, tmp_path / "ws" / RUN))


@pytest.fixture
def ended_run(made: dict[str, Path], tmp_path: Path) -> Path:
    """A run that is over, with one failed cell."""
    return Path(shutil.copytree(made["ended"], tmp_path / "ws" / RUN))


@pytest.fixture
def live_run(dead_run: Path) -> Iterator[Path]:
    """A run that this test process holds the lease of."""
    with RunStore.open(dead_run) as store, lease.acquire(store):
        yield dead_run


@pytest.fixture
def routing_run(tmp_path: Path) -> Path:
    """A routing run in the middle of its second cell, the last tick a minute ahead so that it stays new."""
    folder = tmp_path / "ws" / ROUTING_RUN
    demo.write(folder, seconds=120, ends_at=time.time() + 60, tale=demo.ROUTING)
    return folder


@pytest.fixture
def live_routing(routing_run: Path) -> Iterator[Path]:
    """The same while this test process holds its lease."""
    with RunStore.open(routing_run) as store, lease.acquire(store):
        yield routing_run


def app_for(
    run: Path | None, *, workspace: Path | None = None, read_only: bool = False, ascii: bool = False
) -> TraconApp:
    """The console on a run, or on a workspace's list of runs."""
    return TraconApp(Options(workspace, read_only=read_only, ascii=ascii), run)


def shown(app: App[None]) -> list[str]:
    """The screen as lines of text, read from Textual's own export."""
    width, height = app.size
    lines = [[" "] * width for _ in range(height + 2)]
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', app.export_screenshot()):
        row, column = round((float(y) - 20) / LINE_HEIGHT), round(float(x) / CELL_WIDTH)
        if abs(row * LINE_HEIGHT + 20 - float(y)) > 1:
            continue  # the title of the window around it
        for place, character in enumerate(html.unescape(text), column):
            if 0 <= row < height and place < width:
                lines[row][place] = character.replace("\u00a0", " ")
    return ["".join(line).rstrip() for line in lines[:height]]


async def until(pilot: Pilot[None], holds: Callable[[], bool], what: str) -> None:
    """Let the app work until `holds()`; fails, naming `what`, after ten seconds."""
    deadline = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < deadline, f"{what}; the screen:\n" + "\n".join(shown(pilot.app))
        await pilot.pause(0.05)


async def sees(pilot: Pilot[None], text: str) -> None:
    """Wait until the screen shows `text`."""
    await until(pilot, lambda: text in "\n".join(shown(pilot.app)), f"{text!r} never appeared")


async def settled(pilot: Pilot[None]) -> None:
    """Wait until the first picture is drawn."""
    assert isinstance(pilot.app, TraconApp)
    await pilot.app.settled()
    await pilot.pause()


def asked(run: Path) -> list[RequestSubmitted]:
    """Every request in the run's journal."""
    with RunStore.open(run, read_only=True) as store:
        return [each.event for each in store.events() if isinstance(each.event, RequestSubmitted)]

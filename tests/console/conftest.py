"""Run folders to look at, and a way to read what the console shows."""

from __future__ import annotations

import html
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from console.app import TraconApp
from console.app_protocol import Options
from console.feed import Picture
from console.pasts import Pasts
from console.widgets.table import Cell, Row
from results.records.events import RequestSubmitted, RouterSampled
from state import lease
from state.lease import LeaseState
from state.model import EMPTY
from state.store import RunStore
from state.view import fold
from tests.console import demo

RUN = "20260302-101112-connector-tax-cpu-tiny"
ROUTING_RUN = "20260302-111213-routing-cpu-tiny"
LIFECYCLE_RUN = "20260302-121314-pd-lifecycle-cpu-tiny"
WIDE, NARROW = (120, 40), (80, 24)
WAIT_S = 60.0
"""An analysis runs at a low priority: a busy host makes it take long."""
CELL_WIDTH, LINE_HEIGHT = 12.2, 24.4
"""Of a character in Textual's SVG."""
LIVE = LeaseState("live", 4711, "here", 0.5)
RUNS: dict[str, tuple[str, demo.Tale, float | None]] = {
    "middle": (RUN, demo.CONNECTOR_TAX, 150),
    "ended": (RUN, demo.CONNECTOR_TAX, None),
    "routing": (ROUTING_RUN, demo.ROUTING, 120),
    "migrating": (ROUTING_RUN, demo.ROUTING, 258),
    "routed": (ROUTING_RUN, demo.ROUTING, None),
    "lifecycle": (LIFECYCLE_RUN, demo.LIFECYCLE, 90),
    "measured": (LIFECYCLE_RUN, demo.LIFECYCLE, None),
}
"""Name, tale, and the seconds of it that have passed (None = all)."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of RUNS, written when it is first wanted. It is shared: a test that writes takes a copy."""

    @cache
    def make(which: str) -> Path:
        name, tale, seconds = RUNS[which]
        folder = tmp_path_factory.mktemp(which) / name
        demo.write(folder, seconds=seconds, tale=tale)
        return folder

    return make


def copy_run(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "ws" / folder.name))


@contextmanager
def held_at(folder: Path, monkeypatch: pytest.MonkeyPatch, after_s: float) -> Iterator[Path]:
    """This test process holds the run's lease; the console's clock stands still, this long after the last event."""
    with RunStore.open(folder) as store, lease.acquire(store):
        now_unix_s = store.view().last_t_unix_s + after_s
        monkeypatch.setattr("console.feed.now_unix_s", lambda: now_unix_s)
        yield folder


@pytest.fixture
def dead_run(made: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run whose process died without a word in the middle of a cell."""
    return copy_run(made("middle"), tmp_path)


@pytest.fixture
def ended_run(made: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run that is over, with one failed cell."""
    return copy_run(made("ended"), tmp_path)


@pytest.fixture
def live_run(dead_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose instance has sent no numbers for ten seconds."""
    with held_at(dead_run, monkeypatch, after_s=10) as folder:
        yield folder


@pytest.fixture
def live_routing(made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A routing run in the middle of its second cell."""
    with held_at(copy_run(made("routing"), tmp_path), monkeypatch, after_s=1) as folder:
        yield folder


@pytest.fixture
def live_migrating(made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A routing run in the middle of the cell whose policy migrates."""
    with held_at(copy_run(made("migrating"), tmp_path), monkeypatch, after_s=1) as folder:
        yield folder


@pytest.fixture
def live_lifecycle(made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lifecycle run in the middle of its sweep."""
    with held_at(copy_run(made("lifecycle"), tmp_path), monkeypatch, after_s=1) as folder:
        yield folder


def picture_of(folder: Path, lease: LeaseState = LIVE) -> Picture:
    """What the feed makes of a run, at the moment of its last event."""
    view, pasts = EMPTY, Pasts()
    with RunStore.open(folder, read_only=True) as store:
        for recorded in store.events():
            view = fold(view, recorded)
            if isinstance(recorded.event, RouterSampled):
                pasts.add(recorded.t_unix_s, recorded.event, view.cells[recorded.event.cell].attempt)
            if view.routing is not None:
                pasts.remember(view.routing)
    return Picture(view, lease, pasts=pasts.frozen(), loading=False, frozen_unix_s=view.last_t_unix_s)


def text(content: Cell) -> str:
    return "".join(part for part, _ in content)


def texts(row: Row) -> list[str]:
    return [text(content) for content in row.cells]


def app_for(
    run: Path | None, *, workspace: Path | None = None, read_only: bool = False, ascii: bool = False
) -> TraconApp:
    """The console on a run, or on a workspace's list of runs."""
    return TraconApp(Options(workspace, read_only=read_only, ascii=ascii), run)


@asynccontextmanager
async def watching(
    run: Path | None, size: tuple[int, int] = WIDE, *, notifications: bool = False, **options: Any
) -> AsyncIterator[Pilot[None]]:
    """The console with its first picture drawn; `options` are those of `app_for`."""
    async with app_for(run, **options).run_test(size=size, notifications=notifications) as pilot:
        await settled(pilot)
        yield pilot


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
    """Let the app work until `holds()`; fails, naming `what`, after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}; the screen:\n" + "\n".join(shown(pilot.app))
        await pilot.pause(0.05)


async def sees(pilot: Pilot[None], text: str) -> None:
    """Wait until the screen shows `text`."""
    await until(pilot, lambda: text in "\n".join(shown(pilot.app)), f"{text!r} never appeared")


async def see_footer(pilot: Pilot[None]) -> None:
    """Wait until the last line of the screen has the keys, the last of them too."""
    await until(pilot, lambda: "q Quit" in shown(pilot.app)[-1], "the footer does not fit")


async def settled(pilot: Pilot[None]) -> None:
    """Wait until the first picture is drawn."""
    assert isinstance(pilot.app, TraconApp)
    await pilot.app.await_settled()
    await pilot.pause()


def asked(run: Path) -> list[RequestSubmitted]:
    """Every request in the run's journal."""
    with RunStore.open(run, read_only=True) as store:
        return [each.event for each in store.events() if isinstance(each.event, RequestSubmitted)]


async def press_and_see(pilot: Pilot[None], key: str, *parts: str) -> None:
    """Press a key and wait for everything that it is to show."""
    await pilot.press(key)
    for part in parts:
        await sees(pilot, part)

"""Nothing that a journal holds makes the console's terminal do anything."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from rich.text import Text

from console.app import TraconApp
from console.app_protocol import Options
from tests.console import demo
from tests.console.conftest import RUNS, press_and_see, sees, watching
from tests.poison import OBEYED, POISON, poison


def write_poisoned(folder: Path, which: str) -> Path:
    """A run of RUNS with control characters in every text."""
    name, tale, seconds = RUNS[which]

    def story(pid: int) -> demo.Story:
        for wait_s, events in tale.story(pid):
            yield wait_s, tuple(map(poison, events))

    demo.write(folder / name, seconds=seconds, tale=demo.Tale(tale.plan, story))
    return folder / name


@pytest.mark.parametrize(("which", "ascii"), [("middle", False), ("migrating", False), ("migrating", True)])
async def test_no_panel_passes_a_control_character_on(which: str, ascii: bool, tmp_path: Path) -> None:
    run = write_poisoned(tmp_path, which)
    screens = []
    async with watching(run, ascii=ascii) as pilot:
        for key in ("", "5", "7", "8", "enter"):
            if key:
                await pilot.press(key)
            await pilot.pause(0.05)
            screens.append(html.unescape(pilot.app.export_screenshot()))
    for screen in screens:
        assert not OBEYED.search(screen)
    assert any(("?]52" if ascii else "\u241b]52") in screen for screen in screens), "nothing of it was shown"


async def test_a_notification_is_shown_as_it_is(tmp_path: Path) -> None:
    async with watching(write_poisoned(tmp_path, "middle"), notifications=True) as pilot:
        pilot.app.notify(f"[@click=app.quit]{POISON}[/", title=f"[b]{POISON}", severity="error", timeout=60)
        await sees(pilot, "[@click=app.quit]")
        assert not OBEYED.search(html.unescape(pilot.app.export_screenshot()))


async def test_what_is_copied_does_nothing_when_it_is_pasted(tmp_path: Path) -> None:
    async with watching(write_poisoned(tmp_path, "middle")) as pilot:
        pilot.app.copy_to_clipboard(f"tracon why run 'a{POISON}\x1b[201~\ud800\nb'")
        assert not OBEYED.search(pilot.app.clipboard)
        assert pilot.app.clipboard.endswith("\nb'")


def test_what_a_crash_prints_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    app = TraconApp(Options())
    app.error_console.print(Text(f"ValueError: {POISON}"))
    shown = capsys.readouterr().err
    assert "\u241b]52" in shown
    assert not OBEYED.search(shown)


async def test_a_workspace_with_hostile_names_is_listed(tmp_path: Path) -> None:
    (tmp_path / f"20260101-000000-{POISON.replace(chr(0), '')}").mkdir()
    write_poisoned(tmp_path, "middle")
    async with watching(None, workspace=tmp_path) as pilot:
        await press_and_see(pilot, "down", "runs in")
        assert not OBEYED.search(html.unescape(pilot.app.export_screenshot()))

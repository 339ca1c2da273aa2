"""The operator console: a client of run folders. It reads journals, writes requests, and does no work of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.actions import parse
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.screen import Screen

from console import keys
from console.app_protocol import Host, Options
from console.glyphs import ASCII, UNICODE, PlainText, VisibleText
from console.panels.panel import Look
from console.screens.base import ConsoleScreen
from console.screens.run import RunScreen
from console.screens.runs import RunsScreen
from console.themes import DAY, NIGHT
from results.records.visible import visible
from results.report.visible_console import VisibleConsole


class TraconApp(Host):
    """Screens over one workspace."""

    TITLE = "Tracon"
    CSS_PATH = "tracon.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-broad")]  # noqa: RUF012 (declared as an instance variable there)
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012 (likewise)
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True, system=True)]

    def __init__(self, options: Options, run: Path | None = None) -> None:
        super().__init__(options, Look(glyphs=ASCII if options.ascii else UNICODE, marker=_choose_marker(options)))
        self.error_console = VisibleConsole(markup=False, highlight=False, stderr=True)
        self._run = run
        self.register_theme(NIGHT)
        self.register_theme(DAY)
        self.theme = NIGHT.name

    @property
    def has_runs_screen(self) -> bool:
        return self._run is None

    def on_mount(self) -> None:
        if not self.is_headless:
            watch_terminal(self)
        if self._run is None:
            self.push_screen(RunsScreen(self.workspace))
        else:
            self.open_run(self._run)

    def open_run(self, folder: Path) -> None:
        self.push_screen(RunScreen(folder))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: themes, and every action of the screen that is possible now."""
        yield SystemCommand(
            "Theme", "choose colors (ansi-dark and ansi-light use the terminal's own)", self.search_themes
        )
        if not isinstance(screen, ConsoleScreen):
            return
        for action in keys.list_screen_actions(screen.NAME):
            method = action.method or action.id
            _, name, parameters = parse(method)
            if action.id in ("open", "command_palette") or not screen.check_action(name, parameters):
                continue
            yield SystemCommand(f"{action.label} ({action.key})", action.help, partial(screen.run_action, method))

    async def action_quit(self) -> None:
        self.exit()

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = [*super().get_line_filters(), VisibleText()]
        return [*filters, PlainText()] if self.options.ascii else filters

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """As Textual's, but nothing is read as markup: an error's text could name an action to be clicked."""
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def copy_to_clipboard(self, text: str) -> None:
        """As Textual's, without control characters: in a session's id they could end a terminal's paste mode, and what
        follows would run when it is pasted.
        """
        super().copy_to_clipboard(visible(text))

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        """The screen as SVG, with spaces that every viewer keeps."""
        svg = super().export_screenshot(title=title, simplify=simplify)
        return svg.replace("<text ", '<text xml:space="preserve" ')

    async def await_settled(self, limit_s: float = 30.0) -> None:
        """Return once the screen has loaded its content, or `limit_s` has passed."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            screen = self.screen
            if isinstance(screen, RunScreen) and not screen.busy:
                return
            if isinstance(screen, RunsScreen) and screen.entries is not None:
                return
            await asyncio.sleep(0.05)


def _choose_marker(options: Options) -> str:
    """Without color, letters distinguish the lines."""
    if options.ascii or os.environ.get("NO_COLOR"):
        return "letters"
    return "hd" if options.low_bandwidth else "braille"


def watch_terminal(app: TraconApp) -> None:
    """Exit on SIGHUP and SIGTERM and, where SIGHUP is ignored (nohup), as soon as the terminal is gone.

    A thread checks, because a terminal that no longer takes output stalls the event loop itself.
    """
    gone = threading.Event()
    code = [128 + signal.SIGHUP]

    def leave(signum: int, _frame: object) -> None:
        code[0] = 128 + signum
        gone.set()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, leave)
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_watch_terminal, args=(app, gone, code), name="terminal", daemon=True).start()


def _watch_terminal(app: TraconApp, gone: threading.Event, code: list[int]) -> None:
    while not gone.wait(1.0):
        if not _has_terminal():
            break
    app.call_later(app.exit, return_code=code[0])
    time.sleep(2.0)
    os._exit(code[0])  # the loop has not exited: it waits for the lost terminal


def _has_terminal() -> bool:
    try:
        termios.tcgetattr(0)
    except (termios.error, OSError):
        return False
    return True

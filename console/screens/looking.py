"""What screens that draw pictures of a run share: freezing them, the plots' time window, following what is new."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from console import feed
from console.feed import Picture
from console.panels.panel import Panel
from console.screens.base import ConsoleScreen
from console.series import WINDOWS_S, format_window
from console.widgets.table import Span


class LookingScreen(ConsoleScreen):
    """A screen about one run."""

    def __init__(self, folder: Path, picture: Picture) -> None:
        super().__init__()
        self._folder = folder
        self.picture = picture
        """The newest."""
        self._frozen: Picture | None = None

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def shown_picture(self) -> Picture:
        """The picture that panels show: the newest, or the frozen one."""
        return self._frozen or self.picture

    @abstractmethod
    def redraw(self) -> None:
        """Draw what is seen, after a change of what or how to draw."""

    def list_own_panels(self) -> Iterator[Panel]:
        yield from self.query(Panel)  # type: ignore[type-abstract]

    def make_frozen_badge(self) -> tuple[Span, ...]:
        """For the header: how much has happened since the picture was frozen."""
        if self._frozen is None:
            return ()
        return ((f"FROZEN  +{self.picture.view.last_seq - self._frozen.view.last_seq} events  ", "warn"),)

    def change_look(self, **changes: object) -> None:
        look = replace(self.tracon.look, **changes)  # type: ignore[arg-type]
        self.tracon.look = look
        for panel in self.list_own_panels():
            panel.look = look
        self.redraw()

    def action_freeze(self) -> None:
        self._frozen = None if self._frozen is not None else replace(self.picture, frozen_unix_s=feed.now_unix_s())
        self.redraw()

    def action_step_window(self, by: int) -> None:
        index = WINDOWS_S.index(self.tracon.look.window_s) + by
        self.change_look(window_s=WINDOWS_S[max(0, min(index, len(WINDOWS_S) - 1))])
        self.notify(format_window(self.tracon.look.window_s), timeout=1.5)

    def action_follow(self) -> None:
        self.change_look(follow=not self.tracon.look.follow)

"""The app as its screens know it: options, the operator's look, the last command, opening a run."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from textual.app import App

from console.panels.panel import Look
from state.workspace import Workspace, find_default_root


@dataclass(frozen=True, slots=True)
class Options:
    """How the console was started."""

    workspace: Path | None = None
    """None = the default one; the commands shown then do not name it."""
    read_only: bool = False
    low_bandwidth: bool = False
    ascii: bool = False

    @property
    def tick_s(self) -> float:
        """Seconds between two looks at the journal."""
        return 2.0 if self.low_bandwidth else 0.5


class Host(App[None]):
    def __init__(self, options: Options, look: Look) -> None:
        super().__init__()
        self.options = options
        self.look = look
        self.last_command: tuple[str, ...] = ()
        """The command line equivalent to the last action here."""

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.options.workspace or find_default_root())

    @property
    def workspace_words(self) -> tuple[str, ...]:
        """The options that name this workspace in a command line."""
        return () if self.options.workspace is None else ("--workspace", str(self.options.workspace))

    def workspace_of(self, folder: Path) -> Path | None:
        """The workspace a command line has to name for this run; None = the default one."""
        return None if folder.parent == find_default_root() else folder.parent

    @property
    @abstractmethod
    def has_runs_screen(self) -> bool:
        """There is a list of runs to go back to."""

    @abstractmethod
    def open_run(self, folder: Path) -> None:
        """Attach to a run."""

"""Resolve the arguments of commands to folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state.workspace import Workspace


def workspace_of(root: Path | None) -> Workspace:
    """The workspace at `root`; None = the user's default."""
    from state.workspace import Workspace, find_default_root

    return Workspace(root or find_default_root())


def find_artifacts_folder(run: str | None, workspace: Path | None) -> Path:
    """The run's folder; a copy that lost its state file can still be analyzed."""
    from results.records.layout import RunLayout

    if run and RunLayout(Path(run)).plan.is_file():
        return Path(run).resolve()
    return workspace_of(workspace).find(run)


def find_compared_folder(run: str, workspace: Path | None) -> Path:
    """As `find_artifacts_folder`, but also accepts a folder that `tracon export` wrote."""
    from results.records.layout import RunLayout

    return Path(run).resolve() if RunLayout(Path(run)).comparable.is_file() else find_artifacts_folder(run, workspace)

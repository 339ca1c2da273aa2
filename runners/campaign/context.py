"""What a cell runs with: folder, journal, engines, profile, configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.environment import Engine
from launch.profile import ConnectorConfig, Profile
from results.records.events import Event
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from runners.campaign.engine_launcher import Launcher
from runners.campaign.engine_slot import EngineSlot
from state.store import RunStore


@dataclass(frozen=True, slots=True)
class RunContext:
    """One per run process."""

    layout: RunLayout
    store: RunStore
    launcher: Launcher
    slot: EngineSlot
    engine: Engine
    profile: Profile
    configs: Mapping[str, ConnectorConfig]

    def emit(self, *events: Event) -> None:
        """Append to the journal."""
        self.store.append(*events)

    def attempt_folder(self, cell: CellPlan, attempt: int) -> Path:
        """A folder for what this attempt writes while it runs."""
        folder = self.layout.attempt(cell.cell, attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

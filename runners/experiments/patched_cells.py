"""Cells by kind, with the patches in the engine environment: what the cell runners of all three experiments share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import ClassVar

from launch.errors import LaunchError
from launch.patching import PatchUse
from results.records.errors import SpecError
from results.records.plan import CellPlan
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome, RunsAhead
from runners.errors import CellFailed, RunnerError
from runners.experiments.gates import explain_gated, verify_config
from state.model import RunView

RunCell = Callable[[CellPlan, int], Awaitable[CellOutcome]]


class PatchedCells:
    """Base of a cell runner. It measures nothing by itself."""

    removal: ClassVar[str]
    """Why engines stop before the patches are removed, for the journal."""
    analyzed: ClassVar[str] = "cells"
    """The part of the analysis whose length is in the cell's headline."""
    ahead: RunsAhead | None = None
    """As of `CellRunner`."""

    def __init__(self, context: RunContext, analyze: Callable[[Path], object], kinds: Mapping[str, RunCell]) -> None:
        """analyze: writes the results of the run's folder. kinds: the experiment's own kinds of cells."""
        self._context = context
        self._analyze_folder = analyze
        self._patches = PatchUse(context.engine)
        self._kinds = {
            "preflight": self._run_preflight,
            "revert": self._revert_patches,
            "analysis": self._run_analysis,
            **kinds,
        }

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        """A config that did not pass its pre-flight is not measured."""
        return explain_gated(cell, view)

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        try:
            return await self._kinds[cell.kind](cell, attempt)
        except (CellFailed, LaunchError, RunnerError, SpecError):
            await self._context.slot.release_dead()
            raise

    async def finish(self) -> None:
        """Remove the patches and analyze again: cells were measured after both had been done."""
        if any(self._needs_patches(config) for config in self._context.configs):
            await asyncio.to_thread(self._patches.revert)
        await asyncio.to_thread(self._analyze_folder, self._context.layout.root)

    async def release(self, reason: str) -> None:
        await self._context.slot.release(reason)

    async def _apply_patches(self, cell: CellPlan, attempt: int) -> CellOutcome:
        status = await asyncio.to_thread(self._patches.apply)
        return CellOutcome({"version": status.version, "reason": status.reason})

    async def _ensure_patches(self, config: str) -> None:
        """Apply the patches again: this run's analysis before a retry, or another run, may have removed them.

        Raises PatchFailed.
        """
        if self._needs_patches(config):
            await asyncio.to_thread(self._patches.apply)

    def _needs_patches(self, config: str) -> bool:
        return True

    async def _revert_patches(self, cell: CellPlan, attempt: int) -> CellOutcome:
        await self.release(self.removal)
        status = await asyncio.to_thread(self._patches.revert)
        return CellOutcome({"applied": status.applied, "reason": status.reason})

    async def _run_analysis(self, cell: CellPlan, attempt: int) -> CellOutcome:
        analysis = await asyncio.to_thread(self._analyze_folder, self._context.layout.root)
        return CellOutcome({name: len(getattr(analysis, name)) for name in (self.analyzed, "gaps")})

    async def _run_preflight(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """Launch the config and verify that it works on this host; where it does not, its later cells are skipped."""
        assert cell.config is not None
        await self._ensure_patches(cell.config)
        return await verify_config(cell, attempt, self._context)

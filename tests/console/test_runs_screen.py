"""The list of runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from console import format as say
from console.glyphs import UNICODE
from console.rows.runs import run_columns, run_rows
from console.screens.run import RunScreen
from console.screens.runs import RunsScreen
from console.widgets.table import Table, cell
from results.records.named_number import NOT_MEASURED
from state.workspace import RunEntry
from tests.console.conftest import NARROW, RUN, sees, shown, until, watching


async def test_every_run_is_listed_with_its_state_and_enter_attaches(live_run: Path) -> None:
    broken = live_run.parent / "20260101-000000-connector-tax-cpu-tiny"
    broken.mkdir()
    (broken / "state.sqlite").write_bytes(b"this is no database")
    async with watching(None, NARROW, workspace=live_run.parent) as pilot:
        await sees(pilot, RUN)
        row = next(line for line in shown(pilot.app) if RUN in line)
        assert "running" in row
        assert "live" in row
        await sees(pilot, "unreadable")
        pilot.app.screen.query_one(Table).move_to(str(live_run))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "not attached")
        await sees(pilot, "Phase A")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunsScreen), "not back")


async def test_an_unreadable_run_says_why_and_is_not_opened(tmp_path: Path) -> None:
    broken = tmp_path / RUN
    broken.mkdir()
    (broken / "state.sqlite").write_bytes(b"this is no database")
    async with watching(None, NARROW, workspace=tmp_path, notifications=True) as pilot:
        await sees(pilot, "unreadable")
        await pilot.press("enter")
        await sees(pilot, "cannot be read")
        assert isinstance(pilot.app.screen, RunsScreen)


@pytest.mark.parametrize("unix_s", [1e308, -1e18, float("inf"), float("nan")])
def test_a_run_with_an_impossible_date_is_listed_without_it(unix_s: float, tmp_path: Path) -> None:
    columns = run_columns(200)
    (row,) = run_rows((RunEntry(RUN, tmp_path, created_unix_s=unix_s),), UNICODE, columns)
    assert row.cells[[column.key for column in columns].index("created")] == cell(NOT_MEASURED, "dim")
    assert say.clock(unix_s) == NOT_MEASURED


async def test_a_run_whose_process_is_gone_is_marked(dead_run: Path) -> None:
    async with watching(None, NARROW, workspace=dead_run.parent) as pilot:
        await sees(pilot, "gone")


async def test_an_empty_workspace_says_how_to_begin(tmp_path: Path) -> None:
    async with watching(None, NARROW, workspace=tmp_path) as pilot:
        await sees(pilot, "no runs yet: n starts one")


async def test_new_runs_appear_by_themselves(ended_run: Path) -> None:
    other = ended_run.parent / RUN.replace("20260302", "20260303")
    async with watching(None, NARROW, workspace=ended_run.parent) as pilot:
        await sees(pilot, RUN)
        shutil.copytree(ended_run, other)
        await until(
            pilot, lambda: sum("cpu-tiny" in line for line in shown(pilot.app)) == 2, "the new run is not listed"
        )

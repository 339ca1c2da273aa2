"""What holds for every panel: rows that fit, ASCII that is ASCII, and a text where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from console.feed import Picture
from console.glyphs import UNICODE
from console.panels import instances, migrations, routing, stages
from console.panels.steps import explain_no_steps
from console.rows import instance_loads, waterfall
from console.widgets.table import Column, Row
from results.records.events import CellState, RunState
from results.records.plan import CellPlan
from state.model import CellView, RunRow, RunView
from tests.console.conftest import NARROW, picture_of, press_and_see, shown, watching

Laid = tuple[Sequence[Column], Sequence[Row]]
LEAST = 79
"""Columns of the narrowest table: screens have at least 80."""


def lay_out_stages(picture: Picture, width: int) -> Laid:
    columns = stages.choose_stage_columns(width)
    return columns, stages.stage_rows(picture, frozenset(), UNICODE, columns, width)


def lay_out_instances(picture: Picture, width: int) -> Laid:
    columns = instances.choose_instance_columns(width)
    return columns, instances.instance_rows(picture, UNICODE, columns)


def lay_out_loads(picture: Picture, width: int) -> Laid:
    assert picture.view.routing is not None
    columns = instance_loads.load_columns(width, timed=width % 2 == 0)
    return columns, instance_loads.load_rows(picture, picture.view.routing, UNICODE, columns)


def lay_out_decisions(picture: Picture, width: int) -> Laid:
    assert picture.view.routing is not None
    columns = routing.choose_decision_columns(width)
    return columns, routing.make_decision_rows(picture, picture.view.routing, columns)


def lay_out_migrations(picture: Picture, width: int) -> Laid:
    columns = migrations.choose_migration_columns(width)
    return columns, migrations.make_migration_rows(picture, "trials/ear/t0", columns, UNICODE)


def lay_out_requests(picture: Picture, width: int) -> Laid:
    assert picture.view.lifecycle is not None
    columns = waterfall.choose_waterfall_columns(width)
    requests = waterfall.list_latest_requests(picture.view.lifecycle)
    assert len(requests) == min(waterfall.SHOWN, len(picture.view.lifecycle.requests))
    return columns, waterfall.make_waterfall_rows(requests, columns, width, UNICODE, "letters")


@pytest.mark.parametrize("width", [LEAST, 100, 109, 110, 119, 200])
@pytest.mark.parametrize(
    ("run", "lay_out"),
    [
        ("middle", lay_out_stages),
        ("middle", lay_out_instances),
        ("routing", lay_out_loads),
        ("routing", lay_out_decisions),
        ("routed", lay_out_migrations),
        ("measured", lay_out_requests),
    ],
)
def test_columns_fit_and_every_row_fills_them(
    made: Callable[[str], Path], run: str, lay_out: Callable[[Picture, int], Laid], width: int
) -> None:
    columns, rows = lay_out(picture_of(made(run)), width)
    assert sum(column.width + 1 for column in columns) - 1 <= width
    assert rows
    assert all(len(row.cells) == len(columns) for row in rows)
    assert len({row.key for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("run", "key", "parts"),
    [
        ("live_run", "1", ["> running"]),
        ("live_routing", "7", ["PP", "! hot"]),
        ("live_migrating", "8", ["from > to"]),
        ("live_lifecycle", "9", ["p prefill", "pppp"]),
    ],
)
async def test_in_ascii_nothing_else_is_shown(
    request: pytest.FixtureRequest, run: str, key: str, parts: list[str]
) -> None:
    async with watching(request.getfixturevalue(run), NARROW, ascii=True) as pilot:
        await press_and_see(pilot, key, *parts)
        screen = "\n".join(shown(pilot.app))
    assert screen.isascii(), {character for character in screen if not character.isascii()}


@pytest.mark.parametrize(
    ("key", "title", "why"),
    [
        ("7", "Routing", "no request of this run goes through a router"),
        ("8", "Migrations", "no request of this run goes through a router"),
        ("9", "Lifecycle", "no request of this run has been broken down"),
    ],
)
async def test_a_run_without_what_a_panel_shows_says_so(live_run: Path, key: str, title: str, why: str) -> None:
    async with watching(live_run, NARROW) as pilot:
        await press_and_see(pilot, "1", "1 Stages")
        assert title not in "\n".join(shown(pilot.app)), "no tab for what the run does not have"
        await press_and_see(pilot, key, why, f"{key} {title}")


PROBE = CellPlan("preflight/probe", "preflight", "probe", None, "apply the step probe", {}, 1.0)
TIMED: dict[str, object] = {"step_timing_available": True, "reason": ""}
UNTIMED: dict[str, object] = {"step_timing_available": False, "reason": "vLLM 0.12"}


def probed(
    state: CellState,
    reason: str = "",
    summary: dict[str, object] | None = None,
    experiment: str = "connector-tax",
) -> RunView:
    """A run whose probe has come this far."""
    cell = CellView(PROBE.cell, PROBE, state, reason=reason, summary=summary or {})
    return RunView(plan=replace(RunView().plan, experiment=experiment), cells={PROBE.cell: cell})


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (RunView(), "no step timing yet: the step probe is not applied"),
        (probed(CellState.PENDING), "no step timing yet: the step probe is not applied"),
        (probed(CellState.DONE, summary=TIMED), "no step timing yet: no engine has reported a step"),
        (
            replace(probed(CellState.DONE, summary=TIMED), row=RunRow(RunState.DONE)),
            "no step timing: no engine has reported a step",
        ),
        (probed(CellState.DONE, summary=UNTIMED), "no step timing: vLLM 0.12"),
        (probed(CellState.SKIPPED, "by the operator"), "no step timing: by the operator"),
        (probed(CellState.PENDING, experiment="pd-lifecycle"), "a pd-lifecycle run does not time engine steps"),
    ],
    ids=["no plan", "pending", "available", "none reported", "unavailable", "skipped", "a probe of transfers"],
)
def test_steps_that_are_not_shown_have_a_reason(view: RunView, why: str) -> None:
    assert explain_no_steps(view) == why


@pytest.mark.parametrize(("which", "experiment"), [("routed", "routing"), ("measured", "pd-lifecycle")])
async def test_a_run_that_never_times_steps_says_so(made: Callable[[str], Path], which: str, experiment: str) -> None:
    async with watching(made(which), NARROW) as pilot:
        await press_and_see(pilot, "4", f"a {experiment} run does not time engine steps")

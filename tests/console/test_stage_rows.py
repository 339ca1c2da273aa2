"""The stage tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from console.feed import Picture
from console.glyphs import UNICODE
from console.panels.stages import choose_stage_columns, shorten_label, stage_rows
from console.widgets.table import Row
from results.records.events import CellChanged, CellState, RunChanged, RunState, StageChanged, StageState
from results.records.plan import CellPlan, RunPlan, StagePlan
from runners.cli.tables import make_status_tables
from state.lease import LeaseState
from state.status import to_json
from state.store import RunStore
from tests.console import demo


def text(row: Row) -> str:
    return " ".join("".join(part for part, _ in content) for content in row.cells)


def rows(folder: Path, plan: RunPlan, folded: frozenset[str] = frozenset(), width: int = 78) -> tuple[Row, ...]:
    with RunStore.create(folder, "r", plan, "0") as store:
        picture = Picture(store.view(), loading=False)
    return stage_rows(picture, folded, UNICODE, choose_stage_columns(width), width)


def test_cells_stand_under_their_config_and_stage(tmp_path: Path) -> None:
    tree = rows(tmp_path, demo.plan())
    keys = [row.key for row in tree]
    start = keys.index("stage:phase-a")
    assert keys[start + 1].startswith("config:plain:phase-a")
    assert keys[start + 2 : start + 7] == [f"cell:phase-a/plain/r{rate}" for rate in demo.RATES]
    assert "20" in text(tree[start])
    assert "0/5" in text(tree[start + 1])


def test_one_cell_per_config_needs_no_level_of_its_own(tmp_path: Path) -> None:
    keys = [row.key for row in rows(tmp_path, demo.plan())]
    preflight = keys[1 : keys.index("stage:phase-a")]
    assert all(key.startswith("cell:preflight/") for key in preflight)


def test_a_folded_stage_hides_its_cells(tmp_path: Path) -> None:
    keys = [row.key for row in rows(tmp_path, demo.plan(), frozenset({"phase-a"}))]
    assert "stage:phase-a" in keys
    assert not any("phase-a/" in key for key in keys)


def test_the_stage_of_an_interrupted_run_is_interrupted_until_the_run_goes_on(tmp_path: Path) -> None:
    begun = [RunChanged(RunState.RUNNING), StageChanged("preflight", StageState.RUNNING)]
    cut = RunChanged(RunState.INTERRUPTED, "stopped by the operator")
    shown = []
    with RunStore.create(tmp_path, "r", demo.plan(), "0") as store:
        for events in (begun, [cut], [RunChanged(RunState.RUNNING)]):
            store.append(*events)
            view = store.view()
            drawn = text(stage_rows(Picture(view), frozenset(), UNICODE, choose_stage_columns(78), 78)[0])
            terminal = Console(width=120)
            with terminal.capture() as printed:
                terminal.print(make_status_tables(view, LeaseState("none"), 0.0))
            row = next(line for line in printed.get().splitlines() if "Pre-flight" in line)
            shown.append([state for state in ("running", "interrupted") if state in drawn and state in row])
            assert [stage["state"] for stage in to_json(view, 0.0)["stages"]][:2] == [*shown[-1], "pending"]
        assert not store.find_problems()
    assert shown == [["running"], ["interrupted"], ["running"]]


def test_repeated_trials_are_drawn_phases(tmp_path: Path) -> None:
    cells = tuple(
        CellPlan(f"a/{config}/r{rate}/t{trial}", "a", "load", config, f"{rate} req/s", {}, 1.0, trial)
        for trial, order in enumerate((("plain", "nixl_both"), ("nixl_both", "plain")))
        for config in order
        for rate in (2, 4)
    )
    plan = replace(demo.plan(), stages=(StagePlan("a", "A"),), cells=cells)
    heads = [row for row in rows(tmp_path, plan) if row.key.startswith("config:")]
    names = ["".join(part for part, _ in row.cells[1]) for row in heads]
    assert names == ["plain  trial 0", "nixl_both  trial 0", "nixl_both  trial 1", "plain  trial 1"]
    assert len({row.key for row in heads}) == 4


@pytest.mark.parametrize(("summary", "whole"), [({}, True), ({"ttft_p90_s": None}, False)])
def test_a_cell_without_any_of_the_numbers_shows_its_whole_label(
    tmp_path: Path, summary: dict[str, object], whole: bool
) -> None:
    cell = CellPlan("a/x", "a", "load", "x", "C 8192  N 16384  O 32", {}, 1.0)
    plan = replace(demo.plan(), stages=(StagePlan("a", "A"),), cells=(cell, replace(cell, cell="a/y")))
    with RunStore.create(tmp_path / "r", "r", plan, "0") as store:
        store.append(CellChanged("a/x", CellState.RUNNING, 1), CellChanged("a/x", CellState.DONE, 1, summary=summary))
        picture = Picture(store.view(), loading=False)
    tree = stage_rows(picture, frozenset(), UNICODE, choose_stage_columns(39), 39)
    row = next(row for row in tree if row.key == "cell:a/x")
    assert (cell.label in text(row)) is whole
    assert ("–" in text(row)) is not whole


def test_cells_that_differ_by_their_load_alone_are_told_apart_where_it_is_narrow() -> None:
    labels = [f"EAR, KV not moved time_scale={load}" for load in ("0.0154", "0.02", "0.0333")]
    short = [shorten_label(label, 13) for label in labels]
    assert len(set(short)) == 3
    assert all(len(label) == 13 and label.startswith("EAR, ") for label in short)
    assert shorten_label("sticky", 13) == "sticky"
    assert shorten_label(labels[0], 5) == labels[0], "no room for both ends: the table cuts it"

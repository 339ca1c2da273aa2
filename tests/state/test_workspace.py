from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from results.records.events import CellChanged, CellProgressed, CellState, RunChanged, RunState
from state.errors import RunNotFound, StoreUnusable
from state.lease import acquire
from state.store import STATE_FILE, RunStore
from state.view import progress
from state.workspace import Workspace, find_default_root
from tests.state.plans import CELLS, Clock, a_plan, a_run

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def runs_in(root: Path, *names: str) -> Workspace:
    for number, name in enumerate(names):
        RunStore.create(root / name, name, a_plan(), "0.1.0", clock=Clock(1_000.0 + number)).close()
    return Workspace(root)


def test_a_run_folder_is_named_after_when_and_what(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "not" / "yet")
    first = workspace.create_folder("connector-tax", "cpu-tiny", NOON)
    assert first.name == "20260102-120000-connector-tax-cpu-tiny"
    assert workspace.create_folder("connector-tax", "cpu-tiny", NOON).name == f"{first.name}-2"
    assert workspace.create_folder("connector-tax", "cpu-tiny", NOON).name == f"{first.name}-3"
    assert first.parent == workspace.create_folder("a/../b", "/my/profile.toml", NOON).parent


def test_a_workspace_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    workspace = Workspace(tmp_path / "file")
    for use in (workspace.runs, lambda: workspace.create_folder("connector-tax", "cpu-tiny", NOON)):
        with pytest.raises(StoreUnusable, match="file") as refused:
            use()
        assert "--workspace" in refused.value.remedy


def test_runs_are_listed_newest_first_from_their_rows(tmp_path: Path) -> None:
    workspace = runs_in(tmp_path, "20260101-120000-a-x", "20260101-130000-b-x")
    with RunStore.open(tmp_path / "20260101-130000-b-x") as store, acquire(store):
        store.append(RunChanged(RunState.RUNNING), CellChanged(CELLS[0].cell, CellState.RUNNING, 1))
        store.append(CellChanged(CELLS[0].cell, CellState.DONE, 1), CellChanged(CELLS[2].cell, CellState.RUNNING, 1))
        store.append(CellProgressed(CELLS[2].cell, 0.5))
        newest, oldest = workspace.runs()
        assert (newest.run, newest.state, newest.lease.live) == ("20260101-130000-b-x", RunState.RUNNING, True)
        assert newest.progress == progress(store.view())
        assert not newest.orphaned
    assert (oldest.run, oldest.state, oldest.lease.state) == ("20260101-120000-a-x", RunState.PLANNED, "none")
    assert (oldest.experiment, oldest.profile, oldest.preset) == ("connector-tax", "cpu-tiny", "demo")
    assert workspace.runs()[0].orphaned  # it says that it runs, and its process let go


def test_the_newest_runs_are_listed_by_name(tmp_path: Path) -> None:
    workspace = runs_in(tmp_path, "20260102-120000-a-x", "mine", "20260101-130000-b-x", "20260103-120000-c-x")
    assert [folder.name[:8] for folder in workspace.list_newest(2)] == ["20260103", "20260102"]
    assert len(workspace.list_newest(9)) == 3
    assert Workspace(tmp_path / "nowhere").list_newest(2) == []


def test_a_broken_folder_is_listed_with_its_problem_and_hides_no_other(tmp_path: Path) -> None:
    workspace = runs_in(tmp_path, "20260101-120000-a-x", "20260101-130000-b-x")
    (tmp_path / "20260101-130000-b-x" / STATE_FILE).write_bytes(b"not a database, whatever its name says" * 40)
    (tmp_path / "20260101-140000-c-x").mkdir()
    (tmp_path / "something-else").mkdir()
    entries = {entry.run: entry for entry in workspace.runs()}
    assert set(entries) == {"20260101-120000-a-x", "20260101-130000-b-x", "20260101-140000-c-x"}
    assert entries["20260101-120000-a-x"].problem == ""
    assert "damaged" in entries["20260101-130000-b-x"].problem
    assert "holds no run" in entries["20260101-140000-c-x"].problem
    assert workspace.find().name == "20260101-120000-a-x"


LISTED = ("run", "cells", "lease", "journal", "meta")
"""The tables that the list of runs reads."""


@pytest.mark.parametrize("value", ["text", b"\xff", -1, 1e308], ids=repr)
def test_a_value_of_another_type_is_a_problem_of_its_run_alone(value: object, tmp_path: Path) -> None:
    """Whatever one column of a run holds, all runs are listed."""
    damaged, whole = "20260101-120000-a-x", "20260101-130000-b-x"
    workspace = runs_in(tmp_path, damaged, whole)
    path = tmp_path / damaged / STATE_FILE
    with RunStore.open(path.parent) as store:
        acquire(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        columns = [(table, row[1]) for table in LISTED for row in connection.execute(f"PRAGMA table_info({table})")]
    saved, problems = path.read_bytes(), {}
    for table, column in columns:
        path.write_bytes(saved)
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.IntegrityError):
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
            connection.commit()
        entries = {entry.folder.name: entry for entry in workspace.runs()}
        assert set(entries) == {damaged, whole}
        assert entries[whole].problem == ""
        problems[table, column] = entries[damaged].problem
    assert all(STATE_FILE in problem for problem in problems.values() if problem)
    if isinstance(value, str | bytes):
        typed = (("run", "state"), ("run", "created_unix_s"), ("cells", "fraction"), ("lease", "pid"))
        assert all("damaged" in problems[where] for where in typed)


def test_a_run_is_found_by_id_prefix_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = "20260101-120000-a-x", "20260101-120000-a-x-2"
    workspace = runs_in(tmp_path / "space", a, b)
    elsewhere = tmp_path / "copied"
    a_run(elsewhere).close()
    assert workspace.find(a).name == a  # an id, though it begins another
    assert workspace.find("20260101-120000-a-x-").name == b
    assert workspace.find(elsewhere) == elsewhere
    assert workspace.find(str(elsewhere / STATE_FILE)) == elsewhere
    assert workspace.find().name == b
    monkeypatch.chdir(tmp_path)
    assert workspace.find("copied").resolve() == elsewhere
    assert workspace.find("./copied").resolve() == elsewhere
    monkeypatch.chdir(elsewhere)
    assert workspace.find(".").resolve() == elsewhere


def test_a_name_that_fits_several_runs_lists_them(tmp_path: Path) -> None:
    workspace = runs_in(tmp_path, "20260101-120000-a-x", "20260101-130000-b-x")
    with pytest.raises(RunNotFound, match="2 runs begin with '2026'") as refused:
        workspace.find("2026")
    assert "20260101-120000-a-x" in str(refused.value)


def test_a_name_that_fits_none_gets_the_nearest(tmp_path: Path) -> None:
    workspace = runs_in(tmp_path, "20260101-120000-connector-tax-cpu-tiny")
    with pytest.raises(RunNotFound) as refused:
        workspace.find("20260101-120001-connector-tax-cpu-tiny")
    assert "20260101-120000-connector-tax-cpu-tiny" in refused.value.remedy
    assert refused.value.exit_code == 2
    with pytest.raises(RunNotFound) as refused:
        workspace.find("zzz")
    assert "tracon list" in refused.value.remedy


def test_an_empty_workspace_says_how_to_fill_it(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "nowhere")
    assert workspace.runs() == ()
    with pytest.raises(RunNotFound, match="no run in") as refused:
        workspace.find()
    assert "tracon run" in refused.value.remedy


def test_the_environment_names_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_WORKSPACE", str(tmp_path))
    assert find_default_root() == tmp_path
    monkeypatch.delenv("TRACON_WORKSPACE")
    assert find_default_root().name == "tracon"

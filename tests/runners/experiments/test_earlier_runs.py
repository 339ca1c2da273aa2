"""Which earlier run of a workspace a plan learns from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from results.records.events import RunChanged, RunState
from results.records.layout import read_json
from runners.campaign.experiment import RunOptions
from runners.experiments.earlier_runs import find_newest
from state.store import RunStore
from state.workspace import RunEntry, Workspace
from tests.runners.prepared import prepare

PLAN = prepare(RunOptions("pd-lifecycle", preset="smoke")).plan
RUNS = (
    ("20260101-000000-old", PLAN, RunState.FAILED),
    ("20260102-000000-new", PLAN, RunState.DONE),
    ("20260103-000000-mute", PLAN, RunState.DONE),
    ("20260104-000000-cut", PLAN, RunState.INTERRUPTED),
    ("20260105-000000-elsewhere", replace(PLAN, profile="another"), RunState.DONE),
    ("20260106-000000-other", replace(PLAN, experiment="routing"), RunState.DONE),
)


class _Document(msgspec.Struct):
    sigma: float


def test_the_newest_finished_run_of_the_same_kind_that_tells_is_the_one(tmp_path: Path) -> None:
    for name, plan, state in RUNS:
        with RunStore.create(tmp_path / name, name, plan, "test") as store:
            store.append(RunChanged(RunState.RUNNING), RunChanged(state))
    asked: list[str] = []

    def read_run(run: RunEntry) -> str | None:
        asked.append(run.run)
        return None if run.run.endswith("mute") else run.run

    assert find_newest(PLAN, Workspace(tmp_path), read_run) == "20260102-000000-new"
    assert asked == ["20260103-000000-mute", "20260102-000000-new"]


def test_a_document_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    assert read_json(path, _Document) is None
    contents = {b"{": None, b'{"sigma": "high"}': None, b'{"sigma": 0.5, "more": 1}': _Document(0.5)}
    for content, expected in contents.items():
        path.write_bytes(content)
        assert read_json(path, _Document) == expected

"""Does a run's file agree with itself? Asked of copies taken from under a running run, and by fault tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, Protocol

from state.errors import StateError
from state.model import InstanceRow, InstanceView, RunView, StageRow, StageView


class Rows(Protocol):
    """What is read of a store."""

    def snapshot(self) -> AbstractContextManager[None]: ...
    def read(self, sql: str) -> Sequence[Sequence[Any]]: ...
    def view(self) -> RunView: ...
    def run_row(self) -> object: ...
    def stage_rows(self) -> object: ...
    def cell_rows(self) -> object: ...
    def instance_rows(self, *, ended: bool) -> object: ...
    def request_rows(self) -> object: ...


def problems(store: Rows) -> tuple[str, ...]:
    """What is wrong with the file, one line each; empty when the journal is whole and every row equals its fold.

    Reads the whole file as it is at one moment.
    """
    try:
        with store.snapshot():
            messages = (str(row[0]) for row in store.read("PRAGMA integrity_check(3)"))
            broken = [" ".join(text.split()) for text in messages if text != "ok"]
            return (*broken, *_differences(store, store.view()))
    except StateError as error:
        return (str(error),)


def _differences(store: Rows, view: RunView) -> Iterator[str]:
    pairs: tuple[tuple[str, object, object], ...] = (
        ("run", store.run_row(), view.row),
        ("stages", store.stage_rows(), tuple(_stage(stage) for stage in view.stages)),
        ("cells", store.cell_rows(), tuple(view.cells.values())),
        ("instances", store.instance_rows(ended=True), tuple(_instance(each) for each in view.instances.values())),
        ("requests", store.request_rows(), tuple(view.requests.values())),
    )
    for name, rows, folded in pairs:
        if rows != folded:
            yield f"the rows of {name} are not what the journal says"


def _stage(stage: StageView) -> StageRow:
    return StageRow(**{f.name: getattr(stage, f.name) for f in fields(StageRow)})


def _instance(instance: InstanceView) -> InstanceRow:
    return InstanceRow(**{f.name: getattr(instance, f.name) for f in fields(InstanceRow)})

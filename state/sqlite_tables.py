"""The current rows in SQLite: what each event does to them, and how they are read back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgspec

from results.records import events
from results.records.errors import DAMAGED_JSON
from results.records.events import CellState
from results.records.plan import CellPlan, RunPlan
from state.changes import (
    change_cell,
    change_instance,
    change_run,
    change_run_owner,
    change_stage,
    compute_active_s,
    explain_illegal_cell,
    explain_illegal_instance,
    explain_illegal_run,
    explain_illegal_stage,
    make_submitted_request,
    note_answered_request,
    note_cell_progress,
)
from state.errors import IllegalTransition
from state.events import Recorded
from state.model import AttemptView, CellView, InstanceRow, RequestView, RunRow, StageRow

_Row = TypeVar("_Row")


class Tables:
    """The current rows over one connection; `apply` is called inside the transaction that writes the event."""

    def __init__(self, connection: sqlite3.Connection, plan: Callable[[], RunPlan]) -> None:
        self._connection = connection
        self._plan = plan
        self._cell_plans: Mapping[str, CellPlan] | None = None

    def apply(self, recorded: Recorded, previous_t_unix_s: float) -> None:
        """Apply the event to the rows. Raises IllegalTransition where it is not allowed."""
        match recorded.event:
            case events.RunPlanned() as event:
                self._save_plan(event, recorded)
            case events.RunChanged() | events.RunTaken() as event:
                self._change_run(event, recorded, previous_t_unix_s)
            case events.StageChanged() as event:
                self._change_stage(event, recorded.t_unix_s)
            case events.CellChanged() as event:
                self._change_cell(event, recorded.t_unix_s)
            case events.InstanceChanged() as event:
                self._change_instance(event, recorded)
            case events.InstanceSampled() as event:
                self._require_instance(event.instance)
            case events.CellProgressed() as event:
                self._change_progress(event)
            case events.RouterSampled() | events.MigrationChanged() | events.LifecycleMeasured() as event:
                self.cell(event.cell)  # no row keeps it; a cell that the plan does not have is refused
            case events.RequestSubmitted() | events.RequestAnswered() as event:
                self._save_row("requests", asdict(self._change_request(event, recorded)))

    def run(self) -> RunRow:
        row = self._select_one("SELECT * FROM run")
        if row is None:
            raise IllegalTransition("the run has no plan", remedy="write its plan first")
        return _read_row(row, RunRow)

    def stages(self) -> tuple[StageRow, ...]:
        """All stages in the plan's order."""
        return tuple(_read_row(row, StageRow) for row in self._select_all("SELECT * FROM stages ORDER BY ordinal"))

    def cells(self) -> tuple[CellView, ...]:
        """All cells in the plan's order."""
        attempts: dict[str, list[AttemptView]] = {}
        for row in self._select_all("SELECT * FROM attempts ORDER BY cell, attempt"):
            attempts.setdefault(row["cell"], []).append(_read_row(row, AttemptView))
        rows = self._select_all(f"SELECT {_CELL_NAMES} FROM cells ORDER BY ordinal")
        return tuple(self._read_cell(row, tuple(attempts.get(row["cell"], ()))) for row in rows)

    def instances(self) -> tuple[InstanceRow, ...]:
        """All instances in the order they were started, ended ones too."""
        return tuple(
            _read_row(row, InstanceRow) for row in self._select_all("SELECT * FROM instances ORDER BY ordinal")
        )

    def requests(self) -> tuple[RequestView, ...]:
        """All requests in the order they came."""
        return tuple(
            _read_row(row, RequestView) for row in self._select_all("SELECT * FROM requests ORDER BY submitted_seq")
        )

    def cell(self, cell: str) -> CellView:
        """One cell. Raises IllegalTransition where the plan has none of that name."""
        row = self._select_one(f"SELECT {_CELL_NAMES} FROM cells WHERE cell = ?", cell)
        if row is None:
            raise IllegalTransition(f"the plan has no cell {cell!r}", remedy="use a cell of the run's plan")
        attempts = self._select_all("SELECT * FROM attempts WHERE cell = ? ORDER BY attempt", cell)
        return self._read_cell(row, tuple(_read_row(attempt, AttemptView) for attempt in attempts))

    def _read_cell(self, row: Mapping[str, Any], attempts: tuple[AttemptView, ...]) -> CellView:
        """Raises msgspec.ValidationError for a damaged row."""
        if self._cell_plans is None:
            self._cell_plans = {cell.cell: cell for cell in self._plan().cells}
        values = dict(row)
        name = values["cell"]
        try:
            values["state"] = CellState(values["state"])
            values["summary"] = msgspec.json.decode(values["summary"])
            return CellView(**values, plan=self._cell_plans[name], attempts=attempts)
        except KeyError as error:
            raise msgspec.ValidationError(f"the row of cell {name!r} is not of the plan") from error
        except (ValueError, TypeError, *DAMAGED_JSON) as error:
            raise msgspec.ValidationError(f"the row of cell {name!r} cannot be read: {error}") from error

    def _save_plan(self, event: events.RunPlanned, recorded: Recorded) -> None:
        if self._select_one("SELECT id FROM run") is not None:
            raise IllegalTransition("the run already has a plan", remedy="a new plan is a new run")
        plan = event.plan
        identity = {"id": 1, "run": event.run, "experiment": plan.experiment, "profile": plan.profile}
        identity |= {"preset": plan.preset, "tracon_version": event.tracon_version}
        row = RunRow(created_unix_s=recorded.t_unix_s, changed_seq=recorded.seq)
        self._save_row("run", {**identity, **asdict(row)})
        for ordinal, stage in enumerate(plan.stages):
            self._save_row("stages", {**asdict(StageRow(stage.stage)), "ordinal": ordinal})
        for ordinal, cell in enumerate(plan.cells):
            planned = {"ordinal": ordinal, "stage": cell.stage, "config": cell.config, "estimated_s": cell.estimated_s}
            self._save_row("cells", {**_make_cell_values(CellView(cell.cell, cell)), **planned})

    def _change_run(
        self, event: events.RunChanged | events.RunTaken, recorded: Recorded, previous_t_unix_s: float
    ) -> None:
        run = self.run()
        if isinstance(event, events.RunTaken):
            after = change_run_owner(run, event)
        else:
            _refuse_change(explain_illegal_run(run, event))
            after = change_run(run, event, recorded.t_unix_s, previous_t_unix_s, recorded.seq)
        self._update_row("run", "id", 1, asdict(after))

    def _change_stage(self, event: events.StageChanged, t_unix_s: float) -> None:
        row = self._select_one("SELECT * FROM stages WHERE stage = ?", event.stage)
        if row is None:
            raise IllegalTransition(f"the plan has no stage {event.stage!r}", remedy="use a stage of the run's plan")
        stage = _read_row(row, StageRow)
        _refuse_change(explain_illegal_stage(stage, event))
        self._update_row("stages", "stage", stage.stage, asdict(change_stage(stage, event, t_unix_s)))

    def _change_cell(self, event: events.CellChanged, t_unix_s: float) -> None:
        cell = self.cell(event.cell)
        _refuse_change(explain_illegal_cell(cell, event))
        after = change_cell(cell, event, t_unix_s, compute_active_s(self.run(), t_unix_s))
        self._update_row("cells", "cell", cell.cell, _make_cell_values(after))
        if after.attempts != cell.attempts:
            self._save_row("attempts", {"cell": cell.cell, **asdict(after.attempts[-1])})

    def _change_progress(self, event: events.CellProgressed) -> None:
        cell = self.cell(event.cell)
        after = note_cell_progress(cell, event)
        if after is not cell:
            self._update_row("cells", "cell", cell.cell, {"fraction": after.fraction, "note": after.note})

    def _change_instance(self, event: events.InstanceChanged, recorded: Recorded) -> None:
        row = self._select_one("SELECT * FROM instances WHERE instance = ?", event.instance)
        before = None if row is None else _read_row(row, InstanceRow)
        _refuse_change(explain_illegal_instance(before, event))
        new = InstanceRow(event.instance, event.config, event.state, started_unix_s=recorded.t_unix_s)
        after = asdict(change_instance(before or new, event, recorded.t_unix_s))
        if before is None:
            self._save_row("instances", {**after, "ordinal": recorded.seq})
        else:
            self._update_row("instances", "instance", event.instance, after)

    def _require_instance(self, instance: str) -> None:
        if self._select_one("SELECT 1 FROM instances WHERE instance = ?", instance) is None:
            message = f"a sample of an instance that never started: {instance!r}"
            raise IllegalTransition(message, remedy="record the instance as STARTING before it is used")

    def _change_request(
        self, event: events.RequestSubmitted | events.RequestAnswered, recorded: Recorded
    ) -> RequestView:
        row = self._select_one("SELECT * FROM requests WHERE request = ?", event.request)
        if isinstance(event, events.RequestSubmitted):
            if row is not None:
                raise IllegalTransition(f"request {event.request} exists already", remedy="take the next number")
            return make_submitted_request(event, recorded.t_unix_s, recorded.seq)
        if row is None or row["accepted"] is not None:
            what = "does not exist" if row is None else "is answered already"
            raise IllegalTransition(f"request {event.request} {what}", remedy="answer an open request")
        return note_answered_request(_read_row(row, RequestView), event, recorded.t_unix_s)

    def _select_one(self, sql: str, *values: object) -> dict[str, Any] | None:
        rows = self._select_all(sql, *values)
        return rows[0] if rows else None

    def _select_all(self, sql: str, *values: object) -> list[dict[str, Any]]:
        cursor = self._connection.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _save_row(self, table: str, values: Mapping[str, Any]) -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self._connection.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def _update_row(self, table: str, key: str, value: object, values: Mapping[str, Any]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(f"UPDATE {table} SET {assignments} WHERE {key} = ?", (*values.values(), value))


_CELL_COLUMNS = tuple(f.name for f in fields(CellView) if f.name not in ("plan", "attempts"))
_CELL_NAMES = ", ".join(_CELL_COLUMNS)


def _make_cell_values(cell: CellView) -> dict[str, Any]:
    values = {name: getattr(cell, name) for name in _CELL_COLUMNS}
    values["summary"] = msgspec.json.encode(cell.summary).decode()
    return values


def _read_row(row: Mapping[str, Any], kind: type[_Row]) -> _Row:
    """The row as `kind`; columns that are no fields of it are left out."""
    return msgspec.convert(row, kind, strict=False)  # SQLite has no truth values


def _refuse_change(change: str) -> None:
    if change:
        remedy = "`tracon status RUN` shows the state of each part of the run; finished cells are final"
        raise IllegalTransition(f"not allowed: {change}", remedy=remedy)

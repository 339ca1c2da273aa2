"""The trace of a run: the same file every time, no turn that no engine could take, and a change of it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.layout import RunLayout
from runners.errors import CellFailed
from runners.experiments.routing_grid import TraceChoice
from runners.experiments.routing_trace import prepare_trace, read_record, trace_path


def test_the_generated_trace_is_the_same_every_time_and_changed_ones_are_noticed(tmp_path: Path) -> None:
    choice = TraceChoice(sessions=4, seed=5, tokens=1 / 64)
    first = prepare_trace(choice, 4096, RunLayout(tmp_path / "one"))
    again = prepare_trace(choice, 4096, RunLayout(tmp_path / "two"))
    assert first == again
    assert first.sessions == 4
    assert first.requests > 4
    assert read_record(RunLayout(tmp_path / "one")) == first
    with trace_path(RunLayout(tmp_path / "one")).open("ab") as file:
        file.write(b"\n")
    assert read_record(RunLayout(tmp_path / "one")) is None


def test_a_trace_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match=r"trace\.tokens"):
        prepare_trace(TraceChoice(sessions=2, seed=5), 16, RunLayout(tmp_path))

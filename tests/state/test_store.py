from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    Noted,
    RequestAnswered,
    RequestSubmitted,
    RunPlanned,
)
from state.errors import IllegalTransition, StoreUnusable
from state.events import Recorded
from state.model import RunView
from state.store import STATE_FILE, RunStore
from state.view import fold
from tests.examples import examples
from tests.state.plans import CELLS, a_plan, a_run
from tests.state.strategies import run_events

CELL = CELLS[0].cell


class Journal(RuleBasedStateMachine):
    """Whatever is appended, from whichever of two handles, the rows are the fold of the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = [a_run(self.folder / "run")]
        self.stores.append(RunStore.open(self.folder / "run", clock=self.stores[0]._clock))
        self.view: RunView = self.stores[0].view()
        self.done: dict[str, object] = {}

    @rule(events=st.lists(run_events, min_size=1, max_size=3), writer=st.integers(0, 1))
    def append(self, events: list[Event], writer: int) -> None:
        before = list(self.stores[writer].events())
        try:
            recorded = self.stores[writer].append(*events)
        except IllegalTransition:
            assert list(self.stores[1 - writer].events()) == before
            return
        assert list(self.stores[1 - writer].events(after=len(before))) == list(recorded)
        for each in recorded:
            self.view = fold(self.view, each)

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        clock = self.stores[writer]._clock
        self.stores[writer].close()
        self.stores[writer] = RunStore.open(self.folder / "run", clock=clock)

    @invariant()
    def the_file_agrees_with_itself(self) -> None:
        assert self.stores[0].find_problems() == ()

    @invariant()
    def a_reader_that_follows_sees_what_one_that_comes_late_sees(self) -> None:
        assert self.stores[1].view() == self.view
        assert [each.seq for each in self.stores[1].events()] == list(range(1, self.view.last_seq + 1))

    @invariant()
    def what_is_done_stays_as_it_was(self) -> None:
        now = {name: cell for name, cell in self.view.cells.items() if cell.state is CellState.DONE}
        assert self.done.items() <= now.items()
        self.done = dict(now)

    @invariant()
    def the_counts_are_the_cells(self) -> None:
        for stage in self.view.stages:
            states = [self.view.cells[cell].state for cell in stage.cells]
            assert stage.counts == {state: states.count(state) for state in CellState}

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)


TestJournal = Journal.TestCase
TestJournal.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_run_begins_with_its_plan(store: RunStore) -> None:
    (first,) = store.events()
    assert first.seq == 1
    assert isinstance(first.event, RunPlanned)
    assert first.event.plan == a_plan() == store.plan
    assert [cell.cell for cell in store.list_cell_rows()] == [cell.cell for cell in CELLS]


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    a_run(tmp_path / "run").close()
    with pytest.raises(StoreUnusable, match="holds a run already") as refused:
        a_run(tmp_path / "run")
    assert "tracon resume" in refused.value.remedy


def test_a_half_begun_run_does_not_stand_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for leftover in (f".{STATE_FILE}.partial", f".{STATE_FILE}.partial-journal"):
        (folder / leftover).write_bytes(b"torn")
    with a_run(folder) as store:
        assert store.find_problems() == ()
    assert [path.name for path in folder.iterdir()] == [STATE_FILE]


def test_nothing_of_a_refused_transaction_is_written(store: RunStore) -> None:
    with pytest.raises(IllegalTransition, match="pending -> failed"):
        store.append(Noted("info", "run", "before"), CellChanged(CELL, CellState.FAILED, 1))
    assert [each.seq for each in store.events()] == [1]
    assert store.append(Noted("info", "run", "after"))[0].seq == 2


@pytest.mark.parametrize("state", [state for state in CellState])
def test_a_finished_measurement_is_final(store: RunStore, state: CellState) -> None:
    store.append(CellChanged(CELL, CellState.RUNNING, 1), CellChanged(CELL, CellState.DONE, 1))
    with pytest.raises(IllegalTransition, match=f"{CELL}: done -> {state}"):
        store.append(CellChanged(CELL, state, 2))


def test_two_attempts_cannot_have_one_number(store: RunStore) -> None:
    store.append(CellChanged(CELL, CellState.RUNNING, 1), CellChanged(CELL, CellState.PENDING, 1, "killed"))
    with pytest.raises(IllegalTransition, match="attempt 1 after attempt 1"):
        store.append(CellChanged(CELL, CellState.RUNNING, 1))
    store.append(CellChanged(CELL, CellState.RUNNING, 2))


@pytest.mark.parametrize(
    "event",
    [
        CellChanged("no/such", CellState.RUNNING, 1),
        CellProgressed("no/such", 0.5),
        InstanceSampled(instance="unknown", cell=CELL),
        InstanceChanged("plain-1", "plain", InstanceState.READY),
        RequestAnswered(1, True),
        RunPlanned("again", a_plan(), "0.1.0"),
    ],
)
def test_what_the_plan_does_not_know_is_refused(store: RunStore, event: Event) -> None:
    with pytest.raises(IllegalTransition):
        store.append(event)
    assert store.find_problems() == ()


def test_an_event_that_could_not_be_read_back_is_refused(store: RunStore) -> None:
    store.append(CellChanged(CELL, CellState.RUNNING, 1))
    with pytest.raises(IllegalTransition, match="cannot be read back"):
        store.append(CellProgressed(CELL, float("nan")))
    assert store.find_problems() == ()


def test_a_request_number_is_given_once(store: RunStore) -> None:
    store.append(RequestSubmitted(1, "pause"))
    with pytest.raises(IllegalTransition, match="request 1"):
        store.append(RequestSubmitted(1, "stop"))


def test_an_interrupted_attempt_that_was_whole_is_adopted(store: RunStore) -> None:
    store.append(CellChanged(CELL, CellState.RUNNING, 1))
    store.append(CellChanged(CELL, CellState.PENDING, 1, "killed"))
    store.append(CellChanged(CELL, CellState.DONE, 1, summary={"ttft_p90_s": 0.25}))
    cell = store.view().cells[CELL]
    assert (cell.state, cell.summary, len(cell.attempts)) == (CellState.DONE, {"ttft_p90_s": 0.25}, 1)


def test_reading_in_pages_gives_the_whole_journal(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state.store._PAGE", 3)
    store.append(*[Noted("info", "run", str(number)) for number in range(10)])
    whole = list(store.events())
    assert [each.seq for each in whole] == list(range(1, 12))
    for after in range(12):
        for limit in (0, 1, 3, 4, 20):
            assert list(store.events(after, limit)) == whole[after : after + limit]


def test_a_reader_cannot_write(store: RunStore) -> None:
    with (
        RunStore.open(store.folder, read_only=True) as reader,
        pytest.raises(StoreUnusable, match="for reading only"),
    ):
        reader.append(Noted("info", "run", "x"))


def test_a_reader_follows_a_live_writer(store: RunStore) -> None:
    with RunStore.open(store.folder, read_only=True) as reader:
        for number in range(5):
            recorded: tuple[Recorded, ...] = store.append(Noted("info", "run", str(number)))
            assert tuple(reader.events(after=number + 1)) == recorded

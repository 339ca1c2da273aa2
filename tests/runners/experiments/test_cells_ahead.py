"""Cells that are simulated ahead of their turn: the journal takes each when it ends, and none is lost or repeated.

What an earlier run process finished is adopted, read in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from results.records.events import AttemptState, CellChanged, CellState, RunState
from results.records.plan import CellPlan
from runners.campaign import cell_loop
from runners.campaign.cell_loop import CellLoop
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed, CellSkipped, ExitCode, RunnerError
from runners.experiments.cells_ahead import Adopt, CellsAhead
from state import lease as leases
from state import operator_requests
from state.model import CellView
from state.run import CELL_ENDED
from state.store import RunStore
from tests.e2e.cli import view_of
from tests.runners.campaign.scripted import scripted_plan
from tests.runners.campaign.test_cell_loop import list_done, times_done, wait_for_lease
from tests.runners.experiments.scripted_ahead import LONGEST_S, ROOM, Room, ScriptedAhead, work

WITHIN_S = 20.0

CELLS = [CellPlan(f"c{number}", "s", "replay", None, "", {}, 1.0) for number in range(3)]
ADOPTED, SIMULATED = CellOutcome({"adopted": True}), CellOutcome({"adopted": False})


def cells_ahead(adopt: Adopt) -> tuple[CellsAhead, list[str]]:
    """All cells of a run that has room for all of them, and those that were simulated."""
    views = {cell.cell: SimpleNamespace(state=CellState.PENDING, attempt=0) for cell in CELLS}
    view = SimpleNamespace(plan=SimpleNamespace(cells=CELLS), cells=views)
    context = cast(RunContext, SimpleNamespace(store=SimpleNamespace(view=lambda: view)))
    simulated: list[str] = []

    async def simulate(cell: CellPlan, attempt: int) -> CellOutcome:
        simulated.append(cell.cell)
        return SIMULATED

    ahead = CellsAhead(context, "replay", "local", simulate, adopt)
    cast(Any, ahead)._simulations = Room(len(CELLS))
    return ahead, simulated


async def test_a_stop_closes_the_simulations_and_one_before_the_first_cell_opens_none() -> None:
    ahead, _ = cells_ahead(lambda cell: None)
    room = cast(Room, ahead.simulations)
    await ahead.run_cell(CELLS[0], 1)
    await ahead.stop()
    assert room.is_closed
    unopened, _ = cells_ahead(lambda cell: None)
    unopened._simulations = None
    await unopened.stop()
    assert unopened._simulations is None


async def test_what_is_finished_is_read_in_threads_and_not_simulated_again() -> None:
    threads: set[threading.Thread] = set()

    def adopt(cell: CellPlan) -> CellOutcome | None:
        threads.add(threading.current_thread())
        return ADOPTED if cell.cell == "c1" else None

    ahead, simulated = cells_ahead(adopt)
    outcomes = [await ahead.run_cell(cell, 1) for cell in CELLS]
    assert outcomes == [SIMULATED, ADOPTED, SIMULATED]
    assert sorted(simulated) == ["c0", "c2"]
    assert threading.main_thread() not in threads, "the event loop would stand still"


async def test_a_cell_whose_inputs_cannot_be_read_is_not_begun_ahead() -> None:
    def is_ready(cell: CellPlan) -> bool:
        raise OSError(errno.EMFILE, "Too many open files", "results")

    ahead, simulated = cells_ahead(lambda cell: None)
    ahead._is_ready = is_ready
    assert await ahead.run_cell(CELLS[0], 1) == SIMULATED
    assert simulated == ["c0"]


async def test_what_cannot_be_read_ahead_is_read_again_at_its_turn() -> None:
    is_short = True

    def adopt(cell: CellPlan) -> CellOutcome | None:
        if is_short and cell.cell == "c1":
            raise OSError(errno.EMFILE, "Too many open files", "cell.json")
        return ADOPTED if cell.cell == "c1" else None

    ahead, simulated = cells_ahead(adopt)
    await ahead.run_cell(CELLS[0], 1)
    await asyncio.sleep(0.1)
    is_short = False
    assert await ahead.run_cell(CELLS[1], 1) == ADOPTED
    assert "c1" not in simulated


async def test_an_end_ahead_is_handed_over_once() -> None:
    ahead, simulated = cells_ahead(lambda cell: None)
    assert ahead.take_ended(CELLS[1]) is None, "it has not begun"
    await ahead.run_cell(CELLS[0], 1)
    assert ahead.take_ended(CELLS[0]) is None, "it had its turn"
    async with asyncio.timeout(WITHIN_S):
        while (ending := ahead.take_ended(CELLS[1])) is None:  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0.01)
    assert await ending == SIMULATED
    assert ahead.take_ended(CELLS[1]) is None
    assert await ahead.run_cell(CELLS[2], 1) == SIMULATED
    assert sorted(simulated) == ["c0", "c1", "c2"]


# -- in a run -------------------------------------------------------------------------------------------------------

NAMES = tuple(f"s0-c{number}" for number in range(4))
TURN, SECOND, AHEAD, LAST = NAMES
"""The cell whose turn it is at first, and those that run ahead of theirs."""


@dataclass
class Driven:
    """A run whose cells each end when the test says so."""

    folder: Path
    store: RunStore
    cells: ScriptedAhead
    code: asyncio.Task[ExitCode]

    def see_cell(self, cell: str) -> CellView:
        return next(row for row in self.store.list_cell_rows() if row.cell == cell)

    def is_ended(self, cell: str) -> bool:
        return self.see_cell(cell).state in CELL_ENDED

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():  # noqa: ASYNC110  (a condition on another object's state)
                await asyncio.sleep(0.005)

    async def all_begun(self) -> None:
        await self.until(lambda: len(self.cells.begun) == len(self.cells.held))

    async def end(self, *cells: str) -> None:
        """Let them end, each when the journal has the end of the one before."""
        for cell in cells:
            self.cells.held[cell].set()
            await self.until(partial(self.is_ended, cell))

    async def end_all(self) -> ExitCode:
        for held in self.cells.held.values():
            held.set()
        return await asyncio.wait_for(self.code, WITHIN_S)

    async def ask(self, action: str, target: str = "") -> None:
        """Submit a request and wait for its answer."""
        operator_requests.submit(self.store, action, target, "a test asked")
        await self.until(lambda: not operator_requests.pending(self.store))


def new_run(folder: Path, stages: int = 1, cells: int = len(NAMES)) -> Path:
    folder.mkdir()
    RunStore.create(folder, folder.name, scripted_plan(stages, cells), "test").close()
    return folder


@contextlib.asynccontextmanager
async def driven(
    folder: Path, *, room: int = ROOM, ends: Mapping[str, Exception | CellOutcome] | None = None
) -> AsyncIterator[Driven]:
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        cells = ScriptedAhead(folder, store, room, ends)
        cells.held = {cell.cell: asyncio.Event() for cell in store.plan.cells}
        code = asyncio.create_task(CellLoop(store, lease, folder, cells).run())
        try:
            yield Driven(folder, store, cells, code)
        finally:
            code.cancel()
            await asyncio.wait({code})


@pytest.fixture(autouse=True)
def short_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_loop, "POLL_S", 0.01)


def list_changes(folder: Path) -> list[tuple[str, CellState]]:
    with RunStore.open(folder, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    return [(one.cell, one.state) for one in events if isinstance(one, CellChanged)]


def killed_process() -> RunnerError:
    error = RunnerError("the simulation ended with no outcome (how): its last words", remedy="")
    error.ended_by = "SIGKILL"
    return error


@pytest.mark.parametrize("order", permutations(NAMES), ids=lambda order: "".join(name[-1] for name in order))
async def test_the_journal_takes_cells_in_the_order_in_which_they_end(tmp_path: Path, order: tuple[str, ...]) -> None:
    async with driven(new_run(tmp_path / "run")) as run:
        await run.end(*order)
        assert await run.code == ExitCode.DONE
    view = view_of(run.folder)
    assert list_done(run.folder) == list(order)
    assert Counter(run.cells.begun) == dict.fromkeys(NAMES, 1)
    assert {(cell.state, cell.attempt) for cell in view.cells.values()} == {(CellState.DONE, 1)}
    assert view.state is RunState.DONE


async def test_beside_the_cell_whose_turn_it_is_none_is_running_for_longer_than_its_end(tmp_path: Path) -> None:
    """What has ended is recorded as running first: the attempt needs a number."""
    async with driven(new_run(tmp_path / "run")) as run:
        await run.end(LAST, SECOND, TURN, AHEAD)
        await run.code
    running, done = CellState.RUNNING, CellState.DONE
    assert list_changes(run.folder) == [
        (TURN, running),
        (LAST, running),
        (LAST, done),
        (SECOND, running),
        (SECOND, done),
        (TURN, done),
        (AHEAD, running),
        (AHEAD, done),
    ]


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (CellFailed("as scripted"), CellState.FAILED, 1),
        (CellSkipped("as scripted"), CellState.SKIPPED, 1),
        (OSError(errno.EMFILE, "Too many open files"), CellState.FAILED, 1),
        (killed_process(), CellState.DONE, 2),
    ],
    ids=["failed", "skipped", "an error of its own", "killed"],
)
async def test_a_cell_that_does_not_end_well_ahead_of_its_turn_ends_as_it_would_at_its_turn(
    tmp_path: Path, error: Exception, state: CellState, attempts: int
) -> None:
    async with driven(new_run(tmp_path / "run"), ends={AHEAD: error}) as run:
        run.cells.held[AHEAD].set()
        await run.until(lambda: any(one.spent_s is not None for one in run.see_cell(AHEAD).attempts))
        assert run.see_cell(TURN).state is CellState.RUNNING
        assert run.see_cell(AHEAD).state is (CellState.PENDING if attempts == 2 else state)
        assert await run.end_all() == (ExitCode.DONE if attempts == 2 else ExitCode.CELLS_FAILED)
    cell = view_of(run.folder).cells[AHEAD]
    assert (cell.state, len(cell.attempts)) == (state, attempts)
    assert Counter(run.cells.begun) == dict.fromkeys(NAMES, 1) | {AHEAD: attempts}


async def test_a_failed_cell_is_not_begun_again_when_the_cells_ahead_are_listed_again(tmp_path: Path) -> None:
    """The first cell has a second turn, at which the cells ahead are listed again while the second one runs."""
    ends: dict[str, Exception | CellOutcome] = {TURN: killed_process(), SECOND: CellFailed("as scripted")}
    async with driven(new_run(tmp_path / "run"), room=2, ends=ends) as run:
        await run.until(lambda: SECOND in run.cells.begun)
        run.cells.held[TURN].set()
        await run.until(lambda: run.cells.begun.count(TURN) == 2)
        await run.end(SECOND)
        assert run.see_cell(TURN).state is CellState.RUNNING
        assert await run.end_all() == ExitCode.CELLS_FAILED
    assert Counter(run.cells.begun) == {TURN: 2, SECOND: 1, AHEAD: 1, LAST: 1}


async def test_retry_opens_a_cell_that_failed_ahead_of_its_turn(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run"), ends={AHEAD: CellFailed("as scripted")}) as run:
        await run.end(AHEAD)
        await run.ask("retry")
        assert run.see_cell(AHEAD).state is CellState.PENDING
        assert await run.end_all() == ExitCode.DONE
    assert view_of(run.folder).cells[AHEAD].attempt == 2
    assert Counter(run.cells.begun) == dict.fromkeys(NAMES, 1) | {AHEAD: 2}


async def test_a_cell_that_ended_ahead_is_degraded_where_its_outcome_says_so(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run"), ends={AHEAD: CellOutcome({"turns": 3}, "late")}) as run:
        await run.end(AHEAD)
        assert await run.end_all() == ExitCode.DONE
    cell = view_of(run.folder).cells[AHEAD]
    assert (cell.summary, cell.degraded) == ({"turns": 3}, "late")


async def test_a_full_disk_that_a_cell_ahead_meets_interrupts_the_run_and_fails_none(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    async with driven(folder, ends={AHEAD: OSError(errno.ENOSPC, "No space left on device")}) as run:
        await run.all_begun()
        run.cells.held[AHEAD].set()
        assert await asyncio.wait_for(run.code, WITHIN_S) == ExitCode.INTERRUPTED
    view = view_of(folder)
    assert {cell.state for cell in view.cells.values()} == {CellState.PENDING}
    assert {attempt.state for cell in view.cells.values() for attempt in cell.attempts} == {AttemptState.INTERRUPTED}
    assert sorted(run.cells.cut) == [TURN, SECOND, LAST]
    async with driven(folder) as run:
        assert await run.end_all() == ExitCode.DONE
    assert times_done(folder) == dict.fromkeys(NAMES, 1)


async def test_a_cell_that_is_skipped_while_it_runs_ahead_is_cut(tmp_path: Path) -> None:
    """Else the report would have numbers of a cell that is skipped."""
    async with driven(new_run(tmp_path / "run")) as run:
        await run.all_begun()
        await run.ask("skip", f"cell:{AHEAD}")
        await run.until(lambda: AHEAD in run.cells.cut)
        assert run.see_cell(TURN).state is CellState.RUNNING
        assert await run.end_all() == ExitCode.CELLS_FAILED
    assert run.cells.cut == [AHEAD]
    assert not (run.folder / "done" / AHEAD).exists()
    assert view_of(run.folder).cells[AHEAD].state is CellState.SKIPPED
    assert times_done(run.folder) == dict.fromkeys(set(NAMES) - {AHEAD}, 1)


async def test_a_cell_that_is_skipped_before_it_runs_ahead_is_not_begun(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run"), room=2) as run:
        await run.until(lambda: SECOND in run.cells.begun)
        await run.ask("skip", f"cell:{AHEAD}")
        await run.end(SECOND)
        await run.until(lambda: LAST in run.cells.begun)
        assert await run.end_all() == ExitCode.CELLS_FAILED
    assert sorted(run.cells.begun) == [TURN, SECOND, LAST]


async def test_the_cell_whose_turn_it_is_takes_room_too(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run"), room=2) as run:
        await run.end(SECOND)
        await run.until(lambda: AHEAD in run.cells.begun)
        await asyncio.sleep(0.1)
        assert LAST not in run.cells.begun
        assert await run.end_all() == ExitCode.DONE
    assert Counter(run.cells.begun) == dict.fromkeys(NAMES, 1)


async def test_skipping_the_cell_whose_turn_it_is_cuts_it_alone(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run")) as run:
        await run.end(AHEAD)
        await run.ask("skip", f"cell:{TURN}")
        await run.until(partial(run.is_ended, TURN))
        assert await run.end_all() == ExitCode.CELLS_FAILED
    assert run.cells.cut == [TURN]
    assert times_done(run.folder) == {SECOND: 1, AHEAD: 1, LAST: 1}


@pytest.mark.parametrize(("action", "finished"), [("stop", {TURN, AHEAD}), ("stop_now", {AHEAD})])
async def test_a_run_stopped_in_the_middle_repeats_no_cell_that_ended(
    tmp_path: Path, action: str, finished: set[str]
) -> None:
    folder = new_run(tmp_path / "run")
    async with driven(folder) as run:
        await run.all_begun()
        await run.end(AHEAD)
        await run.ask(action)
        run.cells.held[TURN].set()
        assert await asyncio.wait_for(run.code, WITHIN_S) == ExitCode.INTERRUPTED
    view = view_of(folder)
    assert {cell.cell for cell in view.cells.values() if cell.state is CellState.DONE} == finished
    assert {cell.state for cell in view.cells.values()} == {CellState.DONE, CellState.PENDING}
    assert set(run.cells.cut) == set(NAMES) - finished
    async with driven(folder) as run:
        assert await run.end_all() == ExitCode.DONE
    assert set(run.cells.begun) == set(NAMES) - finished
    assert times_done(folder) == dict.fromkeys(NAMES, 1)


async def test_a_pause_waits_for_the_cell_whose_turn_it_is_and_cuts_what_runs_ahead(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run")) as run:
        await run.all_begun()
        await run.end(AHEAD)
        await run.ask("pause")
        await run.end(TURN)
        await run.until(lambda: run.store.run_row().state is RunState.PAUSED)
        assert sorted(run.cells.cut) == [SECOND, LAST]
        await run.ask("resume")
        assert await run.end_all() == ExitCode.DONE
    assert times_done(run.folder) == dict.fromkeys(NAMES, 1)
    assert Counter(run.cells.begun) == {TURN: 1, SECOND: 2, AHEAD: 1, LAST: 2}


async def test_a_cell_of_a_later_stage_waits_for_its_stage_and_is_not_simulated_again(tmp_path: Path) -> None:
    async with driven(new_run(tmp_path / "run", stages=2, cells=2)) as run:
        run.cells.held["s1-c1"].set()
        await run.until((run.folder / "done" / "s1-c1").exists)
        await run.end("s0-c1")
        assert run.see_cell("s1-c1").state is CellState.PENDING
        assert await run.end_all() == ExitCode.DONE
    assert run.cells.begun.count("s1-c1") == 1
    assert times_done(run.folder) == dict.fromkeys(("s0-c0", "s0-c1", "s1-c0", "s1-c1"), 1)


@pytest.mark.parametrize(
    "recorded",
    [(), (CellState.RUNNING,), (CellState.RUNNING, CellState.DONE)],
    ids=["not yet", "half", "as done"],
)
async def test_a_cell_that_ended_ahead_before_a_kill_is_not_simulated_again(
    tmp_path: Path, recorded: tuple[CellState, ...]
) -> None:
    """It was published, and was recorded not at all, in part or whole."""
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store:
        store.append(CellChanged(TURN, CellState.RUNNING, 1), *(CellChanged(AHEAD, state, 1) for state in recorded))
    (folder / "done").mkdir()
    (folder / "done" / AHEAD).write_text(f"{AHEAD} 1 0\n")
    async with driven(folder) as run:
        assert await run.end_all() == ExitCode.DONE
    assert Counter(run.cells.begun) == {TURN: 1, SECOND: 1, LAST: 1}
    assert times_done(folder) == dict.fromkeys(NAMES, 1)
    assert {cell: view.attempt for cell, view in view_of(folder).cells.items()} == dict.fromkeys(NAMES, 1) | {TURN: 2}


@pytest.mark.fault
def test_killed_at_any_moment_no_cell_is_lost_or_simulated_again(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", stages=2, cells=12)
    dice, inodes, progressed = random.Random(20), dict[str, int](), 0
    for _ in range(6):
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.runners.experiments.scripted_ahead", str(folder)], start_new_session=True
        )
        wait_for_lease(folder, worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=dice.uniform(0.0, 2 * LONGEST_S))
        worker.kill()
        worker.wait()
        published = {path.name: path.stat().st_ino for path in (folder / "done").glob("*")}
        assert published.items() >= inodes.items()
        assert set(list_done(folder)) <= published.keys()
        progressed += len(published) > len(inodes)
        inodes = published
    assert progressed > 1, "no kill came in the middle of the work"
    if view_of(folder).state is not RunState.DONE:
        assert work(folder) == ExitCode.DONE
    assert times_done(folder) == {plan.cell: 1 for plan in view_of(folder).plan.cells}
    assert {path.name: path.stat().st_ino for path in (folder / "done").iterdir()}.items() >= inodes.items()

"""What a run relies on: every cell ends once, whatever happens to the run process or is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launch.instance import CrashedAtStart
from results.records.events import (
    SIMULATED,
    CellChanged,
    CellState,
    EngineDeath,
    InstanceChanged,
    InstanceState,
    RunChanged,
    RunState,
    StageState,
)
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from results.records.skipped_cells import read_skipped
from runners.campaign import adoption, cell_loop, disk
from runners.campaign.cell_loop import CellLoop
from runners.campaign.experiment import CellOutcome
from runners.cli.asking import ask_run
from runners.errors import CellFailed, ExitCode, RunnerError
from state import lease as leases
from state import operator_requests
from state.errors import DiskFull, LeaseHeld, RequestRefused
from state.model import RunView
from state.process_identity import identify_this_process
from state.store import RunStore
from tests.e2e.cli import view_of
from tests.runners.campaign.scripted import OBSTACLES, Scripted, scripted_plan, work


def new_run(folder: Path, outcomes: Mapping[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    RunStore.create(folder, folder.name, scripted_plan(outcomes=outcomes), "test").close()
    return folder


def list_done(folder: Path) -> list[str]:
    """Cells in the order in which they were done."""
    with RunStore.open(folder, read_only=True) as store:
        events = [recorded.event for recorded in store.events()]
    return [one.cell for one in events if isinstance(one, CellChanged) and one.state is CellState.DONE]


def times_done(folder: Path) -> Counter[str]:
    return Counter(list_done(folder))


async def run_with(
    folder: Path, *asked: tuple[float, str, str], why_unread: Exception | None = None
) -> tuple[ExitCode, Scripted]:
    """Run the campaign while requests arrive at the given seconds."""
    experiment = Scripted(folder)
    experiment.why_unread = why_unread
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        campaign = asyncio.create_task(CellLoop(store, lease, folder, experiment).run())
        for delay_s, action, target in asked:
            await asyncio.sleep(delay_s)
            operator_requests.submit(store, action, target, "a test asked")
        return await asyncio.wait_for(campaign, 20), experiment


async def test_a_run_ends_with_every_cell_done_once_and_stages_in_order(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    code, experiment = await run_with(folder)
    view = view_of(folder)
    assert code == ExitCode.DONE
    assert view.state is RunState.DONE
    assert set(times_done(folder).values()) == {1}
    assert [stage.state for stage in view.stages] == [StageState.DONE] * 3
    assert list_done(folder) == [plan.cell for plan in view.plan.cells]
    assert experiment.released


async def test_failed_cells_are_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s1-c1": "fail", "s1-c2": "skip"})
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert code == ExitCode.CELLS_FAILED
    assert view.cells["s1-c1"].state is CellState.FAILED
    assert view.cells["s1-c1"].reason == "as scripted"
    assert view.cells["s1-c2"].state is CellState.SKIPPED
    assert view.stages[1].state is StageState.FAILED
    assert len(times_done(folder)) == 10


async def test_retry_reopens_the_failed_cell_only(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s1-c1": "fail"})
    await run_with(folder)
    assert ask_run(folder, "retry", "", "")["accepted"]
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert view_of(folder).cells["s1-c1"].attempt == 2
    assert set(times_done(folder).values()) == {1}


async def test_a_cell_that_fails_after_its_last_artifact_was_measured(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s1-c1": "late"})
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert view_of(folder).cells["s1-c1"].attempt == 1
    assert set(times_done(folder).values()) == {1}


UNREAD = [
    (OSError(errno.EMFILE, "Too many open files", "cell.json"), "`ulimit -n`"),
    (OSError(errno.EIO, "Input/output error", "cell.json"), "make the file readable, or remove it"),
    (RuntimeError("can't start new thread"), "`ulimit -a`"),
]


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shortage is not waited for."""
    monkeypatch.setattr(adoption, "UNREAD_WAIT_S", 0.0)


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize(("error", "remedy"), UNREAD)
async def test_a_cell_that_fails_while_its_artifacts_cannot_be_read_interrupts_the_run(
    tmp_path: Path, error: Exception, remedy: str
) -> None:
    folder = new_run(tmp_path / "run", {"s1-c1": "late"})
    code, _ = await run_with(folder, why_unread=error)  # what the attempt lacked, reading it back lacks too
    view = view_of(folder)
    assert (code, view.state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)
    assert view.cells["s1-c1"].state is CellState.PENDING
    assert str(error) in view.reason
    assert remedy in view.reason
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert view_of(folder).cells["s1-c1"].attempt == 1
    assert (folder / "done" / "s1-c1").read_text().split()[1] == "1"


async def test_a_shortage_that_passes_interrupts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "UNREAD_STEP_S", 0.01)
    reads = 0

    class Short(Scripted):
        def adopt(self, cell: CellPlan) -> CellOutcome | None:
            nonlocal reads
            reads += 1
            if reads < 3:
                raise OSError(errno.EMFILE, "Too many open files", "cell.json")
            return super().adopt(cell)

    folder = new_run(tmp_path / "run", {"s1-c1": "late"})
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        assert await CellLoop(store, lease, folder, Short(folder)).run() == ExitCode.DONE
    assert reads == 3
    assert set(times_done(folder).values()) == {1}


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("error", [error for error, _ in UNREAD])
@pytest.mark.parametrize("ended", [CellState.FAILED, CellState.RUNNING])
async def test_complete_artifacts_that_cannot_be_read_for_a_while_are_not_measured_again(
    tmp_path: Path, error: Exception, ended: CellState
) -> None:
    """Of a cell that is retried, and of one whose run process died."""
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store:
        store.append(RunChanged(RunState.RUNNING), CellChanged("s0-c0", CellState.RUNNING, 1))
        if ended is CellState.FAILED:
            store.append(CellChanged("s0-c0", ended, 1), CellChanged("s0-c0", CellState.PENDING, 1, "retry"))
    (folder / "done").mkdir()
    (folder / "done" / "s0-c0").write_text("s0-c0 1 0\n")
    code, _ = await run_with(folder, why_unread=error)
    view = view_of(folder)
    assert (code, view.state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)
    assert "s0-c0" in view.reason
    assert (view.cells["s0-c0"].state, view.cells["s0-c0"].attempt) == (CellState.PENDING, 1)
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert view_of(folder).cells["s0-c0"].attempt == 1
    assert times_done(folder)["s0-c0"] == 1


async def test_the_lease_is_renewed_while_artifacts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of a decision log of a gigabyte takes seconds."""
    renewed = threading.Event()
    monkeypatch.setattr(leases.Lease, "heartbeat", lambda self: renewed.set())
    monkeypatch.setattr(cell_loop, "HEARTBEAT_S", 0.01)
    renewed_meanwhile: list[bool] = []

    class Slow(Scripted):
        def adopt(self, cell: CellPlan) -> CellOutcome | None:
            renewed.clear()
            renewed_meanwhile.append(renewed.wait(5.0))
            return super().adopt(cell)

    folder = new_run(tmp_path / "run", {"s1-c1": "late"})
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        store.append(CellChanged("s0-c0", CellState.RUNNING, 1))
        assert await CellLoop(store, lease, folder, Slow(folder)).run() == ExitCode.DONE
    assert renewed_meanwhile == [True] * 3, "after the death of a run process, before a second attempt, after a failure"


@pytest.mark.parametrize("kind", ["port", "gate port", "unseen", "gate unseen"])
async def test_what_every_further_cell_would_meet_interrupts_the_run_and_fails_none(tmp_path: Path, kind: str) -> None:
    folder = new_run(tmp_path / "run", {"s0-c1": kind})
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert (code, view.state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)
    obstacle = OBSTACLES[kind.removeprefix("gate ")]()
    assert f"{obstacle}. {obstacle.remedy}" in view.reason
    assert {cell.state for cell in view.cells.values()} == {CellState.DONE, CellState.PENDING}
    code, _ = await run_with(folder)  # the operator did what the remedy says
    assert code == ExitCode.DONE
    assert set(times_done(folder).values()) == {1}


async def test_an_engine_that_cannot_be_released_at_the_end_leaves_the_exit_code_as_it_is(tmp_path: Path) -> None:
    class Stuck(Scripted):
        async def release(self, reason: str) -> None:
            if reason == "the run process ends":
                raise OBSTACLES["unseen"]()

    folder = new_run(tmp_path / "run", {"s0-c1": "port"})
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        code = await CellLoop(store, lease, folder, Stuck(folder)).run()
    assert (code, view_of(folder).state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)


async def test_a_cell_that_fails_for_want_of_descriptors_names_the_limit(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s1-c1": "short"})
    code, _ = await run_with(folder)
    cell = view_of(folder).cells["s1-c1"]
    assert (code, cell.state) == (ExitCode.CELLS_FAILED, CellState.FAILED)
    assert "Too many open files. raise the limit of open files (`ulimit -n`)" in cell.reason


async def test_a_run_that_stops_for_want_of_descriptors_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(folder))

    folder = new_run(tmp_path / "run")
    monkeypatch.setattr(cell_loop, "require_disk", fail)
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert (code, view.state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)
    assert "raise the limit of open files (`ulimit -n`)" in view.reason


async def test_stop_now_cuts_the_cell_and_resume_measures_it(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s0-c1": "slow"})
    code, _ = await run_with(folder, (0.5, "stop_now", ""))
    view = view_of(folder)
    assert code == ExitCode.INTERRUPTED
    assert view.state is RunState.INTERRUPTED
    assert view.cells["s0-c1"].state is CellState.PENDING
    assert "a test asked" in view.reason


async def test_pause_releases_the_engine_and_resume_goes_on(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    code, experiment = await run_with(folder, (0.05, "pause", ""), (0.8, "resume", ""))
    assert code == ExitCode.DONE
    assert "paused" in experiment.released
    assert set(times_done(folder).values()) == {1}


async def test_skipping_the_running_cell_cuts_it_and_goes_on(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s0-c1": "slow"})
    code, _ = await run_with(folder, (0.5, "skip", "cell:s0-c1"), (0.0, "skip", "stage:s2"))
    view = view_of(folder)
    assert code == ExitCode.CELLS_FAILED  # the run is done, but not every cell of it
    assert view.state is RunState.DONE
    assert view.cells["s0-c1"].state is CellState.SKIPPED
    assert view.cells["s0-c1"].reason == "a test asked"
    assert view.stages[2].state is StageState.SKIPPED
    skipped, _ = read_skipped(folder)
    assert skipped == dict.fromkeys(("s0-c1", *view.stages[2].cells), "a test asked"), "for the report"


async def test_what_is_skipped_without_a_process_is_in_the_folder_and_what_skips_itself_is_not(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s0-c1": "skip"})
    answer = ask_run(folder, "skip", "cell:s1-c0", "")
    assert answer["detail"].startswith("1 cell; ")
    await run_with(folder)
    assert read_skipped(folder) == ({"s1-c0": ""}, ())


@pytest.mark.parametrize("action", ["skip", "retry"])
def test_a_target_that_the_plan_has_not_is_corrected_also_without_a_process(tmp_path: Path, action: str) -> None:
    folder = new_run(tmp_path / "run")
    with pytest.raises(RequestRefused, match="the plan has no cell 's1-c9'") as refused:
        ask_run(folder, action, "cell:s1-c9", "")
    assert "s1-c" in refused.value.remedy


def test_a_target_without_a_failed_cell_is_refused(tmp_path: Path) -> None:
    answer = ask_run(new_run(tmp_path / "run"), "retry", "cell:s1-c0", "")
    assert (answer["accepted"], answer["detail"]) == (False, "no cell has failed in cell:s1-c0")


async def test_a_skip_that_cannot_be_recorded_is_refused_and_fails_no_cell(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s0-c1": "slow"})
    RunLayout(folder).skipped_cells.mkdir()  # no file can be written there
    code, _ = await run_with(folder, (0.5, "skip", "stage:s2"))
    assert code == ExitCode.DONE
    (request,) = view_of(folder).requests.values()
    assert (request.accepted, "it cannot be recorded" in request.detail) == (False, True)


def test_what_no_process_works_on_cannot_be_paused(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    with pytest.raises(RunnerError, match="no process works on it") as refused:
        ask_run(folder, "pause", "", "")
    assert "tracon resume" in refused.value.remedy


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tests.runners.campaign.scripted", str(folder)]
    return subprocess.Popen(argv, start_new_session=True)


def wait_for_lease(folder: Path, worker: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    with RunStore.open(folder, read_only=True) as store:
        while not leases.read_lease_state(store).live and worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)


@pytest.mark.fault
def test_killed_at_any_moment_every_cell_is_measured_exactly_once(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    dice = random.Random(20)
    progressed = 0
    for _ in range(8):
        before = sum(times_done(folder).values())
        worker = start_worker(folder)
        wait_for_lease(folder, worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=dice.uniform(0.0, 0.25))
        worker.kill()
        worker.wait()
        progressed += sum(times_done(folder).values()) > before
    assert progressed > 1, "no kill came in the middle of the work"
    if view_of(folder).state is not RunState.DONE:
        assert work(folder) == ExitCode.DONE
    assert times_done(folder) == Counter({plan.cell: 1 for plan in view_of(folder).plan.cells})
    assert sorted(path.name for path in (folder / "done").iterdir()) == sorted(times_done(folder))


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([], id="the process died", marks=pytest.mark.fault),
        pytest.param([CellChanged("s0-c0", CellState.PENDING, 1, "interrupted: a test asked")], id="the cell was cut"),
    ],
)
def test_artifacts_in_place_of_a_cell_that_did_not_end_are_adopted(tmp_path: Path, later: list[CellChanged]) -> None:
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store:
        store.append(CellChanged("s0-c0", CellState.RUNNING, 1), *later)
    (folder / "done").mkdir()
    (folder / "done" / "s0-c0").write_text("s0-c0 1 0\n")
    assert work(folder) == ExitCode.DONE
    assert view_of(folder).cells["s0-c0"].attempt == 1
    assert times_done(folder)["s0-c0"] == 1


@pytest.mark.fault
def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run", {"s0-c0": "slow"})
    worker = start_worker(folder)
    try:
        wait_for_lease(folder, worker)
        with RunStore.open(folder) as store, pytest.raises(LeaseHeld, match=str(worker.pid)):
            leases.acquire(store)
    finally:
        worker.kill()
        worker.wait()


async def test_simulated_instances_of_a_run_process_that_died_are_gone(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store:
        store.append(InstanceChanged("e0-1", "plain", InstanceState.STARTING, started_by=SIMULATED))
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert code == ExitCode.DONE
    assert view.instances["e0-1"].state is InstanceState.GONE
    assert not any("cannot be verified from here" in line.text for line in view.feed)


@pytest.mark.fault
@pytest.mark.parametrize(
    "changes", [{"start_ticks": 1}, {"host": "elsewhere"}, {"start_ticks": None, "process_start": 1.0}]
)
async def test_an_engine_that_was_left_behind_is_gone_only_where_that_is_verified(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The recorded process is this test's own. With other start ticks it is another; of the rest nothing is known."""
    folder, process = new_run(tmp_path / "run"), replace(identify_this_process(), **changes)
    where = {"start_ticks": process.start_ticks, "host": process.host, "pid_namespace": process.pid_namespace}
    facts: dict[str, Any] = {
        "pid": process.pid,
        "process_start": process.process_start,
        "boot_id": process.boot_id,
        **where,
    }
    with RunStore.open(folder) as store:
        store.append(InstanceChanged("plain-1", "plain", InstanceState.STARTING, **facts))
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert code == ExitCode.DONE
    verified = changes == {"start_ticks": 1}
    assert view.instances["plain-1"].state is (InstanceState.GONE if verified else InstanceState.STARTING)
    assert any("cannot be verified from here" in line.text for line in view.feed) is not verified


async def test_a_disk_that_fills_up_interrupts_the_run_between_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_run(tmp_path / "run")
    monkeypatch.setattr(disk, "MIN_FREE_BYTES", 1 << 62)
    code, _ = await run_with(folder)
    view = view_of(folder)
    assert code == ExitCode.INTERRUPTED
    assert view.state is RunState.INTERRUPTED
    assert "disk is full" in view.reason
    monkeypatch.undo()
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert set(times_done(folder).values()) == {1}


class Filling(Scripted):
    """The disk fills up in the middle of a cell: its load process reports that it cannot write."""

    def __init__(self, folder: Path, error: Exception, fill: Callable[[], None]) -> None:
        super().__init__(folder)
        self._error, self._fill = error, fill

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.cell != "s0-c1" or attempt > 1:
            return await super().run_cell(cell, attempt)
        self._fill()
        raise self._error


@pytest.mark.parametrize("error", [RunnerError("cannot write requests.jsonl", remedy=""), DiskFull("no space left")])
async def test_a_cell_that_the_full_disk_cut_is_measured_after_a_resume_and_did_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        cells = Filling(folder, error, lambda: monkeypatch.setattr(disk, "MIN_FREE_BYTES", 1 << 62))
        assert await CellLoop(store, lease, folder, cells).run() == ExitCode.INTERRUPTED
        assert store.view().cells["s0-c1"].state is CellState.PENDING
    monkeypatch.undo()
    code, _ = await run_with(folder)
    assert code == ExitCode.DONE
    assert set(times_done(folder).values()) == {1}


class Mortal(Scripted):
    """A cell's engine dies by a signal in its first `deaths` attempts."""

    def __init__(self, folder: Path, store: RunStore, deaths: int, error: Exception, ended_by: str = "SIGKILL") -> None:
        super().__init__(folder)
        self._store, self._deaths, self._error, self._ended_by = store, deaths, error, ended_by

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.cell != "s0-c1" or attempt > self._deaths:
            return await super().run_cell(cell, attempt)
        name = f"plain-{attempt}"
        died = InstanceChanged(name, "plain", InstanceState.FAILED, reason="it died", death=EngineDeath(self._ended_by))
        self._store.append(InstanceChanged(name, "plain", InstanceState.STARTING, 1, 1, 1.0), died)
        raise self._error


async def run_mortal(folder: Path, deaths: int, error: Exception, ended_by: str = "SIGKILL") -> RunView:
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        cells = Mortal(folder, store, deaths, error, ended_by)
        await asyncio.wait_for(CellLoop(store, lease, folder, cells).run(), 20)
        return store.view()


async def test_a_cell_whose_engine_was_killed_is_tried_again_once_and_says_so(tmp_path: Path) -> None:
    view = await run_mortal(new_run(tmp_path / "run"), 1, CellFailed("the engine died"))
    cell = view.cells["s0-c1"]
    assert (cell.state, cell.attempt) == (CellState.DONE, 2)
    assert "plain-1 was ended by SIGKILL" in cell.attempts[0].reason
    assert view.state is RunState.DONE


@pytest.mark.parametrize(
    ("ended_by", "state", "reason"),
    [
        ("exit code 0", CellState.DONE, "plain-1 ended with exit code 0"),
        ("unknown", CellState.DONE, "plain-1 ended"),
        ("exit code 1", CellState.FAILED, "the engine died"),
    ],
)
async def test_an_engine_that_ended_without_an_error_of_its_own_was_ended_from_outside(
    tmp_path: Path, ended_by: str, state: CellState, reason: str
) -> None:
    """Its guard or its fork server was killed: both send it TERM, upon which vLLM ends with exit code 0."""
    view = await run_mortal(new_run(tmp_path / "run"), 1, CellFailed("the engine died"), ended_by)
    cell = view.cells["s0-c1"]
    assert cell.state is state
    assert cell.attempts[0].reason.endswith(reason)


async def test_an_engine_that_dies_at_its_start_was_tried_twice_already(tmp_path: Path) -> None:
    view = await run_mortal(new_run(tmp_path / "run"), 9, CrashedAtStart("it died at once", remedy=""))
    assert (view.cells["s0-c1"].state, view.cells["s0-c1"].attempt) == (CellState.FAILED, 1)


class Loaded(Scripted):
    """A cell's load process fails in its first `failures` attempts."""

    def __init__(self, folder: Path, failures: int, ended_by: str) -> None:
        super().__init__(folder)
        self._failures, self._ended_by = failures, ended_by
        self.before: Callable[[], None] = lambda: None

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.cell != "s0-c1" or attempt > self._failures:
            return await super().run_cell(cell, attempt)
        self.before()
        error = RunnerError("the load process ended with no outcome (how): its last words", remedy="")
        error.ended_by = self._ended_by
        raise error


@pytest.mark.parametrize(
    ("failures", "ended_by", "state", "attempts"),
    [
        (1, "SIGKILL", CellState.DONE, 2),
        (9, "SIGKILL", CellState.FAILED, 2),
        (1, "", CellState.FAILED, 1),
    ],
)
async def test_a_cell_whose_load_or_router_was_killed_is_tried_again_once(
    tmp_path: Path, failures: int, ended_by: str, state: CellState, attempts: int
) -> None:
    folder = new_run(tmp_path / "run")
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        await asyncio.wait_for(CellLoop(store, lease, folder, Loaded(folder, failures, ended_by)).run(), 20)
        cell = store.view().cells["s0-c1"]
    assert (cell.state, cell.attempt) == (state, attempts)
    if attempts == 2:
        assert "because the load process ended with no outcome (how)" in cell.attempts[0].reason


async def test_a_signal_to_every_process_of_a_run_is_a_stop_however_often_it_comes(tmp_path: Path) -> None:
    folder = new_run(tmp_path / "run")
    for attempt in (1, 2, 3):
        with RunStore.open(folder) as store, leases.acquire(store) as lease:
            cells = Loaded(folder, 9, "SIGTERM")
            loop = CellLoop(store, lease, folder, cells)
            cells.before = partial(loop.stop_now, "signal SIGTERM")
            assert await asyncio.wait_for(loop.run(), 20) == ExitCode.INTERRUPTED
            cell = store.view().cells["s0-c1"]
        assert (cell.state, cell.attempt) == (CellState.PENDING, attempt)
        assert cell.attempts[-1].reason == "interrupted: signal SIGTERM"

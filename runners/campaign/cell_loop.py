"""Runs the pending cells of a frozen plan one by one until none is left.

Simulated cells also run ahead of their turn: each of them is recorded when it ends.

It handles stages, attempts, operator requests and recovery after a crash of this process; what a cell measures is the
experiment's part. The journal records which cells are finished, and a finished cell never runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Awaitable
from pathlib import Path

from launch.death import describe_exit_name, was_ended
from launch.errors import HostObstacle, LaunchError
from launch.instance import CrashedAtStart, end_leftover
from results.records.errors import SHORTAGE_REMEDIES, SpecError
from results.records.events import (
    SIMULATED,
    AttemptState,
    CellChanged,
    CellState,
    Event,
    GpusSampled,
    InstanceChanged,
    InstanceState,
    Noted,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from runners.campaign.adoption import ArtifactsUnread, adopt_if_complete
from runners.campaign.disk import DiskFull, require_disk
from runners.campaign.exit_code import exit_code
from runners.campaign.experiment import CellOutcome, CellRunner
from runners.campaign.steering import Steering
from runners.errors import CellFailed, CellSkipped, ExitCode, RunnerError
from runners.samplers.gpu import GpuSampler
from runners.samplers.host import HostSampler
from state.errors import DiskFull as StateDiskFull
from state.errors import StateError
from state.lease import HEARTBEAT_S, Lease
from state.model import CellView, InstanceView
from state.process_identity import ProcessIdentity, identify_this_process
from state.store import RunStore
from state.view import fold

log = logging.getLogger("tracon.campaign")

POLL_S = 0.3
AGAIN = "interrupted: tried again once on a fresh engine, because"
CUT_BY_DISK = "interrupted: the disk is full"
UNMEASURED = frozenset({"preflight", "probe", "analysis"})
"""Kinds of cells that measure nothing that a busy host could distort."""


class CellLoop:
    """One run, from its current state to its end."""

    def __init__(self, store: RunStore, lease: Lease, folder: Path, cells: CellRunner) -> None:
        self._store = store
        self._lease = lease
        self._folder = folder
        self._cells = cells
        self._host = HostSampler(RunLayout(folder).host_csv)
        self._gpus = GpuSampler(
            RunLayout(folder).gpu_csv,
            lambda: [instance.devices for instance in self._view.live_instances],
            lambda samples: store.append(GpusSampled(samples)),
        )
        self._steering = Steering(store)
        self._view = store.view()
        self._lost: StateError | None = None

    async def run(self) -> ExitCode:
        """Work until nothing is pending, an operator stops it, or it cannot continue."""
        beat = asyncio.create_task(self._renew_lease())
        try:
            self._recover()
            self._append_events(RunChanged(RunState.RUNNING, pid=os.getpid()))
            await self._adopt_cut_cells()
            with self._host, self._gpus:
                return await self._run_pending()
        except (StateError, LaunchError, RunnerError, OSError) as error:
            return self._cannot_go_on(error)
        finally:
            beat.cancel()
            await self._release_last()

    def stop_now(self, reason: str) -> None:
        """Stop as soon as possible, cutting the cell that runs."""
        self._steering.stop_now(reason)

    async def _release_last(self) -> None:
        """What fails here is logged: the journal has the run's state by now, which the exit code stands for."""
        try:
            await self._cells.release("the run process ends")
        except (StateError, LaunchError, RunnerError, OSError) as error:
            log.error("an engine may be left: %s", _join_remedy(error))

    def _recover(self) -> None:
        """Clean up after a run process that died: end its engines, reset the cell that it ran."""
        for instance in self._view.live_instances:
            self._end_leftover(instance)
        died = "interrupted: the run process died"
        self._append_events(
            *(CellChanged(cell.cell, CellState.PENDING, cell.attempt, died) for cell in self._view.current_cells)
        )

    async def _adopt_cut_cells(self) -> None:
        """Adopt cells whose last attempt was interrupted: a thread of it may still have published all artifacts.

        Raises ArtifactsUnread.
        """
        for plan in self._view.plan.cells:
            if _was_cut(self._view.cells[plan.cell]):
                await self._adopt(plan)

    def _end_leftover(self, instance: InstanceView) -> None:
        """Record GONE only where it is verified; otherwise leave the instance's state and warn in the journal."""
        process = _find_process(instance)
        if instance.started_by == SIMULATED or (process is not None and end_leftover(process)):
            reason = "left behind by a run process that died"
            gone = InstanceChanged(
                instance.instance, instance.config, InstanceState.GONE, pid=instance.pid, reason=reason
            )
            self._append_events(gone)
        else:
            text = f"whether its process {instance.pid} has ended cannot be verified from here: end it if it still runs"
            self._append_events(Noted("warning", instance.instance, text))

    async def _run_pending(self) -> ExitCode:
        analyzed = self._is_analyzed()
        changed = False
        while (cell := self._find_next()) is not None:
            await self._wait_while_paused()
            if self._steering.stopping:
                return await self._interrupt_run()
            if (cell := self._find_next()) is None:  # a request may have changed what comes next
                break
            await self._enter_stage(cell)
            if not await self._run_cell(cell):
                return await self._interrupt_run()
            await self._end_cells_ahead(cell.stage)
            changed = True
        await self._cells.release("no cell is left")
        self._close_stages()
        if analyzed and changed:
            await self._cells.finish()
        return self._finish_run()

    def _find_next(self) -> CellPlan | None:
        """The first pending cell in plan order, after every open operator request is answered."""
        self._answer_requests()
        for plan in self._view.plan.cells:
            if self._view.cells[plan.cell].state is CellState.PENDING:
                return plan
        return None

    def _answer_requests(self, running: CellPlan | None = None) -> None:
        self._sync_view()
        self._steering.answer_requests(self._view, running)
        self._sync_view()
        if (ahead := self._cells.ahead) is None:
            return
        for cell in self._view.cells.values():
            if cell.state is CellState.SKIPPED:
                ahead.end_skipped(cell.plan)

    async def _wait_while_paused(self) -> None:
        self._answer_requests()
        if not self._steering.paused:
            return
        await self._cells.release("paused")
        self._append_events(RunChanged(RunState.PAUSED, self._steering.pause_reason, os.getpid()))
        while self._steering.paused and not self._steering.stopping:
            await asyncio.sleep(POLL_S)
            self._answer_requests()
        if not self._steering.stopping:
            self._append_events(RunChanged(RunState.RUNNING, "resumed by the operator", os.getpid()))

    async def _enter_stage(self, cell: CellPlan) -> None:
        stage = next(stage for stage in self._view.stages if stage.stage == cell.stage)
        if stage.state is StageState.RUNNING:
            return
        await self._cells.release("the stage ends")
        self._close_stages()
        self._append_events(StageChanged(cell.stage, StageState.RUNNING))

    def _close_stages(self) -> None:
        for stage in self._view.stages:
            states = {self._view.cells[cell].state for cell in stage.cells}
            if states & {CellState.PENDING, CellState.RUNNING} or stage.state is StageState.DONE:
                continue
            if stage.state is StageState.PENDING:
                if states <= {CellState.SKIPPED}:
                    self._append_events(StageChanged(stage.stage, StageState.SKIPPED, "all its cells were skipped"))
            elif stage.state is StageState.RUNNING:
                ended = StageState.FAILED if CellState.FAILED in states else StageState.DONE
                ended = StageState.SKIPPED if states <= {CellState.SKIPPED} else ended
                self._append_events(StageChanged(stage.stage, ended))

    async def _run_cell(self, plan: CellPlan) -> bool:
        """Run one cell to its end; False when the operator stopped it in the middle."""
        reason = self._cells.explain_skip(plan, self._view)
        if reason:
            self._append_events(CellChanged(plan.cell, CellState.SKIPPED, 0, reason))
            return True
        attempt = self._view.cells[plan.cell].attempt + 1
        if attempt > 1 and await self._adopt(plan):
            return True
        require_disk(self._folder)
        self._append_events(CellChanged(plan.cell, CellState.RUNNING, attempt))
        begin_seq = self._view.last_seq
        self._host.cell = self._gpus.cell = "" if plan.kind in UNMEASURED else plan.cell
        task = asyncio.create_task(self._cells.run_cell(plan, attempt))
        try:
            await self._follow_cell(plan, attempt, task)
            await self._record_end(plan, attempt, task, begin_seq)
        except asyncio.CancelledError:
            return await self._end_cancelled(plan, attempt, task)
        finally:
            self._host.cell = self._gpus.cell = ""
        return True

    async def _record_end(self, plan: CellPlan, attempt: int, ending: Awaitable[CellOutcome], begin_seq: int) -> None:
        """Record how an attempt ends. Raises what every further cell would meet too."""
        try:
            outcome = await ending
        except CellSkipped as skipped:
            self._append_events(CellChanged(plan.cell, CellState.SKIPPED, attempt, str(skipped)))
        except Exception as error:  # noqa: BLE001  (recorded, or raised again)
            await self._end_failed(plan, attempt, error, begin_seq)
        else:
            self._end_cell(plan, outcome)

    async def _end_cells_ahead(self, stage: str) -> None:
        """Record the cells of this stage that ran ahead of their turn and have ended since the last call.

        The journal has such a cell running from here to its end only: before, no event said that it runs.
        """
        if (ahead := self._cells.ahead) is None:
            return
        for plan in self._view.plan.cells:
            cell = self._view.cells[plan.cell]
            if plan.stage != stage or cell.state is not CellState.PENDING:
                continue
            ending = ahead.take_ended(plan)
            if ending is not None:
                attempt = cell.attempt + 1
                self._append_events(CellChanged(plan.cell, CellState.RUNNING, attempt))
                await self._record_end(plan, attempt, ending, self._view.last_seq)

    async def _adopt(self, plan: CellPlan) -> bool:
        """End a cell whose artifacts are all in place, though its attempt did not end well; False = measure it.

        Raises ArtifactsUnread.
        """
        outcome = await adopt_if_complete(self._cells.adopt, plan)
        if outcome is None:
            return False
        self._end_cell(plan, outcome)
        self._append_events(Noted("info", plan.cell, "its artifacts are complete: it is not measured again"))
        return True

    async def _end_failed(self, plan: CellPlan, attempt: int, error: Exception, begin_seq: int) -> None:
        """Record why the attempt failed, unless it failed after its last artifact.

        Raises what stood in its way where every further cell would meet it too: the cell is pending then.
        """
        obstacle = _find_obstacle(error)
        if obstacle is None:
            again, reason = self._explain_failure(plan, error, begin_seq)
            try:
                if not await self._adopt(plan):
                    state = CellState.PENDING if again else CellState.FAILED
                    self._append_events(CellChanged(plan.cell, state, attempt, reason))
                return
            except ArtifactsUnread as unread:
                log.error("cell %s: %s", plan.cell, reason)  # the journal has what is in the way now
                obstacle = unread
        named = isinstance(obstacle, HostObstacle | ArtifactsUnread)
        reason = f"interrupted: {obstacle}" if named else CUT_BY_DISK
        self._append_events(CellChanged(plan.cell, CellState.PENDING, attempt, reason))
        raise obstacle

    def _explain_failure(self, plan: CellPlan, error: Exception, begin_seq: int) -> tuple[bool, str]:
        """Whether the cell is tried again, and why it failed."""
        if isinstance(error, (CellFailed, LaunchError, RunnerError, SpecError)):
            again = CUT_BY_DISK if self._is_disk_full() else self._explain_retry(plan.cell, error, begin_seq)
            return bool(again), again or _join_remedy(error)
        # one cell's error must not end the run for the other cells; run.log has the traceback
        log.error("cell %s", plan.cell, exc_info=error)
        return False, f"{type(error).__name__}: {_join_remedy(error)}"

    def _is_disk_full(self) -> bool:
        try:
            require_disk(self._folder)
        except DiskFull:
            return True
        return False

    def _explain_retry(self, cell: str, failed: Exception, begin_seq: int) -> str:
        """Why a cell that failed is tried again: one of its processes was ended from outside; empty = it is not.

        Once for each cell, and whenever the run is being stopped. An engine that dies at its start has had its second
        try there.
        """
        self._sync_view()
        if isinstance(failed, CrashedAtStart) or isinstance(failed.__cause__, CrashedAtStart):
            return ""
        deaths = (
            f"{event.instance} {describe_exit_name(event.death.ended_by)}"
            for event in (recorded.event for recorded in self._store.events(after=begin_seq))
            if isinstance(event, InstanceChanged) and event.death is not None and was_ended(event.death)
        )
        child = failed.ended_by if isinstance(failed, RunnerError) else ""
        death = next(deaths, "") or (str(failed).partition(":")[0] if child else "")
        if death and self._steering.stopping_now:
            # one signal for all processes of the run is a stop, and no try of the cell
            return f"interrupted: {self._steering.stop_reason}"
        was_tried_again = any(attempt.reason.startswith(AGAIN) for attempt in self._view.cells[cell].attempts)
        return f"{AGAIN} {death}" if death and not was_tried_again else ""

    async def _follow_cell(self, plan: CellPlan, attempt: int, task: asyncio.Task[CellOutcome]) -> None:
        """Wait for the cell; meanwhile answer operator requests and record cells that ran ahead of their turn.

        Cancels it on `stop_now` or when it is skipped. Raises what keeps the run from continuing: the cell is cut and
        pending then.
        """
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=POLL_S)
                self._answer_requests(plan)
                if task.done():
                    return
                if self._steering.stopping_now or self._steering.skipped(plan):
                    task.cancel()
                    return
                await self._end_cells_ahead(plan.stage)
        except Exception as error:
            task.cancel()
            await asyncio.wait({task})
            self._append_events(CellChanged(plan.cell, CellState.PENDING, attempt, f"interrupted: {error}"))
            raise

    async def _end_cancelled(self, plan: CellPlan, attempt: int, task: asyncio.Task[CellOutcome]) -> bool:
        if not task.done():  # this coroutine itself was cancelled: the process is being stopped
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        skip = self._steering.skipped(plan)
        if skip:
            self._append_events(CellChanged(plan.cell, CellState.SKIPPED, attempt, skip))
            return True
        if self._lost is None:
            self._append_events(
                CellChanged(plan.cell, CellState.PENDING, attempt, f"interrupted: {self._steering.stop_reason}")
            )
        return False

    def _end_cell(self, plan: CellPlan, outcome: CellOutcome) -> None:
        attempt = max(1, self._view.cells[plan.cell].attempt)
        self._append_events(CellChanged(plan.cell, CellState.DONE, attempt, "", outcome.summary, outcome.degraded))

    async def _interrupt_run(self) -> ExitCode:
        if self._lost is not None:
            raise self._lost
        reason = self._steering.stop_reason
        await self._cells.release(reason)
        self._append_events(RunChanged(RunState.INTERRUPTED, reason, os.getpid()))
        return ExitCode.INTERRUPTED

    def _finish_run(self) -> ExitCode:
        failed = [plan for plan in self._view.plan.cells if self._view.cells[plan.cell].state is CellState.FAILED]
        state = RunState.FAILED if failed else RunState.DONE
        reason = f"{len(failed)} of {len(self._view.plan.cells)} cells failed" if failed else ""
        self._append_events(RunChanged(state, reason, os.getpid()))
        return exit_code(self._view)

    def _cannot_go_on(self, error: Exception) -> ExitCode:
        """The disk is full or the state cannot be written: leave the run resumable and say why."""
        log.error("the run cannot continue: %s", _join_remedy(error))
        if self._lost is not None:
            return ExitCode.INTERRUPTED
        with contextlib.suppress(StateError, OSError):  # the very write that failed may fail again
            self._sync_view()
            self._append_events(RunChanged(RunState.INTERRUPTED, _join_remedy(error), os.getpid()))
        return ExitCode.INTERRUPTED

    def _is_analyzed(self) -> bool:
        return any(
            plan.kind == "analysis" and self._view.cells[plan.cell].state is CellState.DONE
            for plan in self._view.plan.cells
        )

    async def _renew_lease(self) -> None:
        """Renew the lease; a run that another process took over is left to it."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                self._lease.heartbeat()
            except StateError as error:
                self._lost = error
                self._steering.stop_now(str(error))
                return

    def _append_events(self, *events: Event) -> None:
        self._store.append(*events)
        self._sync_view()

    def _sync_view(self) -> None:
        """Fold the journal's new events: our own, and those of operators' processes."""
        for recorded in self._store.events(after=self._view.last_seq):
            self._view = fold(self._view, recorded)


def _find_obstacle(error: Exception) -> Exception | None:
    """A full disk, a taken port of the engines, or no way to see the engines' processes or the cell's artifacts."""
    is_disk_full = isinstance(error, StateDiskFull) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)
    if is_disk_full or isinstance(error, ArtifactsUnread):
        return error
    return next((one for one in (error, error.__cause__) if isinstance(one, HostObstacle)), None)


def _was_cut(cell: CellView) -> bool:
    is_interrupted = bool(cell.attempts) and cell.attempts[-1].state is AttemptState.INTERRUPTED
    return cell.state is CellState.PENDING and is_interrupted


def _find_process(instance: InstanceView) -> ProcessIdentity | None:
    """The main process of an engine. A record without a host, by an older Tracon, is taken to be of this host."""
    if instance.pid is None or instance.process_start is None:
        return None
    here = identify_this_process()
    return ProcessIdentity(
        instance.pid,
        instance.process_start,
        instance.start_ticks,
        instance.boot_id,
        instance.host or here.host,
        instance.pid_namespace if instance.host else here.pid_namespace,
    )


def _join_remedy(error: BaseException) -> str:
    """An error and its remedy as one paragraph."""
    shortage = error.errno if isinstance(error, OSError) else None
    remedy = getattr(error, "remedy", "") or SHORTAGE_REMEDIES.get(shortage or 0, "")
    text = str(error) or type(error).__name__
    return f"{text.rstrip('.')}. {remedy}" if remedy else text

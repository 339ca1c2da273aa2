"""Runs on real engines that meet the faults of a script and are resumed until they end.

Several faults wait for their moments at once, and each strikes when its own comes. The run decides the order, and many
strike while it recovers from another. One at a time, a fault cost as much time as a cell.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from urllib.parse import urlsplit

import psutil

from launch.environment import home
from launch.ports import is_free
from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceState,
    RunState,
)
from runners.campaign.start import spawn_run_process
from runners.cli.asking import ask_run
from state.model import RunView
from state.store import RunStore
from state.view import fold
from tests.chaos import audit, processes
from tests.chaos.audit import Findings
from tests.chaos.faults import CONNECTOR_TAX, PD_LIFECYCLE, ROUTING, Fault, Script
from tests.chaos.terminal import Console
from tests.chaos.turns import Span
from tests.ports import own_port

PORT_BASE, PORTS = 23_100, 24
RUNS = {
    ROUTING: (ROUTING, "--preset", "smoke"),
    PD_LIFECYCLE: (PD_LIFECYCLE, "--preset", "smoke"),
    CONNECTOR_TAX: (
        CONNECTOR_TAX, "--preset", "smoke", "--config", "plain", "--trials", "3",
        "--set", "min_duration_s=1", "--set", "min_completed=4",
    ),
}  # fmt: skip
"""Cells of a few seconds, so that moments come often."""
POLL_S = 0.02
QUIET_S = 100.0
"""A run that works and writes nothing into its journal for this long is stuck."""
ARMED = 4
"""Faults that wait for their moments at once."""
MOMENT_S = 300.0
"""How long a fault waits for its moment; the others strike meanwhile."""
ORPHAN_S = 20.0
"""Within which everything of a run process that died must have ended."""
INHERITED_NS = 120_000_000_000
"""A router that starts while its run process is short of a resource stays short of it for its cell."""
LOAD_ENDED = "the load process has ended"
CHECKOUT = re.compile(r"/\S*/(?=launch/)")
"""Where this package, or another campaign's, lies."""
ATTEMPTS = 12
"""Resumes of one run without a finished cell between them; it cannot be brought to its end then."""


@dataclass(slots=True)
class Met:
    """A fault and what it met."""

    fault: Fault
    target: int
    """Process id, or port."""
    cell: str
    """The cell that ran; empty = none."""
    after_s: float
    """Since the campaign began."""


@dataclass(slots=True)
class Outcome:
    """What became of a campaign."""

    met: list[Met] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)
    """Faults whose moment did not come within MOMENT_S."""
    runs: int = 0
    resumes: int = 0
    retried: list[str] = field(default_factory=list)
    """Why cells had failed that were retried."""
    cells: int = 0
    """Done, over all runs."""
    attempts: int = 0
    """That failed or were interrupted, and whose turns were audited."""
    findings: Findings = field(default_factory=Findings)


class Stuck(Exception):
    """A run neither ends nor goes on."""


class Campaign:
    """Plays one script in `folder`. Everything that the runs start stays below this process."""

    def __init__(self, script: Script, folder: Path, disk: processes.Disk | None, note: Callable[[str], None]) -> None:
        self._script = script
        self._workspace = folder
        self._disk = disk
        self._note = note
        self._outcome = Outcome()
        self._began_s = time.monotonic()
        self._waiting = deque(script.faults)
        self._armed: list[_Armed] = []
        self._run: _Run | None = None
        self._console: Console | None = None

    def play(self) -> Outcome:
        """Meet every fault, bring every run to its end, and count."""
        processes.adopt_orphans()
        with _own_temporary_folder():
            try:
                while self._waiting or self._armed:
                    self._attempt(self._meet_next)
                self._attempt(self._finish_run)
            finally:
                self._end_everything()
        return self._outcome

    def _attempt(self, step: Callable[[], None]) -> None:
        """A run that is stuck is counted and left behind."""
        try:
            step()
        except Stuck as stuck:
            self._outcome.findings.add("stuck", str(stuck))
            if self._run is not None:
                self._check_sessions(self._run)
            self._end_run()

    def _meet_next(self) -> None:
        """Wait until the moment of any armed fault comes, or the run process ends."""
        run = self._run_at_work()
        while self._waiting and len(self._armed) < ARMED:
            self._armed.append(_Armed(self._waiting.popleft(), time.monotonic() + MOMENT_S))
        self._note_moments(run)
        earliest = min(self._armed, key=lambda armed: armed.due_s or math.inf, default=None)
        if earliest is not None and earliest.due_s is not None and time.monotonic() >= earliest.due_s:
            self._strike(earliest, run)
        for armed in [armed for armed in self._armed if time.monotonic() > armed.deadline_s]:
            self._armed.remove(armed)
            self._outcome.missed.append(armed.fault)
            self._note(f"missed: {armed.fault}")
        time.sleep(POLL_S)

    def _note_moments(self, run: _Run) -> None:
        run.sync()
        expected = [armed for armed in self._armed if armed.due_s is None]
        run.follow_load(wanted=any(armed.fault.moment == "publishing" for armed in expected))
        news, run.news = run.news, []
        for armed in expected:
            if has_come(armed.fault.moment, news):
                armed.due_s = time.monotonic() + armed.fault.delay_s

    def _strike(self, armed: _Armed, run: _Run) -> None:
        """Inflict a fault that is due; without a target it waits for its moment again."""
        fault, target = armed.fault, self._target(armed.fault, run)
        if target is None:
            armed.due_s = None
            return
        self._armed.remove(armed)
        running = [cell.plan.cell for cell in run.view.current_cells]
        met = Met(fault, target, running[0] if running else "", round(time.monotonic() - self._began_s, 2))
        where = f"{'port' if fault.role == 'port' else 'pid'} {target}, in {met.cell or 'no cell'}"
        self._note(f"{met.after_s:7.2f} s {fault.kind} ({fault.moment} + {fault.delay_s} s), {where}")
        self._inflict(fault, target, run)
        self._outcome.met.append(met)
        self._check_console()

    def _target(self, fault: Fault, run: _Run) -> int | None:
        if fault.role == "console":
            if self._console is None:
                self._console = Console(run.folder)
            return self._console.pid
        run.sync()
        if fault.role == "port":
            ports = list_unused_ports(run.view, run.port)
            return ports[int(fault.draw * len(ports))] if ports else None
        engines = [instance.pid for instance in run.view.live_instances if instance.pid is not None]
        pids = processes.find_role(fault.role, run.pid, engines)
        return pids[int(fault.draw * len(pids))] if pids else None

    def _inflict(self, fault: Fault, target: int, run: _Run) -> None:
        pid = run.pid if fault.role == "port" else target
        if fault.action == "kill":
            processes.send(pid, SIGKILL)
            if fault.role == "console" and self._console is not None:
                self._console.close()
                self._console = None
            return
        actions: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "stop": lambda: processes.stopped(pid),
            "descriptors": lambda: processes.few_descriptors(pid, fault.draw),
            "memory": lambda: processes.little_memory(pid, fault.draw),
            "disk": lambda: self._full_disk(fault.draw),
            "take": lambda: processes.port_taken(target),
        }

        def has_ended() -> bool:
            self._note_moments(run)  # of the other faults, which strike right after this one
            return not processes.is_running(pid)

        begin_ns = time.perf_counter_ns()
        with contextlib.suppress(OSError, psutil.Error), actions[fault.action]():  # it ended meanwhile
            processes.wait_for(has_ended, fault.hold_s, POLL_S)
        if fault.action == "disk" or fault.role == "router":
            run.starved.append((begin_ns, time.perf_counter_ns()))
        elif fault.role == "run" and fault.action != "stop":
            run.starved.append((begin_ns, time.perf_counter_ns() + INHERITED_NS))

    def _full_disk(self, spare: float) -> AbstractContextManager[None]:
        assert self._disk is not None
        return self._disk.full(spare)

    def _run_at_work(self) -> _Run:
        """The run that works: the one at hand, resumed where its process has ended, or a new one."""
        if self._run is not None and not self._run.works():
            self._settle()
        if self._run is None:
            self._outcome.runs += 1
            self._run = _Run.start(self._script.experiment, self._workspace)
            self._note(f"{time.monotonic() - self._began_s:7.2f} s run {self._run.folder.name}")
        return self._run

    def _settle(self) -> None:
        """The run process has ended: see what is left of it, then count a finished run or resume."""
        run = self._run
        assert run is not None
        for armed in self._armed:
            armed.due_s = None
        self._count_orphans(run)
        run.note_published()
        run.sync()
        failed = [cell for cell in run.view.cells.values() if cell.state is CellState.FAILED]
        if run.view.state is RunState.DONE or (run.view.state is RunState.FAILED and not failed):
            self._count(run)
            self._run = None
            return
        if failed and run.view.state is RunState.FAILED:
            self._outcome.retried.extend(_shorten(cell.reason) for cell in failed)
            ask_run(run.folder, "retry", "", "")
        self._outcome.resumes += 1
        run.resume()

    def _finish_run(self) -> None:
        while self._run is not None:
            if not self._run.works():
                self._settle()
            time.sleep(POLL_S)

    def _count_orphans(self, run: _Run) -> None:
        own = {os.getpid(), *([self._console.pid] if self._console else [])}

        def none_left() -> bool:
            processes.reap(keep=tuple(own))
            return not set(processes.live_below(os.getpid())) - own

        if not processes.wait_for(none_left, ORPHAN_S, poll_s=0.1):
            for pid, words in processes.live_below(os.getpid()).items():
                if pid not in own:
                    self._outcome.findings.add("orphans", f"{run.folder.name}: pid {pid} {' '.join(words)[:160]}")
                    processes.send(pid, SIGKILL)

    def _check_console(self) -> None:
        """A console that no fault has killed still draws."""
        if self._console is not None and not self._console.alive:
            self._outcome.findings.add("stuck", f"the console ended by itself: {self._console.drawn[-400:]!r}")
            self._console.close()
            self._console = None

    def _count(self, run: _Run) -> None:
        findings = self._outcome.findings
        audit.check_cells(run.folder, run.published, findings)
        audit.check_files(run.folder, findings)
        audit.check_measurements(run.folder, findings)
        self._check_sessions(run)
        audit.check_ports(run.port, PORTS, findings)
        audit.check_shared_memory(run.shared_memory, findings)
        audit.check_sockets(Path(os.environ["TMPDIR"]), findings)
        self._outcome.cells += sum(cell.state is CellState.DONE for cell in run.view.cells.values())
        self._check_console()
        self._note(f"{time.monotonic() - self._began_s:7.2f} s {run.folder.name} is {run.view.state}")

    def _check_sessions(self, run: _Run) -> None:
        self._outcome.attempts += audit.check_sessions(run.folder, self._outcome.findings, run.starved)

    def _end_run(self) -> None:
        """Leave the run at hand behind, with nothing of it."""
        if self._run is not None:
            processes.send(self._run.pid, SIGKILL)
            self._count_orphans(self._run)
            self._run = None

    def _end_everything(self) -> None:
        if self._console is not None:
            self._console.close()
        for pid in processes.live_below(os.getpid()):
            processes.send(pid, SIGKILL)
        processes.wait_for(lambda: not processes.live_below(os.getpid()), ORPHAN_S)
        processes.reap()


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """For this process and those below it, so that every socket that stays in it is one of the campaign's."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="tracon-", ignore_cleanup_errors=True) as name:
        os.environ["TMPDIR"] = name
        try:
            yield
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


class _Run:
    """A run, followed through its journal, and its process."""

    def __init__(self, folder: Path, port: int, pid: int, shared_memory: set[str]) -> None:
        self.folder = folder
        self.port = port
        self.pid = pid
        self.shared_memory = shared_memory
        self.published: dict[str, int] = {}
        """Cells in place whenever an attempt had failed or the run process was dead, and the attempt that made them."""
        self._store = RunStore.open(folder, read_only=True)
        self.view: RunView = self._store.view()
        self.news: list[Event | str] = []
        """Events, and LOAD_ENDED, since they were taken last."""
        self._load = 0
        """The load process; 0 = none is running."""
        self._heard_s = time.monotonic()
        self._resumes = 0
        self.starved: list[Span] = []
        """When its routers could not write, or may have been unable to."""

    @classmethod
    def start(cls, experiment: str, workspace: Path) -> _Run:
        port, shared_memory = own_port(PORT_BASE, PORTS), audit.list_shared_memory()
        argv = [
            sys.executable,
            "-m",
            "runners.cli",
            "run",
            *RUNS[experiment],
            "--port",
            str(port),
            "--detach",
            "--json",
        ]
        env = os.environ | {"TRACON_WORKSPACE": str(workspace)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise SystemExit(f"the run did not start: {done.stderr[-2000:]}")
        started = json.loads(done.stdout)
        return cls(Path(started["folder"]), port, int(started["pid"]), shared_memory)

    def resume(self) -> None:
        self._resumes += 1
        if self._resumes > ATTEMPTS:
            raise Stuck(f"{self.folder.name} was resumed {ATTEMPTS} times in a row without a finished cell")
        self._load = 0
        self.news.clear()
        self.pid = spawn_run_process(self.folder).pid
        self._heard_s = time.monotonic()

    def works(self) -> bool:
        """Whether its process lives. Raises Stuck where it does and nothing happens."""
        self.sync()
        if not processes.is_running(self.pid):
            return False
        if time.monotonic() - self._heard_s > QUIET_S:
            last = [line.text for line in self.view.feed[-3:]]
            raise Stuck(f"{self.folder.name}: no event for {QUIET_S:g} s, the last ones: {last}")
        return True

    def sync(self) -> None:
        """Fold what the journal has gained; note what is in place of a cell whose attempt has ended without it."""
        has_failed = False
        for recorded in self._store.events(after=self.view.last_seq):
            self.view = fold(self.view, recorded)
            self.news.append(recorded.event)
            self._heard_s = time.monotonic()
            if isinstance(recorded.event, CellChanged):
                has_failed = has_failed or recorded.event.state in (CellState.PENDING, CellState.FAILED)
                if recorded.event.state is CellState.DONE:
                    self._resumes = 0
        if has_failed:
            self.note_published()

    def follow_load(self, *, wanted: bool) -> None:
        """Report the end of the load process, if it was `wanted` since it ran: finding it takes milliseconds."""
        if not wanted:
            self._load = 0
        elif not self._load:
            self._load = next(iter(processes.find_role("load", self.pid, ())), 0)
        elif not processes.is_running(self._load):
            self._load = 0
            self.news.append(LOAD_ENDED)

    def note_published(self) -> None:
        for cell, attempt in audit.published_records(self.folder):
            self.published.setdefault(cell, attempt)


@dataclass(slots=True)
class _Armed:
    """A fault that waits for its moment."""

    fault: Fault
    deadline_s: float
    due_s: float | None = None
    """When it strikes: its moment has come; None = it has not."""


def _shorten(reason: str) -> str:
    """Why a cell failed, in one line without this machine's folders: the journal of faults is published."""
    first = reason.splitlines()[0].replace(str(home()), "$TRACON_HOME")
    return CHECKOUT.sub("", first)[:200]


def list_unused_ports(view: RunView, first: int) -> list[int]:
    """Ports of engines that have ended or not yet begun, where no process listens. `first`: of the run."""
    known, live = (
        {urlsplit(one.url).port or first for one in each} for each in (view.instances.values(), view.live_instances)
    )
    return sorted(port for port in {first, *known} - live if is_free(port))


def has_come(moment: str, news: Sequence[Event | str]) -> bool:
    """Whether a fault's moment is in what has happened."""
    return moment == "present" or any(_is_moment(moment, event) for event in news)


def _is_moment(name: str, event: Event | str) -> bool:
    if name == "publishing":
        return event == LOAD_ENDED
    if name == "starting":
        return isinstance(event, InstanceChanged) and event.state is InstanceState.STARTING
    if name == "measuring":
        return isinstance(event, CellProgressed)
    return isinstance(event, CellChanged) and event.state is CellState.DONE

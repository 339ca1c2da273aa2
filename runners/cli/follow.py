"""Follow a run from its journal: progress on a terminal, plain lines in a pipe, events as JSON lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.live import Live

import runners.cli.terminal as terminal
from runners.campaign.exit_code import exit_code
from runners.campaign.experiment import NOT_NEEDED
from runners.cli.tables import format_feed_line, make_progress_panel, progress_line
from state.events import Recorded
from state.feed_lines import FeedLine
from state.lease import read_lease_state
from state.model import EMPTY, RunView
from state.store import RunStore
from state.view import fold, list_new_feed_lines

POLL_S = 0.5
PROGRESS_LINE_S = 60.0
LEASE_GRACE_S = 20.0
"""Time that a run process has from its start until it holds the lease."""
Show = Callable[[list[Recorded], list[FeedLine], RunView], None]
"""Shows the events since the last call, their lines of the feed, and the view after them."""


def follow_run(folder: Path, *, worker_pid: int | None = None, events: bool = False) -> int:
    """Follow until the run process has ended; returns the run's exit code.

    `worker_pid`: a child process that may not hold the lease yet. `events`: print the whole journal.
    """
    with RunStore.open(folder, read_only=True) as store:
        if events:
            return _follow_store(store, worker_pid, _print_events)
        if sys.stderr.isatty():
            with Live(console=terminal.err(), refresh_per_second=2, transient=True) as live:
                return _follow_store(
                    store, worker_pid, lambda new, lines, view: live.update(make_progress_panel(view, time.time()))
                )
        return _follow_store(store, worker_pid, _FeedLines())


def _print_events(new: list[Recorded], lines: list[FeedLine], view: RunView) -> None:
    for recorded in new:
        line = {
            "seq": recorded.seq,
            "t_unix_s": recorded.t_unix_s,
            "kind": recorded.event.kind,
            "event": recorded.event,
        }
        terminal.print_json_line(terminal.encode_json(line))


class _FeedLines:
    """In a pipe: print a line per event, and the progress every PROGRESS_LINE_S."""

    def __init__(self) -> None:
        self._next_progress = time.monotonic() + PROGRESS_LINE_S

    def __call__(self, new: list[Recorded], lines: list[FeedLine], view: RunView) -> None:
        for line in lines:
            if NOT_NEEDED in line.text:
                continue
            terminal.err().print(format_feed_line(line), soft_wrap=True)
        if time.monotonic() >= self._next_progress:
            self._next_progress += PROGRESS_LINE_S
            terminal.err().print(progress_line(view, time.time()), markup=False, soft_wrap=True)


def await_lease(folder: Path, worker_pid: int) -> None:
    """Wait until the run process, a child process, holds the run's lease or has ended; for at most LEASE_GRACE_S."""
    deadline = time.monotonic() + LEASE_GRACE_S
    with RunStore.open(folder, read_only=True) as store:
        while not read_lease_state(store).live and not _has_ended(worker_pid) and time.monotonic() < deadline:
            time.sleep(0.05)


def _follow_store(store: RunStore, worker_pid: int | None, show: Show) -> int:
    view = EMPTY
    deadline = time.monotonic() + LEASE_GRACE_S
    worked = False
    while True:
        new = list(store.events(after=view.last_seq))
        lines: list[FeedLine] = []
        for recorded in new:
            before, view = view, fold(view, recorded)
            lines += list_new_feed_lines(before, view)
        show(new, lines, view)
        live = read_lease_state(store).live
        worked = worked or live
        if not live and (worked or worker_pid is None or _has_ended(worker_pid) or time.monotonic() > deadline):
            if list(store.events(after=view.last_seq, limit=1)):
                continue  # written while it ended
            return exit_code(view)
        time.sleep(POLL_S)


def _has_ended(pid: int) -> bool:
    """Whether the child process has ended; reaps it."""
    try:
        ended, _status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return not psutil.pid_exists(pid)
    return ended == pid

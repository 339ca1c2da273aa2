"""The console as a process: what it imports, how it ends, and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from console.__main__ import main
from runners.errors import ExitCode
from state.lease import read_lease_state
from state.store import RunStore

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"


class Terminal:
    """A console on a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.output = b""

    def read_until(self, holds: Callable[[bytes], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds(self.output):
            assert time.monotonic() < deadline, f"{what}: {self.output[-2000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.master, 65_536)
                except OSError:  # the other side is closed
                    assert holds(self.output), f"{what}: {self.output[-2000:]!r}"

    def drain(self) -> int:
        """Read what is left while the process ends; returns its exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the console did not end"
            if select.select([self.master], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.output += os.read(self.master, 65_536)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.output += os.read(self.master, 65_536)
            except OSError:
                break
        return self.process.returncode

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


@contextmanager
def on_a_terminal(
    run: Path, *, ignore_hangup: bool = False, program: tuple[str, ...] = ("-m", "console")
) -> Iterator[tuple[Terminal, int]]:
    """The console, or a program that shows it, on `run` in a session of its own; the slave side of its terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))

    def become_leader() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if ignore_hangup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = subprocess.Popen(
        [sys.executable, *program, str(run)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm-256color"},
        preexec_fn=become_leader,
    )
    terminal = Terminal(process, master)
    try:
        yield terminal, slave
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        terminal.close()
        with suppress(OSError):
            os.close(slave)


def test_q_leaves_with_0_and_the_terminal_as_it_was(live_run: Path) -> None:
    with on_a_terminal(live_run) as (terminal, slave):
        before = termios.tcgetattr(slave)
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        assert termios.tcgetattr(slave) != before
        os.write(terminal.master, b"q")
        assert terminal.drain() == 0
        assert termios.tcgetattr(slave) == before
    assert LEAVE_ALTERNATE_SCREEN in terminal.output


ACCOMPANY = """
import sys
from pathlib import Path
import typer
from runners.cli.accompany import accompany_run
try:
    accompany_run(Path(sys.argv[1]), 0, detach=False, console=True, json=False)
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def test_the_command_that_began_a_run_ends_with_its_outcome_when_the_console_is_closed(ended_run: Path) -> None:
    with RunStore.open(ended_run, read_only=True) as store:
        (failed,) = (cell.plan.cell for cell in store.view().cells.values() if cell.state == "failed")
    with on_a_terminal(ended_run, program=("-c", ACCOMPANY)) as (terminal, _):
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.write(terminal.master, b"q")
        assert terminal.drain() == ExitCode.CELLS_FAILED
    assert failed.encode() in terminal.output.rpartition(LEAVE_ALTERNATE_SCREEN)[2]


def test_it_says_that_a_run_goes_on_when_the_console_is_closed_before_its_end(live_run: Path) -> None:
    with on_a_terminal(live_run, program=("-c", ACCOMPANY)) as (terminal, _):
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.write(terminal.master, b"q")
        assert terminal.drain() == ExitCode.INTERRUPTED
    assert b"continues" in terminal.output.rpartition(LEAVE_ALTERNATE_SCREEN)[2]


def test_ctrl_c_leaves_the_console_and_not_the_run(live_run: Path) -> None:
    with RunStore.open(live_run, read_only=True) as store:
        before = store.view()
    with on_a_terminal(live_run) as (terminal, _):
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.write(terminal.master, b"\x03")
        assert terminal.drain() == 0
    with RunStore.open(live_run, read_only=True) as store:
        assert store.view() == before
        assert read_lease_state(store).live


@pytest.mark.fault
def test_killing_the_console_does_not_touch_the_run(live_run: Path) -> None:
    with RunStore.open(live_run, read_only=True) as store:
        before = store.view()
    with on_a_terminal(live_run) as (terminal, _):
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait(LIMIT_S)
    with RunStore.open(live_run) as store:
        assert store.view() == before
        assert read_lease_state(store).live


@pytest.mark.fault
@pytest.mark.parametrize("ignore_hangup", [False, True])
def test_the_console_ends_when_its_terminal_is_gone(live_run: Path, ignore_hangup: bool) -> None:
    with on_a_terminal(live_run, ignore_hangup=ignore_hangup) as (terminal, slave):
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.close(slave)
        terminal.close()
        assert terminal.process.wait(LIMIT_S) in (1, 128 + signal.SIGHUP)


def test_sigterm_restores_the_terminal(live_run: Path) -> None:
    with on_a_terminal(live_run) as (terminal, slave):
        before = termios.tcgetattr(slave)
        terminal.read_until(lambda out: b"Phase A" in out, "the run was not drawn")
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.drain() == 128 + signal.SIGTERM
        assert termios.tcgetattr(slave) == before
    assert LEAVE_ALTERNATE_SCREEN in terminal.output


def test_a_run_that_is_not_there_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-run", "--workspace", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "no-such-run" in message
    assert message.count("\n") == 1


def test_without_a_terminal_it_says_what_to_use_instead(live_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(live_run)]) == 2
    assert "tracon watch" in capsys.readouterr().err

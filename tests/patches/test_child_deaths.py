"""Children that really end in each way: only unrequested abnormal ends are named, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import multiprocessing.connection, os, signal, sys, time
from patches.child_deaths import name_child_deaths
name_child_deaths()
name_child_deaths()
how, reaps = sys.argv[1:]
def body():
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "waits":
        time.sleep(60)
    if how == "lingers":  # as a big process that a signal ended: the kernel has closed its files, and it is not reaped
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.closerange(3, 256)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=body, name="EngineCore")
    child.start()
    if how == "waits":
        child.terminate()
    if how == "lingers":
        multiprocessing.connection.wait([child.sentinel])
        child.terminate()
        if reaps == "and exits":
            print(child.pid, -signal.SIGKILL)
            sys.stdout.flush()
            multiprocessing.process._children.clear()  # vLLM waits for none
            sys.exit()
    if reaps == "and exits":
        sys.setswitchinterval(5.0)  # its threads wait for the interpreter until the main thread has ended
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    elif reaps == "at once":
        child.join(60)
        time.sleep(0.5)
    else:
        time.sleep(1.5)
        child.join(60)
    print(child.pid, child.exitcode)
"""


def run(how: str, reaps: str = "at once") -> tuple[int, int, list[str]]:
    """The child's pid and exit code as its parent got them, and the lines that name its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, reaps], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    pid, code = map(int, done.stdout.split())
    return pid, code, [line for line in done.stderr.splitlines() if line.startswith("[tracon]")]


@pytest.mark.parametrize("signal", ["SIGILL", "SIGSEGV", "SIGKILL", "SIGABRT"])
@pytest.mark.parametrize("reaps", ["at once", "later", "and exits"])
def test_the_signal_that_ended_a_child_is_named_once_and_its_parent_still_reaps_it(signal: str, reaps: str) -> None:
    pid, code, lines = run(signal, reaps=reaps)
    assert code < 0
    assert lines == [f"[tracon] process EngineCore pid {pid} died of {signal}"]


def test_an_exit_code_is_named_and_a_good_end_is_not() -> None:
    pid, code, lines = run("3")
    assert (code, lines) == (3, [f"[tracon] process EngineCore pid {pid} ended with exit code 3"])
    assert run("0")[1:] == (0, [])


def test_a_child_that_its_parent_ends_is_not_named() -> None:
    assert run("waits")[1:] == (-15, [])


@pytest.mark.parametrize("reaps", ["at once", "and exits"])
def test_a_child_that_is_asked_to_end_while_it_dies_is_named(reaps: str) -> None:
    pid, code, lines = run("lingers", reaps=reaps)
    assert (code, lines) == (-9, [f"[tracon] process EngineCore pid {pid} died of SIGKILL"])

"""The core of an engine's steps: who may run where while the engine lives, and that all of it is undone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import step_core
from launch.host import Host, Limits
from launch.profile import PROFILES_FOLDER, ProfileError, load_profile
from launch.step_core import StepCore, give_step_core, why_no_step_core

CORES = tuple(sorted(os.sched_getaffinity(0)))
needs_two = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")

ENGINE = """
import os, sys, threading, time
read, write = os.pipe()
if os.fork() == 0:              # the engine core, with a thread beside its main one
    hold = threading.Event()
    threading.Thread(target=hold.wait, daemon=True).start()
    print(os.getpid(), flush=True)
    for line in sys.stdin:      # each line: one thread more
        threading.Thread(target=hold.wait, daemon=True).start()
        print("started", flush=True)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """An API server and, below it, an engine core of two threads; with the engine core's id."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server, int(server.stdout.readline())
        finally:
            server.stdin.close()


def affinities(process: int) -> dict[int, set[int]]:
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return {task: os.sched_getaffinity(task) for task in tasks}


@needs_two
def test_the_steps_have_the_last_core_and_api_server_and_load_the_others(
    engine: tuple[subprocess.Popen[str], int],
) -> None:
    server, core = engine
    split = give_step_core(server.pid)
    try:
        assert split.describe() == {"step": CORES[-1], "others": list(CORES[:-1])}
        others = affinities(core)
        assert others.pop(core) == {CORES[-1]}
        assert list(others.values()) == [set(CORES)], "a connector's threads may run anywhere"
        assert set(map(frozenset, affinities(server.pid).values())) == {frozenset(CORES[:-1])}
        assert set(map(frozenset, affinities(os.getpid()).values())) == {frozenset(CORES[:-1])}, "the load inherits it"
    finally:
        split.release()
    assert set(map(frozenset, affinities(os.getpid()).values())) == {frozenset(CORES)}


@needs_two
def test_a_thread_that_the_steps_have_started_is_let_go(engine: tuple[subprocess.Popen[str], int]) -> None:
    server, core = engine
    assert server.stdin is not None
    assert server.stdout is not None
    split = give_step_core(server.pid)
    split.release()
    before = set(affinities(core))
    server.stdin.write("one more\n")
    server.stdin.flush()
    server.stdout.readline()
    (new,) = set(affinities(core)) - before
    assert os.sched_getaffinity(new) == {CORES[-1]}, "it begins where its maker is bound"
    split.free_new_threads()
    assert os.sched_getaffinity(new) == set(CORES)
    assert os.sched_getaffinity(core) == {CORES[-1]}
    os.sched_setaffinity(new, CORES[-1:])  # by itself, later
    split.free_new_threads()
    assert os.sched_getaffinity(new) == {CORES[-1]}


def host(cores: int, quota: float | None) -> Host:
    return Host(cores, 8, 1, 1, Limits(quota))


@pytest.mark.parametrize(
    ("cores", "quota", "why"),
    [(1, None, "one core only"), (4, 1.5, r"\(cpu.max\) is 1.5 cores"), (2, None, "^$"), (2, 2.0, "^$")],
)
def test_too_few_cores_are_a_reason(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, why: str) -> None:
    monkeypatch.setattr(step_core, "read_host", lambda: host(cores, quota))
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(why_no_step_core())


def test_nothing_is_bound_where_there_is_no_core_for_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_core, "read_host", lambda: host(1, None))
    split = give_step_core(os.getpid())
    assert split.describe() == {"step": None, "others": list(CORES), "reason": "this process may use one core only"}
    split.free_new_threads()
    split.release()
    assert os.sched_getaffinity(threading.get_native_id()) == set(CORES)


@needs_two
def test_an_engine_with_other_processes_than_its_core_is_left_alone() -> None:
    split = give_step_core(os.getpid())
    assert split == StepCore(None, CORES, "the engine has 0 processes below its API server, not one")


@pytest.mark.parametrize("executor", ["mp", ""])
def test_a_profile_whose_steps_run_elsewhere_is_refused(tmp_path: Path, executor: str) -> None:
    assert load_profile("cpu-tiny").launch.own_step_core
    text = (PROFILES_FOLDER / "cpu-tiny.toml").read_text()
    file = tmp_path / "own.toml"
    file.write_text(text.replace('executor = "uni"', f'executor = "{executor}"'))
    with pytest.raises(ProfileError, match=r"launch.own_step_core needs a CPU engine"):
        load_profile(file)

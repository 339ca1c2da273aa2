"""Steps that really stall, in a process of their own: one line and one set of stacks each, and silence otherwise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 0.6
PROGRAM = """
import ctypes, os, sys, time
from types import ModuleType
from patches import step_probe
from tests.patches import fake_vllm
scheduler = fake_vllm.make_scheduler()
sys.modules.update(fake_vllm.modules(scheduler, fake_vllm.make_factory(fake_vllm.Connector)))
step_probe.install(sys.argv[2])
engine = scheduler(fake_vllm.config())
def stall_here(sleep, seconds):
    sleep(seconds)
def step(sleep=time.sleep, seconds=0.0, where="model"):
    engine.next_output = fake_vllm.decode_step(1)
    engine.busy = True
    output = engine.schedule()
    stall_here(sleep, seconds)
    engine.update_from_output(output, None)
how = sys.argv[1]
if how == "sleeps":
    step(seconds=2.0)
elif how == "holds the GIL":
    step(lambda seconds: ctypes.PyDLL(None).usleep(int(seconds * 1e6)), 2.0)
elif how == "twice":
    step(seconds=1.5)
    step()
    step(seconds=1.5)
elif how == "idle":
    step()
    engine.busy = False
    time.sleep(2.0)
elif how == "works":
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        step(seconds=0.02)
engine.busy = False
time.sleep(0.8)
"""


WORKER = """
import sys, time
from types import SimpleNamespace
from patches import stalls
from tests.patches import fake_vllm
modules = fake_vllm.modules(fake_vllm.make_scheduler(), fake_vllm.make_factory(fake_vllm.Connector))
sys.modules.update(modules)
class Worker(modules[fake_vllm.WORKER_MODULE].WorkerBase):
    def execute_model(self, scheduler_output):
        time.sleep(scheduler_output)
    def sample_tokens(self, grammar_output):
        time.sleep(grammar_output)
stalls.watch_each_worker()
stalls.watch_each_worker()
worker = Worker(SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend=sys.argv[1])))
time.sleep(1.5)
worker.execute_model(0.0)
worker.sample_tokens(1.5)
time.sleep(1.5)
worker.execute_model(1.5)
"""


def run(how: str, folder: Path, limit_s: float | str = LIMIT_S, program: str = PROGRAM) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, how, str(folder / "engine_step.jsonl")],
        cwd=ROOT, env={"TRACON_STALL_S": str(limit_s), "PATH": ""}, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    return done.stderr


def test_a_stalled_step_names_its_frame_once_and_leaves_its_stack_and_its_length(tmp_path: Path) -> None:
    log = run("sleeps", tmp_path)
    markers = re.findall(r"^\[tracon\] a step has run for 0.6 s, (.*) \(step 1, pid \d+\)$", log, re.MULTILINE)
    assert markers == ["<string>:11 in stall_here"]
    assert re.search(r'File "<string>", line 11 in stall_here', log)
    ended = re.search(r"^\[tracon\] step 1 ended after ([\d.]+) s", log, re.MULTILINE)
    assert ended is not None
    assert 1.0 < float(ended[1]) < 4.0
    assert "Timeout" not in log


def test_a_step_that_holds_the_gil_leaves_its_stack_through_faulthandlers_own_thread(tmp_path: Path) -> None:
    log = run("holds the GIL", tmp_path)
    assert log.count("Timeout (0:00:00.600000)!") == 1
    assert "in stall_here" in log
    assert re.search(r"^\[tracon\] no Python thread ran for [12]\.\d s", log, re.MULTILINE)
    assert "a step has run" not in log


@pytest.mark.timing  # a machine that starves the watch has it report that instead
def test_each_stall_is_reported(tmp_path: Path) -> None:
    log = run("twice", tmp_path)
    assert re.findall(r"has run for .*\(step (\d)", log) == ["1", "3"]


@pytest.mark.parametrize("how", ["idle", "works"])
def test_an_engine_that_is_idle_or_at_work_reports_nothing(tmp_path: Path, how: str) -> None:
    assert run(how, tmp_path) == ""


def test_zero_turns_the_watch_off_and_a_wrong_limit_leaves_the_engine_running(tmp_path: Path) -> None:
    assert run("sleeps", tmp_path, 0) == ""
    assert run("works", tmp_path, "soon").startswith("[tracon] stalled steps are not reported: ValueError")


@pytest.mark.timing
def test_a_worker_in_a_process_of_its_own_is_watched_while_it_executes(tmp_path: Path) -> None:
    log = run("mp", tmp_path, program=WORKER)
    stalled = re.findall(r"has run for 0.6 s, <string>:\d+ in (\w+) \(step (\d)", log)
    assert stalled == [("sample_tokens", "2"), ("execute_model", "3")]
    assert run("uni", tmp_path, program=WORKER) == "", "the scheduler's watch covers it"

"""The step probe under asynchronous scheduling: a loop as vLLM's `step_with_batch_queue`, with a thread as the GPU.

The loop schedules the next step while the one before still runs, which a CPU build never does.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from patches import step_probe

from . import fake_vllm
from .conftest import PutModules
from .fake_vllm import Role, decode_step, make_factory, make_scheduler, sent_to_worker, work
from .ring_file import only_ring

STEPS, DEPTH = 12, 2


class AsyncEngine:
    """A scheduler that inherits the hooked methods, as vLLM's AsyncScheduler does, and a worker in another thread."""

    def __init__(self, put_modules: PutModules, folder: Path) -> None:
        factory: Any = make_factory(fake_vllm.Connector)
        base = make_scheduler(lambda: factory.create_connector("config", Role.SCHEDULER, "kv"))
        put_modules(fake_vllm.modules(base, factory))
        step_probe.install(str(folder / "engine_step.jsonl"))
        self.worker = factory.create_connector("config", Role.WORKER, "kv")
        self.scheduler: Any = type("AsyncScheduler", (base,), {})(fake_vllm.config(DEPTH))
        self.queue: deque[tuple[fake_vllm.SchedulerOutput, Future[object]]] = deque()

    def run(self, steps: int) -> None:
        left = [decode_step(1 + number % 3) for number in range(steps)]
        with ThreadPoolExecutor(1) as gpu:
            while left or self.queue:
                if left and len(self.queue) < DEPTH:
                    self.scheduler.next_output = left.pop(0)
                    output = self.scheduler.schedule()
                    self.queue.append((output, gpu.submit(self.execute, output)))
                    continue
                output, done = self.queue.popleft()
                self.scheduler.update_from_output(output, done.result())

    def execute(self, output: fake_vllm.SchedulerOutput) -> object:
        """What the worker does around the forward pass."""
        return work(self.worker, sent_to_worker(output.kv_connector_metadata))


def test_steps_in_flight_together_are_recorded_each_with_its_own_times(tmp_path: Path, put_modules: PutModules) -> None:
    AsyncEngine(put_modules, tmp_path).run(STEPS)
    ring = only_ring(tmp_path)
    assert ring.status["batch_queue"] is True
    assert ring.status["step_timing_available"] is True
    rows: list[dict[str, Any]] = list(ring.rows)
    assert [row["step_id"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["decode_tokens"] for row in rows] == [1 + number % 3 for number in range(STEPS)]
    ends = [row["t_ns"] + row["engine_step_ns"] for row in rows]
    begins = [row["t_ns"] for row in rows]
    assert all(begins[number] < ends[number - 1] for number in range(1, STEPS)), "each began before the last one ended"
    assert [row["period_ns"] for row in rows[1:]] == [after - before for before, after in pairwise(ends)]


def test_the_workers_records_join_the_steps_that_they_belong_to(tmp_path: Path, put_modules: PutModules) -> None:
    AsyncEngine(put_modules, tmp_path).run(STEPS)
    rows = only_ring(tmp_path, "worker").rows
    assert [row["step_id"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["get_finished_ns"] is not None for row in rows)

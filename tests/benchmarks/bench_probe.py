"""What the step probe costs per step, measured on stand-ins of vLLM whose methods do nothing.

Run with the engine's Python or any other: `python tests/benchmarks/bench_probe.py [--folder DIR] [--json]`.
The ring lies in DIR (a temporary folder by default), so its file system is part of what is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns as now
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from patches import ring, step_probe
from tests.patches import fake_vllm
from tests.patches.fake_vllm import Role, decode_step, make_factory, make_scheduler

STEPS = 200
"""Short rounds, so that most of them are not interrupted on a shared machine."""
ROUNDS = 400
REQUESTS = (1, 32, 256)


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over ROUNDS rounds of STEPS steps, wrapped and bare taking turns."""

    side: str
    writer: str
    requests: int
    bare_us: float
    wrapped_us: float
    added_us: float
    added_p90_us: float
    """Of the rounds."""

    @property
    def ratio(self) -> float:
        return self.wrapped_us / self.bare_us


class Connector:
    """Does nothing at all, unlike the stand-in of the tests, which keeps a list."""

    metadata = fake_vllm.Metadata()

    def build_connector_meta(self, scheduler_output: object) -> object:
        return self.metadata

    def bind_connector_metadata(self, connector_metadata: object) -> None:
        return

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_transfer_results(self, finished_req_ids: set[str]) -> None:
        return

    def clear_connector_metadata(self) -> None:
        return


def pair(log: Path | None) -> tuple[Any, Connector]:
    """A scheduler and a worker's connector, probed when `log` is given."""
    factory: Any = make_factory(Connector)
    scheduler = make_scheduler(lambda: factory.create_connector(None, Role.SCHEDULER, None))
    if log is not None:
        sys.modules.update(fake_vllm.modules(scheduler, factory))
        step_probe.install(str(log))
    return scheduler(fake_vllm.config()), factory.create_connector(None, Role.WORKER, None)


def engine_loop(scheduler: Any, requests: int) -> Callable[[], float]:  # noqa: ANN401 - a stand-in made at run time
    output = decode_step(requests)
    scheduler.next_output, scheduler.counts = output, (requests, 0)

    def loop() -> float:
        t0 = now()
        for _ in range(STEPS):
            scheduler.update_from_output(scheduler.schedule(), None)
        return (now() - t0) / STEPS / 1000

    return loop


def worker_loop(connector: Connector) -> Callable[[], float]:
    metadata, finished = fake_vllm.Metadata(), set[str]()

    def loop() -> float:
        t0 = now()
        for _ in range(STEPS):
            connector.bind_connector_metadata(metadata)
            connector.start_load_kv(None)
            connector.wait_for_save()
            connector.get_transfer_results(finished)
            connector.clear_connector_metadata()
        return (now() - t0) / STEPS / 1000

    return loop


def compare(side: str, writer: str, requests: int, bare: Callable[[], float], wrapped: Callable[[], float]) -> Cost:
    bare()
    wrapped()
    rounds = [(bare(), wrapped()) for _ in range(ROUNDS)]
    added = [after - before for before, after in rounds]
    return Cost(
        side, writer, requests,
        bare_us=statistics.median(before for before, _ in rounds),
        wrapped_us=statistics.median(after for _, after in rounds),
        added_us=statistics.median(added),
        added_p90_us=statistics.quantiles(added, n=10)[-1],
    )  # fmt: skip


def measure(folder: Path) -> list[Cost]:
    costs = []
    in_place = ring._can_overwrite_in_place
    for writer in ("mmap", "pwrite"):
        ring._can_overwrite_in_place = lambda _file, mapped=writer == "mmap": mapped  # type: ignore[misc]
        bare, bare_worker = pair(None)
        probed, probed_worker = pair(folder / writer / "engine_step.jsonl")
        costs += [
            compare("engine", writer, requests, engine_loop(bare, requests), engine_loop(probed, requests))
            for requests in REQUESTS
        ]
        costs.append(compare("worker", writer, 1, worker_loop(bare_worker), worker_loop(probed_worker)))
    ring._can_overwrite_in_place = in_place
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="where the ring lies while it is measured")
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        costs = measure(Path(folder))
    if options.json:
        print(json.dumps([{**asdict(cost), "ratio": cost.ratio} for cost in costs], indent=1))
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {ROUNDS} rounds of {STEPS} steps")
    print("side    writer  requests  bare us  wrapped us  ratio  added us  (p90 of rounds)")
    for cost in costs:
        print(
            f"{cost.side:7} {cost.writer:7} {cost.requests:8} {cost.bare_us:8.2f} {cost.wrapped_us:11.2f} "
            f"{cost.ratio:6.1f} {cost.added_us:9.2f} {cost.added_p90_us:12.2f}"
        )


if __name__ == "__main__":
    main()

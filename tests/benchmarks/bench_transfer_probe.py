"""What the transfer probe costs per step and per transfer, measured on stand-ins of vLLM that do next to nothing.

Run with the engine's Python or any other: `python tests/benchmarks/bench_transfer_probe.py [--folder DIR] [--json]`.
A step without a transfer is what nearly all steps are; a transfer is all its lines of both engines, which the log's
thread writes meanwhile. With and without the probe take turns, so that the ratio is of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns as now
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from patches import step_probe, transfer_probe
from tests.benchmarks.bench_probe import REQUESTS, ROUNDS, Connector, Cost, compare, engine_loop, worker_loop
from tests.patches import fake_transfers, fake_vllm
from tests.patches.fake_transfers import (
    KVCacheBlocks,
    MooncakeConnectorWorker,
    Pull,
    Socket,
    decode_request,
    prefill_request,
)
from tests.patches.fake_vllm import Role, make_factory, make_scheduler, step_output

TRANSFERS = 10
"""In a round."""
BLOCKS = 64


class Moving(Connector):
    """Bench's connector with a worker of Mooncake's kind."""

    def __init__(self) -> None:
        self.connector_worker = MooncakeConnectorWorker()
        self._nothing = fake_transfers.metadata()

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        self.connector_worker.start_load_kv(self._nothing)

    def request_finished_all_groups(self, request: object, block_ids: object) -> tuple[bool, None]:
        return True, None

    def update_state_after_alloc(self, request: object, blocks: object, num_external_tokens: int) -> None:
        return


def pair(folder: Path | None, steps_too: bool = False) -> tuple[Any, Any]:
    """A scheduler and a worker's connector; watched when `folder` is given, by both probes if `steps_too`."""
    factory: Any = make_factory(Moving)
    scheduler = make_scheduler(lambda: factory.create_connector(None, Role.SCHEDULER, None))
    if folder is not None:
        sys.modules.update(fake_vllm.modules(scheduler, factory))
        if steps_too:
            step_probe.install(str(folder / "engine_step.jsonl"))
        transfer_probe.install(str(folder))
    return scheduler(fake_vllm.config()), factory.create_connector(None, Role.WORKER, None)


def transfer_loop(scheduler: Any, connector: Any) -> Callable[[], float]:  # noqa: ANN401
    """One transfer after the other, both its ends in one process: a dozen lines."""
    worker, known = connector.connector_worker, scheduler.connector
    blocks = [list(range(BLOCKS))]
    p_step, d_step = step_output({"p": 1}), step_output({"d": 1})
    nothing = fake_vllm.step_output({})

    async def one() -> None:
        prefill, decode = prefill_request("p", "t"), decode_request("d", transfer_id="t")
        scheduler.requests = {"p": prefill, "d": decode}
        pull = Pull("d", "t", blocks)
        scheduler.next_output = p_step
        scheduler.schedule()
        known.request_finished_all_groups(prefill, blocks)
        await worker.record_send_reqs(fake_transfers.metadata({"p": ("t", blocks)}))
        scheduler.next_output = nothing
        scheduler.schedule()
        known.update_state_after_alloc(decode, KVCacheBlocks(blocks), 1)
        worker.start_load_kv(fake_transfers.metadata(pulls=[pull]))
        await worker.receive_kv_from_single_worker("tcp://there", {"d": pull})
        await worker.send_kv_to_decode(b"d", Socket(), fake_transfers.wanted(pull))
        worker.process_pulling_result(SimpleNamespace(ok_reqs=["d"], err_reqs=None), {"d": pull})
        scheduler.next_output = d_step
        scheduler._update_waiting_for_remote_kv(decode)
        scheduler.schedule()

    async def many() -> None:
        for _ in range(TRANSFERS):
            await one()

    loop = asyncio.new_event_loop()

    def measured() -> float:
        t0 = now()
        loop.run_until_complete(many())
        return (now() - t0) / TRANSFERS / 1000

    return measured


def measure(folder: Path) -> list[Cost]:
    bare, bare_worker = pair(None)
    watched, watched_worker = pair(folder / "alone")
    both, both_worker = pair(folder / "both", steps_too=True)
    costs = []
    for probes, scheduler, worker in (("transfer", watched, watched_worker), ("both", both, both_worker)):
        costs += [
            compare("engine", probes, requests, engine_loop(bare, requests), engine_loop(scheduler, requests))
            for requests in REQUESTS
        ]
        costs.append(compare("worker", probes, 1, worker_loop(bare_worker), worker_loop(worker)))
    costs.append(
        compare("transfer", "transfer", 1, transfer_loop(bare, bare_worker), transfer_loop(watched, watched_worker))
    )
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="where the log lies while it is measured")
    parser.add_argument("--json", action="store_true", help="print data only")
    options = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        costs = measure(Path(folder))
    if options.json:
        print(json.dumps([{**asdict(cost), "ratio": cost.ratio} for cost in costs], indent=1))
        return
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {ROUNDS} rounds")
    print("per       probes    requests  bare us  wrapped us  ratio  added us  (p90 of rounds)")
    for cost in costs:
        what = "transfer" if cost.side == "transfer" else f"{cost.side} step"
        print(
            f"{what:11} {cost.writer:9} {cost.requests:7} {cost.bare_us:8.2f} {cost.wrapped_us:11.2f} "
            f"{cost.ratio:6.1f} {cost.added_us:9.2f} {cost.added_p90_us:12.2f}"
        )


if __name__ == "__main__":
    main()

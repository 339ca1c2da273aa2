"""The obvious load client, for comparison: httpx, `aiter_lines`, `asyncio.sleep`; same schedule, prompts and records.

`python -m tests.benchmarks.httpx_load SPEC.json` writes requests and chunk stamps as the load process does, and prints
its window and the CPU seconds it took there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import httpx
import uvloop

from results.records.load_specs import LoadSpec
from runners.load.messages import read_load_spec
from runners.load.openloop import make_body_shape
from runners.load.prompts import build_bodies
from runners.load.schedule import make_constant_offsets_ns

LEAD_NS = 50_000_000


async def run(spec: LoadSpec) -> dict[str, Any]:
    offsets = make_constant_offsets_ns(spec.rate_per_s, spec.warmup_s + spec.min_duration_s).tolist()
    bodies = build_bodies(make_body_shape(spec), len(offsets))
    bodies.build_first(len(offsets))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60.0, trust_env=False) as client:
        start_ns = perf_counter_ns() + LEAD_NS
        window_ns = start_ns + round(spec.warmup_s * 1e9)
        cpu_s = 0.0
        async with asyncio.TaskGroup() as requests:
            tasks = []
            for index, offset in enumerate(offsets):
                due_ns = start_ns + offset
                await asyncio.sleep(max(0.0, (due_ns - perf_counter_ns()) / 1e9))
                if not cpu_s and due_ns >= window_ns:
                    cpu_s = time.process_time()
                tasks.append(requests.create_task(_request(client, spec, bodies.take_body(index), index, due_ns)))
            end_ns, cpu_s = perf_counter_ns(), time.process_time() - cpu_s
    _keep(spec, [task.result() for task in tasks], window_ns)
    return {"t_window_start_ns": window_ns, "t_window_end_ns": end_ns, "cpu_s": cpu_s}


def _keep(spec: LoadSpec, rows: list[tuple[dict[str, Any], list[int]]], window_ns: int) -> None:
    with Path(spec.requests_path).open("w") as file, Path(spec.chunks_path).open("w") as chunks:
        for row, stamps in rows:
            file.write(json.dumps({**row, "status": "ok", "warmup": row["t_intended_ns"] < window_ns}) + "\n")
            chunks.write(json.dumps({"index": row["index"], "t_ns": stamps}) + "\n")


async def _request(
    client: httpx.AsyncClient, spec: LoadSpec, body: bytes, index: int, due_ns: int
) -> tuple[dict[str, Any], list[int]]:
    stamps: list[int] = []
    headers = {"content-type": "application/json", "x-request-id": f"httpx-{index}"}
    t_send_ns = perf_counter_ns()
    async with client.stream("POST", f"{spec.url}/v1/completions", content=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            t_ns = perf_counter_ns()
            if line.startswith("data: ") and line != "data: [DONE]":
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["token_ids"]:
                    stamps.append(t_ns)
    row = {"index": index, "t_intended_ns": due_ns, "t_send_ns": t_send_ns, "t_first_token_ns": stamps[0]}
    return row, stamps


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        spec = read_load_spec(Path(sys.argv[1]))
        sys.stdout.write(json.dumps(runner.run(run(spec))) + "\n")


if __name__ == "__main__":
    main()

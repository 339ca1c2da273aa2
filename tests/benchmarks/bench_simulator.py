"""What a simulated request costs: requests per second of one core and peak memory, for three shapes of work.

    python -m tests.benchmarks.bench_simulator --mooncake FILE [--requests 2100000] [--shapes SHAPE ...]
    python -m tests.benchmarks.bench_simulator --mooncake FILE --dynamo PYTHON

- mooncake: the requests of Mooncake's conversation trace (blocks of 512 tokens), repeated up to `--requests`: hashes of
  each repetition are its own, and its arrivals are drawn again at the recorded mean rate, by seed; 8 instances
- agentic: generated sessions with the statistics of specs/ear (blocks of 64 tokens), 8 instances
- instances: the same requests as `mooncake`, 100,000 of them, 125 times as fast, before 1000 instances
- --dynamo: instead, the trace as it is, before 8 instances, by this simulator and by ai-dynamo's offline replay (its
  mocker), of which PYTHON is an interpreter that has `ai-dynamo` and `ai-dynamo-runtime` installed

Each shape runs in a process of its own, which reports processor time: it is the number to compare on a shared host.
Reading the trace and writing the records of the turns are in it, but no log of decisions.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from results.records.load_specs import ReplaySpec
from results.records.router_spec import InstanceSpec, RouterSpec
from results.records.simulation_spec import SimulationSpec
from runners.simulator.engine_file import read_engine
from runners.simulator.messages import read_simulation_spec
from runners.simulator.simulate import simulate
from runners.trace.formats.mooncake import BLOCK_TOKENS
from runners.trace.formats.tracon import write_trace
from runners.trace.synth import synthesize_trace

SHAPES = ("mooncake", "agentic", "instances")
ENGINE = "h20-qwen3-coder-30b-a3b"
AGENTIC_SESSIONS = 2700
FAST = 1 / 125
"""Time scale that gives 1000 instances the load per instance of eight."""

DYNAMO = """
import json, resource, sys, time
from dynamo.replay.api import run_trace_replay
begin_s, wall_s = time.process_time(), time.perf_counter()
report = run_trace_replay(
    sys.argv[1], num_workers=8, router_mode=sys.argv[2], extra_engine_args=sys.argv[3], trace_block_size=512
)
usage = resource.getrusage(resource.RUSAGE_SELF)
row = {"cpu_s": time.process_time() - begin_s, "wall_s": time.perf_counter() - wall_s}
row["peak_mb"] = usage.ru_maxrss / 1024
values = report.summary
print(json.dumps(row | {"requests": values["num_ttft_samples"], "ttft_p50_s": values["median_ttft_ms"] / 1e3,
    "ttft_p90_s": values["p90_ttft_ms"] / 1e3, "tpot_p90_ms": values["p90_tpot_ms"],
    "apc": values["prefix_cache_reused_ratio"]}))
"""


def repeat_trace(source: Path, requests: int, seed: int, path: Path) -> None:
    """Write a Mooncake trace of this many requests. Ids stay numbered by their first appearance."""
    rows = [msgspec.json.decode(line) for line in read_packed(source).splitlines()]
    ids = 1 + max(max(row["hash_ids"]) for row in rows)
    gap_ms = rows[-1]["timestamp"] / len(rows)
    random = np.random.default_rng(seed)
    encode = msgspec.json.Encoder().encode
    begin_ms = 0.0
    with path.open("wb") as out:
        for first in range(0, requests, len(rows)):
            chosen = rows[: requests - first]
            arrivals_ms = begin_ms + np.cumsum(random.exponential(gap_ms, len(chosen)))
            offset = first // len(rows) * ids
            for row, arrival_ms in zip(chosen, arrivals_ms.tolist(), strict=True):
                hashes = [offset + one for one in row["hash_ids"]]
                out.write(encode(row | {"timestamp": int(arrival_ms), "hash_ids": hashes}) + b"\n")
            begin_ms = float(arrivals_ms[-1])


def read_packed(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def make_spec(trace: Path, folder: Path, policy: str, instances: int, block: int, scale: float) -> SimulationSpec:
    model = read_engine(ENGINE).model
    names = [f"e{number}" for number in range(instances)]
    return SimulationSpec(
        router=RouterSpec(
            tuple(InstanceSpec(name, f"http://{name}", "both", model.kv_capacity_tokens, block) for name in names),
            policy,
        ),
        replay=ReplaySpec(
            url="http://simulated",
            model="m",
            trace_path=str(trace),
            requests_path=str(folder / "metrics.jsonl"),
            block_tokens=block,
            time_scale=scale,
            max_duration_s=1e9,
        ),
        models=dict.fromkeys(names, model),
        link=None,
        samples_path=str(folder / "engines.jsonl"),
    )


def measure_spec(path: Path) -> dict[str, Any]:
    """Simulate the spec in this process."""
    spec = read_simulation_spec(path)
    begin_s, wall_s = time.process_time(), time.perf_counter()
    outcome = simulate(spec, lambda tick: None)
    row = {"cpu_s": time.process_time() - begin_s, "wall_s": time.perf_counter() - wall_s}
    row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row["requests"] = outcome.replay.completed
    tokens = [(counted.cached_tokens, counted.prompt_tokens) for counted in outcome.counters.values()]
    cached, prompts = (sum(column) for column in zip(*tokens, strict=True))
    return row | {"apc": cached / prompts}


def summarize_turns(path: Path) -> dict[str, float]:
    """TTFT and TPOT of the turns in a file, as the report defines them."""
    firsts, paces = [], []
    with path.open("rb") as file:
        for line in file:
            row = msgspec.json.decode(line)
            firsts.append((row["t_first_token_ns"] - row["t_send_ns"]) / 1e9)
            if row["completion_tokens"] > 1:
                span_ns = row["t_last_token_ns"] - row["t_first_token_ns"]
                paces.append(span_ns / 1e6 / (row["completion_tokens"] - 1))
    return {
        "ttft_p50_s": float(np.quantile(firsts, 0.5)),
        "ttft_p90_s": float(np.quantile(firsts, 0.9)),
        "tpot_p90_ms": float(np.quantile(paces, 0.9)),
    }


def run_spec(spec: SimulationSpec, folder: Path) -> dict[str, Any]:
    path = folder / "spec.json"
    path.write_bytes(msgspec.json.encode(spec))
    done = run_python(sys.executable, "-m", "tests.benchmarks.bench_simulator", "--spec", str(path))
    return done | {"us_per_request": done["cpu_s"] * 1e6 / done["requests"]}


def run_python(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def run_shapes(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    for shape in options.shapes:
        trace, block, instances, scale = folder / f"{shape}.jsonl", BLOCK_TOKENS, 8, 1.0
        if shape == "agentic":
            made = synthesize_trace(AGENTIC_SESSIONS, options.seed)
            write_trace(trace, made.facts, made.sessions)
            block, scale = made.facts.block_tokens, 1 / 3
        elif shape == "instances":
            repeat_trace(options.mooncake, min(options.requests, 100_000), options.seed, trace)
            instances, scale = 1000, FAST
        else:
            repeat_trace(options.mooncake, options.requests, options.seed, trace)
        row = run_spec(make_spec(trace, folder, options.policy, instances, block, scale), folder)
        yield {"shape": shape, "instances": instances, "block_tokens": block} | row


def compare_dynamo(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The same trace, KV pool, token budget and number of sequences; the time of a step is each simulator's own."""
    trace = folder / "mooncake.jsonl"
    trace.write_bytes(read_packed(options.mooncake))
    model = read_engine(ENGINE).model
    for policy in ("round_robin", options.policy):
        row = run_spec(make_spec(trace, folder, policy, 8, BLOCK_TOKENS, 1.0), folder)
        yield {"simulator": "tracon", "policy": policy} | row | summarize_turns(folder / "metrics.jsonl")
    engine = {
        "block_size": BLOCK_TOKENS,
        "num_gpu_blocks": model.kv_capacity_tokens // BLOCK_TOKENS,
        "max_num_seqs": model.max_sequences,
        "max_num_batched_tokens": model.max_batched_tokens,
    }
    for mode in ("round_robin", "kv_router"):
        row = run_python(options.dynamo, "-c", DYNAMO, str(trace), mode, json.dumps({"engine": engine}))
        yield {"simulator": "ai-dynamo", "policy": mode, "us_per_request": row["cpu_s"] * 1e6 / row["requests"]} | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mooncake", type=Path, help="Mooncake's conversation trace (.jsonl or .jsonl.xz)")
    parser.add_argument("--requests", type=int, default=2_100_000)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--policy", default="unified")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dynamo", help="the Python interpreter of an environment with ai-dynamo")
    parser.add_argument("--spec", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.spec is not None:
        print(json.dumps(measure_spec(options.spec)))
        return
    if options.mooncake is None:
        parser.error("--mooncake is needed")
    with tempfile.TemporaryDirectory() as name:
        measure = compare_dynamo if options.dynamo else run_shapes
        for row in measure(options, Path(name)):
            print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()

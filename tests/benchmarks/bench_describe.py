"""What describing a trace costs: seconds and peak memory over the number of requests, beside the plain way.

    python -m tests.benchmarks.bench_describe [--requests 125000 250000 500000 2000000] [--blocks 48] [--file] [--json]

Describes generated traces, each in a process of its own: 1.6 turns per session (as 1.3 million sessions of 2.1 million
requests have), prompts of about `--blocks` blocks of 16 tokens, of which 20 are one of 2000 heads that many sessions
share. With --file the trace is first written as Bailian JSONL and read from there, as `tracon trace describe` does.

- describe: `runners.trace.describe.describe_trace`
- plain: the bound over all sessions only, with a Python set of hashes; the smallest number of requests
- small: describe with room for a tenth of the keys, so that it has to sample; the smallest number of requests
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from results.records.trace_lines import Turn
from results.traces.cross_session_reuse import LEAST_MEMORY_BYTES, MEMORY_BYTES
from runners.trace.describe import describe_trace
from runners.trace.formats import open_trace
from runners.trace.session import Session, TraceFacts

BLOCK_TOKENS = 16
HEADS, HEAD_BLOCKS = 2000, 20
TURNS_PER_SESSION = 1.6
SPAN_S = 7200.0
FACTS = TraceFacts(source="generated", block_tokens=BLOCK_TOKENS, tail_rule="floor", hash_scope="global")


@dataclass(frozen=True, slots=True)
class Shape:
    """Which trace."""

    requests: int
    blocks: int
    """Blocks per prompt, about."""
    file: Path | None = None
    """Read from there instead of being generated."""
    memory_bytes: int = MEMORY_BYTES


def sessions(shape: Shape) -> Iterator[Session]:
    """The trace, generated as it is read."""
    rng = np.random.default_rng(7)
    own, done, number = max(int((shape.blocks - HEAD_BLOCKS) / 1.3), 1), 0, 0
    wanted = int(shape.requests / TURNS_PER_SESSION)
    heads = (rng.pareto(1.1, wanted * 2) * 3).astype(np.int64) % HEADS
    counts = rng.geometric(1 / TURNS_PER_SESSION, wanted * 2)
    while done < shape.requests:
        count = min(int(counts[number]), shape.requests - done)
        begin_s = SPAN_S * number / wanted
        yield _session(number, int(heads[number]), count, begin_s, own)
        done += count
        number += 1


def _session(number: int, head: int, count: int, begin_s: float, own: int) -> Session:
    hashes = tuple(range(head * HEAD_BLOCKS, (head + 1) * HEAD_BLOCKS))
    turns = []
    for turn in range(count):
        begin = HEADS * HEAD_BLOCKS + (number * 64 + turn) * own
        hashes += tuple(range(begin, begin + own))
        after = (turn - 1,) if turn else ()
        turns.append(
            Turn(
                turn=turn,
                arrival_s=begin_s + 20.0 * turn,
                input_tokens=len(hashes) * BLOCK_TOKENS,
                output_tokens=40,
                hashes=hashes,
                after=after,
            )
        )
    return Session(f"s{number}", tuple(turns))


def write_file(path: Path, shape: Shape) -> None:
    """The trace as Bailian JSONL, its lines by session: the reader puts them in order."""
    chat = 0
    with path.open("wb") as file:
        for session in sessions(shape):
            for turn in session.turns:
                row = {
                    "chat_id": chat,
                    "parent_chat_id": chat - 1 if turn.turn else -1,
                    "timestamp": turn.arrival_s,
                    "input_length": turn.input_tokens,
                    "output_length": turn.output_tokens,
                    "type": "text",
                    "turn": turn.turn + 1,
                    "hash_ids": turn.hashes,
                }
                file.write(msgspec.json.encode(row) + b"\n")
                chat += 1


def described(shape: Shape) -> dict[str, float]:
    """What the command does."""
    facts, stream = (FACTS, sessions(shape)) if shape.file is None else open_trace(shape.file)
    found = describe_trace(facts, stream, memory_bytes=shape.memory_bytes)
    return {
        "requests": found.requests,
        "blocks_million": (found.reuse.distinct_blocks or 0) / 1e6,
        "bound": found.apc_bound_any or 0.0,
        "bound_error": found.reuse.standard_error.get("apc_bound_any", 0.0),
        "one_in": found.reuse.followed_one_in,
    }


def plain(shape: Shape) -> dict[str, float]:
    """The bound over all sessions, in the order of the stream, as anybody would count it."""
    stream = sessions(shape) if shape.file is None else open_trace(shape.file)[1]
    seen: set[int] = set()
    tokens = hit = requests = 0
    for session in stream:
        for turn in session.turns:
            known = next((place for place, value in enumerate(turn.hashes) if value not in seen), len(turn.hashes))
            hit += known * BLOCK_TOKENS
            tokens += turn.input_tokens
            seen.update(turn.hashes)
            requests += 1
    return {"requests": requests, "blocks_million": len(seen) / 1e6, "bound": hit / tokens}


def measured(work: Callable[[Shape], dict[str, float]], shape: Shape) -> dict[str, float]:
    """What `work` says, its seconds, and peak resident memory (MB) of a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(work, shape, theirs))
    child.start()
    theirs.close()
    found: dict[str, float] = ours.recv()
    child.join(60)
    return found


def _child(
    work: Callable[[Shape], dict[str, float]], shape: Shape, answer: multiprocessing.connection.Connection
) -> None:
    begin = time.perf_counter()
    idle_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    said = work(shape)
    spent_s = time.perf_counter() - begin
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    answer.send(said | {"seconds": spent_s, "peak_mb": peak_mb, "imports_mb": idle_mb})


def bench(requests: list[int], blocks: int, folder: Path | None) -> dict[str, dict[str, float]]:
    """Every measurement by name; with `folder`, through a file in it."""
    found: dict[str, dict[str, float]] = {}
    for count in sorted(requests):
        shape = Shape(count, blocks)
        if folder is not None:
            shape = Shape(count, blocks, folder / "trace.jsonl")
            write_file(folder / "trace.jsonl", shape)
        found[f"describe {count}"] = measured(described, shape)
        if count == min(requests):
            keys = found[f"describe {count}"]["blocks_million"] * 1e6
            small = max(int(1.3 * keys), LEAST_MEMORY_BYTES)
            found[f"small {count}"] = measured(described, Shape(count, blocks, shape.file, small))
            found[f"plain {count}"] = measured(plain, shape)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[125_000, 250_000, 500_000, 2_000_000])
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--file", action="store_true", help="through a Bailian file")
    parser.add_argument("--folder", type=Path, help="where the file is written (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-describe-", dir=options.folder) as folder:
        found = bench(options.requests, options.blocks, Path(folder) if options.file else None)
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(f"{name:20} { ({key: round(value, 4) for key, value in values.items()}) }")


if __name__ == "__main__":
    main()

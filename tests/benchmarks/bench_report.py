"""What a report costs: a run of 100 cells and 10 million step records, analyzed, reported and drawn.

    python -m tests.benchmarks.bench_report [--cells 100] [--steps 100000] [--folder DIR] [--json]

Writes a synthetic run below DIR (default: a temporary folder; about 4 GB, removed afterwards unless --keep), then
measures, each in a process of its own:

- report: `analyze`, what `tracon report` does, with the Parquet copies beside the JSONL as a run leaves them
- files: `write_results`, the same and every file written, figures and HTML included
- cold: `analyze` again without the Parquet copies, so that all JSONL is parsed, checksummed and copied to Parquet
- pandas: a plain `pandas.read_json(lines=True)` of a tenth of the step JSONL, one file at a time, scaled to all of it
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from results.connector_tax.analyze import analyze
from results.connector_tax.write import write_results
from results.records.layout import RunLayout
from tests.results.connector_tax.synthetic import Behavior, Run, write_run

CONFIGS = {
    "plain": Behavior(),
    "noop_connector": Behavior(0.204, 0.0101, engine_step_us=1515, callbacks_us=(1.0, 2.0, 1.0)),
    "mooncake_both": Behavior(0.29, 0.0125, 8.0, engine_step_us=1700, callbacks_us=(1.7, 152.0, 3.1)),
    "nixl_both": Behavior(0.27, 0.0118, 16.0, engine_step_us=1650, callbacks_us=(1.7, 52.0, 3.1)),
    "lmcache_only": Behavior(0.25, 0.0112, 16.0, engine_step_us=1600, callbacks_us=(5.0, 30.0, 12.0)),
}
RATES_PER_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SHAPES = tuple((inputs, outputs) for inputs in (512, 4096, 32768) for outputs in (64, 256, 1024, 4096))


def build(root: Path, cells: int, steps: int) -> int:
    """Write a run of about `cells` cells of `steps` step records each; returns how many cells it has."""
    per_config = max(cells // len(CONFIGS), len(RATES_PER_S) + 1)
    shapes = SHAPES[: per_config - len(RATES_PER_S)]
    shapes += tuple((inputs + 1, outputs) for inputs, outputs in SHAPES)[: per_config - len(RATES_PER_S) - len(shapes)]
    layout = write_run(root, Run(CONFIGS, RATES_PER_S, shapes, ref_safe_per_s=4.0, requests=200, steps=steps))
    return sum(1 for folder in layout.configs() for _ in folder.root.glob("cell_*.json"))


def step_files(root: Path) -> list[Path]:
    """The step JSONL of every cell."""
    return sorted(path for folder in RunLayout(root).configs() for path in folder.root.glob("engine_step_*.jsonl"))


def report(root: Path) -> None:
    """What `tracon report` computes."""
    analyze(root)


def files(root: Path) -> None:
    """What the analysis stage does."""
    write_results(root)


def plain_pandas(root: Path) -> None:
    """A tenth of the step records, as anybody would read them."""
    found = step_files(root)
    for path in found[: max(len(found) // 10, 1)]:
        pd.read_json(path, lines=True)


def forget_copies(root: Path) -> None:
    """Remove every Parquet copy of a JSONL file."""
    for folder in RunLayout(root).configs():
        for path in folder.root.glob("*.parquet"):
            path.unlink()


def measured(work: Callable[[Path], None], root: Path) -> dict[str, float]:
    """Wall-clock seconds and peak resident memory (GB) of `work` in a fresh process, imports included in the memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(work, root, theirs))
    child.start()
    theirs.close()
    found: dict[str, float] = ours.recv()
    child.join(60)
    return found


def _child(work: Callable[[Path], None], root: Path, answer: multiprocessing.connection.Connection) -> None:
    begin = time.perf_counter()
    work(root)
    spent_s = time.perf_counter() - begin
    answer.send({"seconds": spent_s, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the run is written")
    parser.add_argument("--keep", action="store_true", help="leave the run there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-report-", dir=options.folder))
    try:
        found = bench(folder, options.cells, options.steps)
        if options.json:
            print(json.dumps(found))
        else:
            show(found)
    finally:
        if not options.keep:
            shutil.rmtree(folder)


def bench(folder: Path, cells: int, steps: int) -> dict[str, object]:
    """Every measurement, and the ratios to plain pandas."""
    root = folder / "20260131-120000-connector-tax-bench"
    begin = time.perf_counter()
    built = build(root, cells, steps)
    jsonl = step_files(root)
    found: dict[str, object] = {
        "cells": built,
        "step_records": built * steps,
        "jsonl_gb": sum(path.stat().st_size for path in jsonl) / 1e9,
        "built_in_s": time.perf_counter() - begin,
    }
    timed = {"report": measured(report, root), "files": measured(files, root)}
    forget_copies(root)
    timed |= {"cold": measured(report, root), "pandas": measured(plain_pandas, root)}
    timed["pandas"]["seconds"] *= len(jsonl) / max(len(jsonl) // 10, 1)
    ratios = {name: timed[name]["seconds"] / timed["pandas"]["seconds"] for name in ("report", "files", "cold")}
    return found | timed | {"seconds_over_pandas": ratios}


def show(found: dict[str, object]) -> None:
    """One line per measurement."""
    for name, value in found.items():
        shown = {key: round(number, 3) for key, number in value.items()} if isinstance(value, dict) else value
        print(f"{name:20} {shown if not isinstance(shown, float) else round(shown, 2)}")


if __name__ == "__main__":
    main()

"""How true the load generator's numbers are and what they cost, beside other clients on the same offered load.

    python -m tests.benchmarks.bench_load [--rate 32] [--tokens 128] [--itl-ms 5] [--seconds 6] [--rounds 5]
                                          [--engine-python PYTHON]

In every round each client runs once against one truth server, in turn. The table has medians over the rounds, and under
the others' numbers the median of their ratio to Tracon's in the same round. Machines differ and are shared: quote the
ratios of one run. The TTFT error holds the truth server's own delay in taking up a request, the lateness of the read
does not. That server is Python: beyond some ten thousand chunks per second it is the limit, not the clients.
`--engine-python` names a Python with vLLM and adds `vllm bench serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from launch.tiny_model import write_tiny_model
from results.records.load_specs import LoadSpec
from runners.load.messages import LoadLine, LoadOutcome, LoadTick
from tests.servers.truth_server import Truth, TruthServer

WARMUP_S = 1.0
RUN_LIMIT_S = 300.0
COLUMNS = {
    "requests": "requests",
    "ttft_error_p50_us": "TTFT error p50 us",
    "ttft_error_p99_us": "TTFT error p99 us",
    "read_late_p99_us": "first token read late p99 us",
    "gap_error_p99_us": "ITL error p99 us",
    "lateness_p99_us": "lateness p99 us",
    "cpu_us_per_chunk": "CPU per chunk us",
    "cpu_total_s": "CPU in all s",
}


@dataclass(frozen=True, slots=True)
class Reported:
    """What a client says about one request."""

    ttft_s: float
    gaps_s: tuple[float, ...]
    lateness_s: float | None
    t_first_ns: int | None = None
    """On the truth server's clock, where the client tells it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One client, once."""

    reported: Mapping[int, Reported]
    """By index; requests of the measured window."""
    cpu_total_s: float
    """Of the process and its children, start-up included."""
    window_ns: tuple[int, int] | None = None
    cpu_window_s: float | None = None


Client = Callable[[LoadSpec, Path], Run]


def tracon(spec: LoadSpec, folder: Path) -> Run:
    """The load process, as a campaign starts it."""
    output, cpu_s = _run([sys.executable, "-m", "runners.load", _write(spec, folder)], folder)
    outcome = msgspec.json.decode(output.splitlines()[-1], type=LoadLine[LoadTick, LoadOutcome]).outcome
    assert outcome is not None
    window = (outcome.t_window_start_ns, outcome.t_window_end_ns)
    share = outcome.fidelity.client_cpu_share
    return Run(_read(spec), cpu_s, window, None if share is None else share * outcome.window_s)


def tracon_without_priority(spec: LoadSpec, folder: Path) -> Run:
    """The same under the scheduler everyone else runs under."""
    return tracon(replace(spec, realtime=False), folder)


def httpx_minimal(spec: LoadSpec, folder: Path) -> Run:
    output, cpu_s = _run([sys.executable, "-m", "tests.benchmarks.httpx_load", _write(spec, folder)], folder)
    window = json.loads(output.splitlines()[-1])
    return Run(_read(spec), cpu_s, (window["t_window_start_ns"], window["t_window_end_ns"]), window["cpu_s"])


class VllmBench:
    """`vllm bench serve`; what CPU time it took is only known as a whole, imports included."""

    def __init__(self, python: str, model: Path) -> None:
        self._python = python
        self._model = write_tiny_model(model)

    def __call__(self, spec: LoadSpec, folder: Path) -> Run:
        result, cpu_s = self._bench(spec, folder, round(spec.rate_per_s * (WARMUP_S + spec.min_duration_s)))
        first = round(spec.rate_per_s * WARMUP_S)
        rows = enumerate(zip(result["ttfts"], result["itls"], strict=True))
        reported = {index: Reported(ttft, tuple(itls), None) for index, (ttft, itls) in rows if index >= first and itls}
        return Run(reported, cpu_s)

    def _bench(self, spec: LoadSpec, folder: Path, prompts: int) -> tuple[dict[str, Any], float]:
        start = (  # not the `vllm` command: the CPU build's distribution has another name, and it asks for its version
            "import argparse; from vllm.benchmarks import serve; parser = argparse.ArgumentParser();"
            "serve.add_cli_args(parser); serve.main(parser.parse_args())"
        )
        result = folder / "vllm.json"
        result.unlink(missing_ok=True)
        options = {
            "--backend": "openai",
            "--base-url": spec.url,
            "--endpoint": "/v1/completions",
            "--model": "m",
            "--tokenizer": str(self._model),
            "--dataset-name": "random",
            "--random-input-len": str(spec.input_tokens),
            "--random-output-len": str(spec.output_tokens),
            "--num-prompts": str(prompts),
            "--request-rate": str(spec.rate_per_s),
            "--burstiness": "10000",
            "--request-id-prefix": "vllm-",
            "--result-dir": str(folder),
            "--result-filename": result.name,
        }
        flags = ("--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm")
        command = [self._python, "-c", start, *flags, *(part for pair in options.items() for part in pair)]
        _, cpu_s = _run(command, folder, {"HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": ""})
        measured: dict[str, Any] = json.loads(result.read_bytes())
        return measured, cpu_s


def figures(run: Run, truths: Mapping[int, Truth]) -> dict[str, float | None]:
    """What the client said against what happened, one value per column; None = the client does not tell."""
    ttft, gaps, read_late = [], [], []
    for index, reported in run.reported.items():
        true_gaps = np.diff(truths[index].t_writes_ns) / 1e9
        ttft.append(reported.ttft_s - truths[index].ttft_s)
        if reported.t_first_ns is not None:
            read_late.append((reported.t_first_ns - truths[index].t_writes_ns[0]) / 1e9)
        if len(true_gaps) == len(reported.gaps_s):
            gaps.extend(np.abs(np.array(reported.gaps_s) - true_gaps).tolist())
    late = [one.lateness_s for one in run.reported.values() if one.lateness_s is not None]
    writes = [t_ns for truth in truths.values() for t_ns in truth.t_writes_ns]
    begin, end = run.window_ns or (min(writes), max(writes) + 1)
    chunks = sum(begin <= t_ns < end for t_ns in writes)
    return {
        "requests": len(ttft),
        "ttft_error_p50_us": _quantile_us(ttft, 0.5),
        "ttft_error_p99_us": _quantile_us(ttft, 0.99),
        "read_late_p99_us": _quantile_us(read_late, 0.99),
        "gap_error_p99_us": _quantile_us(gaps, 0.99),
        "lateness_p99_us": _quantile_us(late, 0.99),
        "cpu_us_per_chunk": None if run.cpu_window_s is None else run.cpu_window_s / chunks * 1e6,
        "cpu_total_s": run.cpu_total_s,
    }


def _quantile_us(values: list[float], level: float) -> float | None:
    return float(np.quantile(values, level)) * 1e6 if values else None


def _read(spec: LoadSpec) -> dict[int, Reported]:
    decode = msgspec.json.Decoder().decode_lines
    stamps = {row["index"]: row["t_ns"] for row in decode(Path(spec.chunks_path).read_bytes())}
    return {
        row["index"]: Reported(
            (row["t_first_token_ns"] - row["t_send_ns"]) / 1e9,
            tuple((np.diff(stamps[row["index"]]) / 1e9).tolist()),
            (row["t_send_ns"] - row["t_intended_ns"]) / 1e9,
            row["t_first_token_ns"],
        )
        for row in decode(Path(spec.requests_path).read_bytes())
        if row["status"] == "ok" and not row["warmup"]
    }


def _write(spec: LoadSpec, folder: Path) -> str:
    path = folder / "spec.json"
    path.write_bytes(msgspec.json.encode(spec))
    return str(path)


def _run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Standard output, and the CPU seconds of the process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = folder / "stderr.log"
    with log.open("wb") as errors:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=RUN_LIMIT_S,
            env={**os.environ, **(environment or {})},
        )
    if done.returncode != 0:
        raise SystemExit(f"{command[:3]} failed:\n{log.read_text()[-2000:]}{done.stdout[-500:].decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout.decode(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench(options: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, float | None]]]:
    """The figures of every round, by client."""
    clients: dict[str, Client] = {
        "tracon": tracon,
        "tracon, no priority": tracon_without_priority,
        "httpx": httpx_minimal,
    }
    if options.engine_python:
        clients["vllm bench serve"] = VllmBench(options.engine_python, folder / "model")
    rounds: dict[str, list[dict[str, float | None]]] = {name: [] for name in clients}
    with TruthServer() as server:
        spec = LoadSpec(
            url=server.url(ttft_ms=options.ttft_ms, itl_ms=options.itl_ms),
            model="m",
            rate_per_s=options.rate,
            input_tokens=32,
            output_tokens=options.tokens,
            requests_path=str(folder / "requests.jsonl"),
            chunks_path=str(folder / "chunks.jsonl"),
            warmup_s=WARMUP_S,
            min_duration_s=options.seconds,
            min_completed=0,
            max_duration_s=options.seconds,
        )
        for number in range(options.rounds):
            for name, client in clients.items():
                run = client(spec, folder)
                wanted = name.split()[0].rstrip(",")
                truths = [row for row in server.take_rows() if row.request_id.startswith(f"{wanted}-")]
                by_index = {int(row.request_id.rpartition("-")[2]): row for row in truths}
                rounds[name].append(figures(run, by_index))
                sys.stderr.write(f"round {number + 1}: {name}\n")
    return rounds


def table(rounds: Mapping[str, list[dict[str, float | None]]], title: str) -> Table:
    """Medians over the rounds, with the median ratio to Tracon of the same round."""
    drawn = Table("client", *COLUMNS.values(), title=title)
    ours = rounds["tracon"]
    for name, rows in rounds.items():
        cells = []
        for column in COLUMNS:
            values = [row[column] for row in rows]
            pairs = [(value, own[column]) for value, own in zip(values, ours, strict=True)]
            known = [value for value in values if value is not None]
            ratios = [value / own for value, own in pairs if value is not None and own]
            text = f"{median(known):.3g}" if known else "-"
            cells.append(text + (f" ({median(ratios):.2g}x)" if ratios and rows is not ours else ""))
        drawn.add_row(name, *cells)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=32.0, help="requests per second")
    parser.add_argument("--tokens", type=int, default=128, help="output tokens per request")
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--itl-ms", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured window of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine-python", default="", help="a Python with vLLM: adds vllm bench serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = bench(options, Path(folder))
    title = f"{options.rate:g} req/s x {options.tokens} tokens x {options.itl_ms:g} ms, {options.rounds} rounds"
    Console(width=170).print(table(rounds, title))


if __name__ == "__main__":
    main()

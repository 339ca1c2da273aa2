"""What the router adds to a request and what it costs, beside a direct connection and `vllm-router`, in one run.

    python -m tests.benchmarks.bench_router [--rounds 5] [--seconds 4] [--vllm-router PATH]
                                            [--streams 10000] [--json]

Two truth servers stand behind every router, which deals in turn (round robin). In every round each target meets the
same load once per scenario, and the order of the targets rotates. Prompts are token ids; a scenario of texts sends
strings instead, and one of chats sends messages, whose answers begin with the role just before the first token, as
vLLM's do. What is added is a target's own overhead (the
client's TTFT less the truth server's) less that of the direct connection in the same round; ratios are of the same
round too. Machines differ and are shared: quote ratios with their spread; the spread of `direct` is the noise.

`--vllm-router` names the peer's executable (or set VLLM_ROUTER; `pip install vllm-router` in an environment of its
own); without it the peer is null, with the reason. Tracon's router keeps its decision log while it is measured. The
output begins with the date, the commit and the host's speed, which the table in docs/router-cost.md states.

`--streams N` then holds N slow streams at once through one router and counts what is lost. A stream needs two of the
router's file descriptors: where the limit is too low for N, as many as it allows go through one router, and N through
as few routers side by side as it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import msgspec
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from launch.ports import free_port
from results.records.load_specs import LoadSpec
from results.records.router_spec import InstanceSpec, RouterSpec
from runners.load.process import run_load
from runners.router.messages import RouterLine
from runners.router.server.server import DESCRIPTORS_KEPT
from tests.benchmarks.api_load import run_api_load
from tests.benchmarks.conditions import describe_conditions, read_conditions
from tests.benchmarks.slow_streams import hold
from tests.servers.truth_server import Truth, TruthServer

READY_S = 60.0
WARMUP_S = 0.5
OURS, PEER, DIRECT = "tracon", "vllm-router", "direct"
GOALS = {"added_ttft_p50_us": 0.9, "added_ttft_p99_us": 1.2, "cpu_us_per_request": 1.0, "cpu_us_per_chunk": 0.6}
"""Largest ratio to the peer."""
GOAL_ROUNDS = 9
PAUSE_MS = 4000.0
"""Before each further token of a slow stream."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One offered load."""

    name: str
    rate_per_s: float
    tokens: int
    ttft_ms: float
    itl_ms: float
    input_tokens: int = 32
    form: str = "ids"
    """Form of the prompts: `ids`, or one of `api_load.FORMS`."""

    @property
    def behavior(self) -> dict[str, float]:
        """What the truth servers are asked for."""
        answers = {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "running": 1, "ids": 0}
        return answers | {"chat": 1, "role_ms": self.ttft_ms} if self.form == "chat" else answers


SCENARIOS = (
    Scenario("256 req/s x 4 tokens", 256.0, 4, 20.0, 5.0),
    Scenario("32 req/s x 128 tokens", 32.0, 128, 20.0, 5.0),
    Scenario("TTFT 5 ms", 32.0, 4, 5.0, 5.0),
    Scenario("TTFT 100 ms", 32.0, 4, 100.0, 5.0),
    Scenario("8k-token prompts", 16.0, 4, 20.0, 5.0, 8192),
    Scenario("chats of 1k tokens", 64.0, 16, 20.0, 5.0, 1024, "chat"),
    Scenario("texts of 1k tokens", 64.0, 16, 20.0, 5.0, 1024, "text"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Something that load is sent to."""

    name: str
    url: str
    pids: tuple[int, ...]
    """Whose CPU time and memory count; empty = no process's."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One target under one scenario, once. Times in microseconds; None = not measured."""

    requests: int
    failed: int
    overhead_p50_us: float
    """Client's TTFT less the server's."""
    overhead_p99_us: float
    cpu_us_per_request: float | None
    cpu_us_per_chunk: float | None
    rss_mb: float | None


@contextlib.contextmanager
def our_router(urls: list[str], folder: Path) -> Iterator[Target]:
    """The router's process, as a run starts it."""
    spec = RouterSpec(
        tuple(InstanceSpec(f"i{place}", url, block_tokens=16) for place, url in enumerate(urls)),
        policy="round_robin",
        decisions_path=str(folder / "decisions.jsonl"),
    )
    path = folder / "router.spec.json"
    path.write_bytes(msgspec.json.encode(spec))
    command = [sys.executable, "-m", "runners.router", str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:  # a session of its own, as the peer: the scheduler may weigh sessions, not processes
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            ready = msgspec.json.decode(process.stdout.readline(), type=RouterLine).ready
            if ready is None:
                raise SystemExit("the router did not start")
            yield Target(OURS, ready.url, (process.pid,))
        finally:
            process.stdin.close()
            process.wait(READY_S)


@contextlib.contextmanager
def peer_router(program: str, urls: list[str], folder: Path) -> Iterator[Target]:
    """vllm-router with its defaults, in the same role."""
    port = free_port(30100, 2)
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 1)]
    options += ["--policy", "round_robin", "--log-level", "error", "--worker-startup-check-interval", "1"]
    with (folder / "peer.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *options, "--worker-urls", *urls], stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/health", process, folder / "peer.log")
        family = (process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True)))
        yield Target(PEER, url, family)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"{url} did not answer:\n{log.read_text()[-1500:]}")


def measure(
    target: Target, scenario: Scenario, seconds: float, place: int, servers: list[TruthServer], folder: Path
) -> Figures:
    """Offer the load once and put the client's times beside the servers'."""
    spec = LoadSpec(
        url=target.url,
        model="m",
        rate_per_s=scenario.rate_per_s,
        input_tokens=scenario.input_tokens,
        output_tokens=scenario.tokens,
        requests_path=str(folder / "requests.jsonl"),
        cell_index=place,
        warmup_s=WARMUP_S,
        min_duration_s=seconds,
        min_completed=0,
        max_duration_s=seconds,
        token_evidence="usage",
    )
    before_s = _cpu_s(target)
    if scenario.form == "ids":
        outcome = asyncio.run(run_load(spec, lambda tick: None))
    else:
        outcome = run_api_load(spec, scenario.form)
    cpu_s = _cpu_s(target) - before_s
    truths = {index: truth for server in servers for index, truth in server.take().items()}
    rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(Path(spec.requests_path).read_bytes())
    overheads = [_overhead_us(row, truths[row["index"]]) for row in rows if row["status"] == "ok" and not row["warmup"]]
    chunks = sum(len(truth.t_writes_ns) for truth in truths.values())
    return Figures(
        requests=len(overheads),
        failed=outcome.failed + outcome.cut,
        overhead_p50_us=float(np.quantile(overheads, 0.5)),
        overhead_p99_us=float(np.quantile(overheads, 0.99)),
        cpu_us_per_request=cpu_s / len(truths) * 1e6 if target.pids else None,
        cpu_us_per_chunk=cpu_s / chunks * 1e6 if target.pids else None,
        rss_mb=_rss_mb(target) if target.pids else None,
    )


def _overhead_us(row: dict[str, Any], truth: Truth) -> float:
    return float(row["t_first_token_ns"] - row["t_send_ns"]) / 1e3 - truth.ttft_s * 1e6


def _cpu_s(target: Target) -> float:
    """CPU time of all threads, to the nanosecond: the kernel's ticks are too coarse for a few seconds of this."""
    threads = [path for pid in target.pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def _rss_mb(target: Target) -> float:
    return float(sum(psutil.Process(pid).memory_info().rss for pid in target.pids)) / 1e6


def bench(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[Figures]]]:
    """Scenario -> target -> figures of every round."""
    figures_by_scenario: dict[str, dict[str, list[Figures]]] = {}
    place = 0
    with TruthServer() as one, TruthServer() as two:
        for scenario in (scenario for scenario in SCENARIOS if options.only in scenario.name):
            urls = [server.url(**scenario.behavior) for server in (one, two)]
            with contextlib.ExitStack() as stack:
                targets = [Target(DIRECT, urls[0], ()), stack.enter_context(our_router(urls, folder))]
                if options.vllm_router:
                    targets.append(stack.enter_context(peer_router(options.vllm_router, urls, folder)))
                rounds = figures_by_scenario.setdefault(scenario.name, {target.name: [] for target in targets})
                for number in range(options.rounds):
                    for turn in range(len(targets)):
                        target = targets[(number + turn) % len(targets)]
                        place += 1
                        figures = measure(target, scenario, options.seconds, place, [one, two], folder)
                        rounds[target.name].append(figures)
                    sys.stderr.write(f"{scenario.name}: round {number + 1} of {options.rounds}\n")
    return figures_by_scenario


def summary(rounds: dict[str, list[Figures]]) -> dict[str, Any]:
    """What is added over direct, the cost, and the ratios to the peer; each a (median, low, high) of the rounds.

    `within_noise`: the ratios whose denominator, in some round, is no larger than the spread of the direct connection.
    """
    direct = rounds[DIRECT]
    made: dict[str, Any] = {}
    added: dict[str, dict[str, list[float]]] = {}
    for name in (OURS, PEER):
        if name not in rounds:
            continue
        runs = rounds[name]
        added[name] = {
            "added_ttft_p50_us": [r.overhead_p50_us - d.overhead_p50_us for r, d in zip(runs, direct, strict=True)],
            "added_ttft_p99_us": [r.overhead_p99_us - d.overhead_p99_us for r, d in zip(runs, direct, strict=True)],
            "cpu_us_per_request": [r.cpu_us_per_request or 0.0 for r in runs],
            "cpu_us_per_chunk": [r.cpu_us_per_chunk or 0.0 for r in runs],
            "rss_mb": [r.rss_mb or 0.0 for r in runs],
        }
        made[name] = {key: spread(values) for key, values in added[name].items()}
        made[name]["failed"] = sum(r.failed for r in runs)
    if PEER in added:
        ratios = {
            key: [our / their for our, their in zip(values, added[PEER][key], strict=True) if their > 0]
            for key, values in added[OURS].items()
        }
        made["ratio"] = {key: spread(values) for key, values in ratios.items()}
        noise = {
            "added_ttft_p50_us": _width([r.overhead_p50_us for r in direct]),
            "added_ttft_p99_us": _width([r.overhead_p99_us for r in direct]),
        }
        made["within_noise"] = [key for key in added[PEER] if min(added[PEER][key]) <= noise.get(key, 0.0)]
        made["goals"] = {
            key: judge(ratios[key], limit, within_noise=key in made["within_noise"]) for key, limit in GOALS.items()
        }
    else:
        made["ratio"], made["within_noise"], made["goals"] = None, [], {}
    made[DIRECT] = {
        "overhead_p50_us": spread([r.overhead_p50_us for r in direct]),
        "overhead_p99_us": spread([r.overhead_p99_us for r in direct]),
    }
    return made


def judge(ratios: list[float], limit: float, *, within_noise: bool) -> str:
    """Whether the ratios reach a goal: `holds`, `fails`, or why neither can be said."""
    if within_noise:
        return "open: the denominator is within noise"
    if len(ratios) < GOAL_ROUNDS:
        return f"open: {len(ratios)} rounds, {GOAL_ROUNDS} needed"
    upper = float(np.quantile(ratios, 0.75))
    return "holds" if max(median(ratios), upper) <= limit else "fails"


def _width(values: list[float]) -> float:
    return max(values) - min(values)


def spread(values: list[float]) -> tuple[float, float, float] | None:
    """Median, lowest and highest; None = there are none."""
    return (median(values), min(values), max(values)) if values else None


def table(figures_by_scenario: dict[str, dict[str, list[Figures]]]) -> Table:
    drawn = Table(
        "scenario",
        "measure",
        OURS,
        PEER,
        f"{OURS} / {PEER}",
        "goal",
        title="median (lowest to highest) over the rounds",
    )
    for scenario, rounds in figures_by_scenario.items():
        made = summary(rounds)
        for key in ("added_ttft_p50_us", "added_ttft_p99_us", "cpu_us_per_request", "cpu_us_per_chunk", "rss_mb"):
            ratio = made["ratio"] and made["ratio"][key]
            peer = made[PEER][key] if PEER in made else None
            mark = " (within noise)" if key in made["within_noise"] else ""
            shown = _show_spread(ratio, "x") + mark
            goal = f"<= {GOALS[key]:g}: {made['goals'][key]}" if key in made["goals"] else ""
            drawn.add_row(scenario, key, _show_spread(made[OURS][key]), _show_spread(peer), shown, goal)
        drawn.add_row(scenario, "direct: overhead_p50_us", _show_spread(made[DIRECT]["overhead_p50_us"]), "", "")
        drawn.add_row(scenario, "direct: overhead_p99_us", _show_spread(made[DIRECT]["overhead_p99_us"]), "", "")
    return drawn


def _show_spread(value: tuple[float, float, float] | None, unit: str = "") -> str:
    return "-" if value is None else f"{value[0]:.3g}{unit} ({value[1]:.3g} to {value[2]:.3g})"


def allow_streams() -> int:
    """Raise the soft limit of open files to the hard one; returns the streams that it allows through one router."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return max(1, (limit - DESCRIPTORS_KEPT) // 2)


def hold_streams(count: int, routers: int, folder: Path) -> dict[str, Any]:
    """Hold `count` slow streams at once, spread over `routers` routers; how many were whole, and what they cost."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(TruthServer()) for _ in range(2)]
        urls = [server.url(ttft_ms=500, itl_ms=PAUSE_MS, ids=0) for server in servers]
        targets = []
        for place in range(routers):
            own = folder / f"router{place}"
            own.mkdir(exist_ok=True)
            targets.append(stack.enter_context(our_router(urls, own)))
        held = {"routers": routers, **hold([target.url for target in targets], count)}
        held["router_rss_mb"] = sum(_rss_mb(target) for target in targets)
        held["router_cpu_s"] = sum(_cpu_s(target) for target in targets)
    return held


def streams(count: int, folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Hold slow streams: as many as one router's descriptors allow, and `count` over as many routers as that takes."""
    possible = allow_streams()
    wanted = [(min(count, possible), 1)]
    if possible < count:
        wanted.append((count, -(-count // possible)))
    held = []
    for number, routers in wanted:
        say(f"{number} streams over {routers} router(s)")
        held.append(hold_streams(number, routers, folder))
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured window of a run")
    parser.add_argument("--vllm-router", default=os.environ.get("VLLM_ROUTER", ""), help="the peer's executable")
    parser.add_argument("--only", default="", help="only scenarios whose name contains this")
    parser.add_argument("--streams", type=int, default=0, help="slow streams to hold at once; 0 = skip")
    parser.add_argument("--realtime", action="store_true", help="everything under SCHED_RR: foreign load stays out")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON on stdout")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    conditions = read_conditions()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures_by_scenario = bench(options, folder) if options.rounds else {}
        held = streams(options.streams, folder, lambda text: print(text, file=sys.stderr)) if options.streams else []
    reason = "" if options.vllm_router else "no vllm-router: give --vllm-router or VLLM_ROUTER"
    made = {
        "conditions": asdict(conditions),
        "realtime": options.realtime,
        "peer_missing": reason or None,
        "scenarios": {name: summary(rounds) for name, rounds in figures_by_scenario.items()},
        "streams": held,
    }
    if options.json:
        print(json.dumps(made, indent=2))
        return
    console = Console(width=150)
    console.print(describe_conditions(conditions))
    if figures_by_scenario:
        console.print(table(figures_by_scenario))
    if reason:
        console.print(reason)
    for row in held:
        console.print(row)


if __name__ == "__main__":
    main()

"""Runs turns in this process, from a trace file to a figure, and tells which modules their code is in.

The processes that a run starts are left out, and so is what only starts them: the load process, the router's process,
the cell. The engines are a TruthServer; what their samplers write is there before.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from results.records.load_specs import ReplaySpec
from results.records.router_spec import InstanceSpec, RouterSpec
from results.report.figure import Figure
from results.routing.analyze import RoutingAnalysis
from results.routing.figures import build_figures
from results.routing.write import write_results
from runners.experiments.routing.artifacts import publish_cell
from runners.experiments.routing.grid import EXPERIMENT, TraceChoice, read_grid
from runners.experiments.routing.plan import list_cells
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.experiments.routing.trace import prepare_trace
from runners.load.replay import run_trace
from runners.load.replay_messages import ReplayOutcome
from runners.router.messages import RouterOutcome
from runners.router.policies import make_policy
from runners.router.server.server import Server
from tests.runners.experiments.routing.test_artifacts import PROFILE, lines, replayed, run_context, write_engines
from tests.runners.trace.files import mooncake_rows
from tests.servers.truth_server import TruthServer

GRID = read_grid(PROFILE.experiments[EXPERIMENT], PROFILE.name, "baselines")
LABEL = "EAR, KV not moved"
TURNS = 6
BLOCK_TOKENS = 32
FIGURE = "figure_6"


@contextmanager
def record_modules() -> Iterator[set[str]]:
    """The names of the modules whose functions run, in this thread and in those started meanwhile."""
    ran: set[str] = set()

    def note_call(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_flags & CO_OPTIMIZED:  # a function's, not that of a module or class
            ran.add(frame.f_globals.get("__name__", ""))  # methods that `dataclass` generates name no file

    before = sys.gettrace(), threading.gettrace()
    threading.settrace(note_call)
    sys.settrace(note_call)
    try:
        yield ran
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


def run_turns(folder: Path) -> set[str]:
    """Run a small Mooncake trace before a router with `ear`, analyze it and draw FIGURE; returns the modules that ran.

    `folder`: the run's.
    """
    cell = next(cell for cell in list_cells(GRID, "plain", 1, 0) if cell.label == LABEL)
    context = run_context(folder)
    attempt = folder / "attempts" / "cell" / "1"
    scrapes = write_engines(attempt)
    source, trace_path = folder / "source.jsonl", context.layout.trace
    lines(source, *mooncake_rows(TURNS))
    choice = TraceChoice(source=str(source), format="mooncake", tokens=1 / 16)
    with TruthServer() as engines, patch("results.routing.write.build_figures", build_figure):
        url = engines.url(ttft_ms=5, itl_ms=1)
        instances = [InstanceSpec(name, url, kv_capacity_tokens=8192, block_tokens=BLOCK_TOKENS) for name in scrapes]
        router = make_router_spec(cell, GRID, instances, attempt)
        replay = make_replay_spec(cell, GRID, PROFILE.model, "http://router", trace_path, BLOCK_TOKENS, attempt)
        with record_modules() as ran:
            trace = prepare_trace(choice, 4096, trace_path)
            outcome, ended = asyncio.run(replay_once(router, replace(replay, time_scale=0.01, realtime=False)))
            publish_cell(cell, 1, GRID, trace, replayed(outcome, ended, scrapes), attempt, context)
            write_results(folder)
    assert (outcome.completed, ended.policy) == (TURNS, "ear")
    assert (context.layout.figures / f"{FIGURE}.png").is_file()
    return ran


async def replay_once(router: RouterSpec, replay: ReplaySpec) -> tuple[ReplayOutcome, RouterOutcome]:
    """Replay against a router in the same event loop."""
    server = Server(router, make_policy(router.policy, router.parameters), lambda tick: None)
    ready = await server.start()
    outcome = await run_trace(replace(replay, url=ready.url), lambda tick: None, asyncio.Event())
    return outcome, await server.end()


def build_figure(analysis: RoutingAnalysis) -> list[Figure]:
    """FIGURE alone: drawing all takes most of the time."""
    return [figure for figure in build_figures(analysis) if figure.stem == FIGURE]

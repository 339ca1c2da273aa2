"""The experiment around the cells: which engines a cell meets, and which cells are not measured at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest

from launch.errors import LaunchError
from launch.profile import load_config
from results.pd_lifecycle.read import read_records
from results.records.events import CellState, Noted
from results.records.layout import RunLayout
from results.records.lifecycle import RequestConfig
from results.records.plan import CellPlan
from runners.campaign.context import RunContext
from runners.errors import CellFailed
from runners.experiments.pd_lifecycle import bench as pd_lifecycle_bench
from runners.experiments.pd_lifecycle.bench import Bench, plan_group
from runners.experiments.pd_lifecycle.caches import EngineCache
from runners.experiments.pd_lifecycle.experiment import PdLifecycle
from runners.experiments.pd_lifecycle.grid import Grid
from state.model import RunView
from tests.runners.experiments.pd_lifecycle.lifecycle_fakes import BLOCK, FakeBench
from tests.runners.experiments.pd_lifecycle.test_cell import cell, grid


class Host:
    """What an experiment has at hand; every bench that was set up, and how many were ended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.benches: list[FakeBench] = []
        self.ended = 0
        self.events: list[Any] = []
        self.broken = 0
        """The first N benches do not start."""
        monkeypatch.setattr(pd_lifecycle_bench, "open_bench", self._open)
        monkeypatch.setattr("runners.experiments.patched_cells.PatchUse", lambda engine: SimpleNamespace(apply=int))
        monkeypatch.setattr("runners.experiments.pd_lifecycle.caches.EMPTY_WITHIN_S", 0.1)

    def experiment(self, of: Grid) -> PdLifecycle:
        layout = RunLayout(self.folder / "run")

        def attempt_folder(plan: CellPlan, attempt: int) -> Path:
            path = layout.attempt(plan.cell, attempt)
            path.mkdir(parents=True, exist_ok=True)
            return path

        context = SimpleNamespace(
            layout=layout,
            engine=None,
            profile=SimpleNamespace(model=SimpleNamespace(served_name="tiny")),
            emit=lambda *events: self.events.extend(events),
            attempt_folder=attempt_folder,
            slot=SimpleNamespace(release_dead=self._hold_no_engine),
        )
        return PdLifecycle(of, cast(RunContext, context))

    async def _hold_no_engine(self) -> None:
        """No engine is at hand between cells."""

    @asynccontextmanager
    async def _open(self, of: Grid, context: RunContext, plan: CellPlan, folder: Path) -> AsyncIterator[Bench]:
        if self.broken:
            self.broken -= 1
            raise LaunchError("e1 would not start", remedy="read the log")
        self.benches.append(FakeBench(self.folder / f"bench{len(self.benches)}"))
        yield self.benches[-1].bench()
        self.ended += 1


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


CELLS = [
    cell(RequestConfig(c, n, 2), place) for place, (c, n) in enumerate([(0, 64), (0, 96), (BLOCK, 64), (BLOCK, 96)])
]


async def test_all_cells_share_the_engines_and_caches_are_emptied_between_contexts(host: Host) -> None:
    experiment = host.experiment(grid())
    for plan in CELLS:
        outcome = await experiment.run_cell(plan, 1)
        assert outcome.summary["counted"] == 3
        assert outcome.summary["discarded"] == 0
    assert len(host.benches) == 1
    assert all(experiment.adopt(plan) is not None for plan in CELLS)


async def test_every_trial_has_fresh_engines_and_its_own_files(host: Host) -> None:
    experiment = host.experiment(grid())
    plans = [replace(plan, cell=f"{plan.cell}/t{trial}", trial=trial) for trial in (0, 1) for plan in CELLS[:2]]
    for plan in plans:
        await experiment.run_cell(plan, 1)
    assert [bench.handovers for bench in host.benches] == [10, 10]
    assert host.ended == 1
    assert all(experiment.adopt(plan) is not None for plan in plans)
    collected = read_records(host.folder / "run")
    assert [record.trial for record in collected.records] == [0] * 10 + [1] * 10
    assert collected.gaps == ()
    assert sorted(collected.cells) == [(0, 0, 64, 2), (0, 0, 96, 2), (1, 0, 64, 2), (1, 0, 96, 2)]


async def test_with_restart_every_context_has_fresh_engines(host: Host) -> None:
    experiment = host.experiment(grid(evict="restart"))
    for plan in CELLS:
        await experiment.run_cell(plan, 1)
    assert [bench.handovers for bench in host.benches] == [10, 10]
    assert host.ended == 1


async def test_engines_whose_caches_are_not_emptied_are_replaced_and_that_is_said(host: Host) -> None:
    experiment = host.experiment(grid())
    await experiment.run_cell(CELLS[0], 1)
    host.benches[0].prefill.resets = False
    await experiment.run_cell(CELLS[2], 1)
    assert [bench.handovers for bench in host.benches] == [5, 5]
    assert any(isinstance(event, Noted) and "fresh engines" in event.text for event in host.events)


async def test_a_dead_engine_is_replaced_for_the_next_cell(host: Host) -> None:
    experiment = host.experiment(grid())
    await experiment.run_cell(CELLS[0], 1)
    host.benches[0].dead = "killed"
    await experiment.run_cell(CELLS[1], 1)
    assert len(host.benches) == 2
    assert host.ended == 1


async def test_engines_that_do_not_start_are_not_tried_for_every_cell(host: Host) -> None:
    host.broken = 1
    experiment = host.experiment(grid())
    for plan in CELLS[:2]:
        with pytest.raises(LaunchError, match="would not start"):
            await experiment.run_cell(plan, 1)
    assert not host.benches


async def test_a_cell_that_fails_leaves_why_and_what_was_thrown_away_until_it_is_measured(host: Host) -> None:
    experiment = host.experiment(grid(discards=1))
    await experiment.run_cell(CELLS[0], 1)
    bench = host.benches[0]
    bench.failing = frozenset(range(bench.handovers + 1, bench.handovers + 100))
    with pytest.raises(CellFailed, match="2 measurements were discarded"):
        await experiment.run_cell(CELLS[1], 1)
    folder = host.folder / "run" / "results" / "lifecycle" / "cells" / "C0_N96_O2"
    content = msgspec.json.decode((folder / "failed.json").read_bytes())
    assert (content["cell"], content["attempt"], content["measured"]) == ("sweep/C0_N96_O2", 1, 1)
    assert "2 measurements were discarded" in content["reason"]
    assert [(one["repetition"], one["reason"]) for one in content["discarded"]] == [
        (number, "the transfer was failed: the test says so") for number in (2, 3)
    ]
    bench.failing = frozenset()
    await experiment.run_cell(CELLS[1], 2)
    assert not (folder / "failed.json").exists()
    assert experiment.adopt(CELLS[1]) is not None


async def test_a_cell_whose_engines_do_not_start_leaves_why(host: Host) -> None:
    host.broken = 1
    with pytest.raises(LaunchError):
        await host.experiment(grid()).run_cell(CELLS[0], 1)
    path = host.folder / "run" / "results" / "lifecycle" / "cells" / "C0_N64_O2" / "failed.json"
    assert msgspec.json.decode(path.read_bytes())["reason"] == "e1 would not start"


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ({}, ""),
        ({"preflight/probe": CellState.DONE, "preflight/mooncake_producer": CellState.DONE}, ""),
        ({"preflight/probe": CellState.FAILED}, "the probes could not be applied: because"),
        ({"preflight/mooncake_producer": CellState.FAILED}, "pre-flight failed: because"),
        ({"preflight/mooncake_consumer": CellState.FAILED}, "pre-flight failed: because"),
    ],
)
def test_nothing_is_measured_with_a_config_or_a_probe_that_did_not_pass(
    host: Host, cells: dict[str, CellState], named: str
) -> None:
    experiment = host.experiment(grid(configs=("mooncake_producer", "mooncake_consumer")))
    seen = {name: SimpleNamespace(state=state, reason="because") for name, state in cells.items()}
    assert experiment.explain_skip(CELLS[0], cast(RunView, SimpleNamespace(cells=seen))) == named


def test_a_cell_beyond_the_context_is_skipped_with_the_plans_reason(host: Host) -> None:
    plan = CellPlan("sweep/x", "sweep", "lifecycle", "mooncake_both", "x", {"why_not": "too long"}, 0.0)
    view = cast(RunView, SimpleNamespace(cells={}))
    assert host.experiment(grid()).explain_skip(plan, view) == "too long"


async def test_an_engine_that_does_not_say_what_was_cached_is_no_evidence(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"usage": {"prompt_tokens": 3}})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://engine")
    with pytest.raises(Exception, match="does not report the number of cached prompt tokens"):
        await EngineCache("decode", client, "tiny", 1.0).compute_prompt([1, 2, 3])


def test_a_cell_of_an_older_plan_is_measured_as_it_was_planned(tmp_path: Path) -> None:
    """A run from before the plain engine, resumed: its cells ask for none, though today's preset does."""
    configs = {name: load_config(name) for name in ("mooncake_both", "plain")}
    context = cast(RunContext, SimpleNamespace(configs=configs))
    older = plan_group(grid(), context, CELLS[0], tmp_path)
    assert (older.configs, older.roles) == (("mooncake_both", "mooncake_both"), ("prefill", "decode"))
    today = replace(CELLS[0], params={**CELLS[0].params, "plain": "plain"})
    group = plan_group(grid(), context, today, tmp_path)
    assert (group.configs[2:], group.roles[2:]) == (("plain",), ("both",))

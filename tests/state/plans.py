"""Plans and runs that the tests of this room begin with."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from results.records.events import Event, RunPlanned
from results.records.plan import CellPlan, RunPlan, StagePlan
from state.events import Recorded
from state.model import EMPTY, RunView
from state.store import RunStore
from state.view import fold

CONFIGS = ("plain", "noop_connector")
STAGES = (StagePlan("preflight", "Preflight"), StagePlan("phase-a", "Phase A: load sweep"))
CELLS = tuple(
    [CellPlan(f"preflight/{config}", "preflight", "preflight", config, "verify", {}, 10.0) for config in CONFIGS]
    + [
        CellPlan(f"phase-a/{config}/r{rate}", "phase-a", "load", config, f"{rate} req/s", params, 30.0)
        for config in CONFIGS
        for rate in (1, 4)
        for params in ({"drain_s": 30.0, "rate_per_s": rate},)
    ]
)


def a_plan() -> RunPlan:
    return RunPlan(
        experiment="connector-tax",
        profile="cpu-tiny",
        preset="demo",
        configs=CONFIGS,
        seed=7,
        stages=STAGES,
        cells=CELLS,
        estimated_s=sum(cell.estimated_s for cell in CELLS),
        inputs={"profile": "cpu-tiny"},
        fingerprint="f" * 64,
    )


class Clock:
    """A clock that advances one second at each call, or as set."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def a_run(folder: Path, run: str = "20260101-120000-connector-tax-cpu-tiny") -> RunStore:
    return RunStore.create(folder, run, a_plan(), "0.1.0", clock=Clock())


def folded(*events: Event, start_s: float = 100.0, step_s: float = 1.0) -> RunView:
    """The view of a run whose events come `step_s` apart; the plan is event 1, at `start_s`."""
    planned = RunPlanned("a-run", a_plan(), "0.1.0")
    recorded = [Recorded(n + 1, start_s + n * step_s, 0, event) for n, event in enumerate((planned, *events))]
    return reduce(fold, recorded, EMPTY)

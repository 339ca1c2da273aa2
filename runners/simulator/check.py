"""`tracon simulate check`: every gate of a simulation that these runs can judge.

Runs of connector-tax judge the calibration, live runs of routing the parity, and live and simulated runs of routing
together APC and rank: of policies under one load, each on its own traces or on the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.measures.summary import percentile_name
from results.records.run_folder import run_facts
from results.records.turns import RoutingCell
from results.routing.loads import load_of, strip_load
from results.routing.read import load_cells
from results.routing.summary import summary_of
from results.statistics.judgement import Judgement, Outcome
from runners.errors import RunnerError
from runners.simulator.calibrate import COMPARED, Calibration, calibrate
from runners.simulator.gates import (
    Contention,
    LoadValues,
    Rank,
    held,
    judge_apc,
    judge_errors,
    judge_rank,
    measure_contention,
)
from runners.simulator.logged_run import CellParity, compare_run

RANKED = tuple(percentile_name(series, "p90") for series in COMPARED)
TOKEN_TIME = percentile_name("tpot_s", "p50")
CONFIG = "plain"
"""Of connector-tax: one engine without a connector."""


@dataclass(frozen=True, slots=True)
class Check:
    """What the runs say of the simulator."""

    gates: tuple[Judgement, ...]
    parity: tuple[CellParity, ...]
    ranks: tuple[Rank, ...]
    contention: tuple[Contention, ...]

    @property
    def passed(self) -> bool:
        """No gate fails; those that are undecided or open do not."""
        return all(gate.outcome is not Outcome.FAILS for gate in self.gates)


def check_runs(runs: Sequence[Path]) -> Check:
    """Judge what these runs can judge. Raises RunnerError for a run of another experiment."""
    kinds = {run: run_facts(run)[0].experiment for run in runs}
    for run, kind in kinds.items():
        if kind not in ("connector-tax", "routing"):
            raise RunnerError(
                f"{run.name} is a run of {kind or 'no experiment'}", remedy="name runs of routing and connector-tax"
            )
    calibrations = [calibrate(run, CONFIG) for run in runs if kinds[run] == "connector-tax"]
    routing = [run for run in runs if kinds[run] == "routing"]
    parity = tuple(cell for run in routing for cell in compare_run(run))
    loads = read_values(routing, (*RANKED, "apc", TOKEN_TIME))
    ranks = tuple(judge_rank(name, [one.take_logarithms() for one in loads[name]]) for name in RANKED)
    gates = (
        judge_parity(parity),
        *judge_calibrations(calibrations),
        judge_apc(loads["apc"]),
        *(rank.judgement for rank in ranks),
    )
    return Check(gates, parity, ranks, measure_contention(loads[TOKEN_TIME]))


def judge_parity(cells: Sequence[CellParity]) -> Judgement:
    """Every decision that can be compared is the same, on the same view."""
    name, claim = "parity", "The simulated router decides as the live one did on the same views."
    rule = "every decision that can be compared is equal"
    compared = [cell.parity for cell in cells if cell.parity is not None]
    decisions = sum(parity.compared for parity in compared)
    if not decisions:
        return Judgement(name, claim, rule, Outcome.OPEN, "no decision of a live run was compared")
    different = sum(parity.different for parity in compared)
    unsure = sum(sum(parity.unsure.values()) for parity in compared)
    from_log = sum(parity.without_index for parity in compared)
    text = f"{decisions - different} of {decisions} decisions in {len(compared)} cells are equal"
    text += f"; {unsure} cannot be compared" if unsure else ""
    text += f"; of {from_log} the cached tokens are the log's own" if from_log else ""
    return Judgement(name, claim, rule, held(different == 0), text)


def judge_calibrations(calibrations: Sequence[Calibration]) -> tuple[Judgement, ...]:
    """TTFT, TPOT and E2E p90 over the cells of all runs that gave no fit and are not near saturation."""
    gates = []
    for series in COMPARED:
        errors = [error for one in calibrations for error in one.list_errors(series)]
        repeats = [error for one in calibrations for error in one.list_repeats(series)]
        apart = [error for one in calibrations for error in one.list_errors(series, near_saturation=True)]
        gates.append(judge_errors(percentile_name(series, "p90"), errors, repeats, apart))
    return tuple(gates)


_Policies = defaultdict[str, dict[int, float]]
_Loads = defaultdict[str, _Policies]
"""Values of one metric by load, policy and trial."""


def _by_policy() -> _Policies:
    return defaultdict(dict)


def read_values(runs: Iterable[Path], metrics: Sequence[str]) -> dict[str, list[LoadValues]]:
    """Each metric of every routing run, under the loads that were both measured and simulated.

    Trials of several runs are trials one after another.
    """
    measured: dict[str, _Loads] = {name: defaultdict(_by_policy) for name in metrics}
    simulated: dict[str, _Loads] = {name: defaultdict(_by_policy) for name in metrics}
    first = 0
    for run in runs:
        cells = [cell for cell in load_cells(run)[0] if not cell.degraded]
        for cell in cells:
            record, summary = cell.record, summary_of(cell)
            for name, loads in (simulated if record.simulated else measured).items():
                value = summary.estimate(name).value
                if value is not None:
                    loads[_name_load(record)][strip_load(record.label)][first + record.trial] = value
        first += 1 + max((cell.record.trial for cell in cells), default=-1)
    return {
        name: [LoadValues(load, own, simulated[name][load]) for load, own in loads.items() if load in simulated[name]]
        for name, loads in measured.items()
    }


def _name_load(record: RoutingCell) -> str:
    time_scale, kv_bytes, trace = load_of(record)
    size = f", KV cache {kv_bytes} B" if kv_bytes else ""
    return f"time_scale {time_scale}, trace {trace or record.trace.get('file')}, {len(record.engines)} instances{size}"

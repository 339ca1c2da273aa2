"""`tracon simulate check`: every gate of a simulation that these runs can judge.

Runs of connector-tax judge the calibration, live runs of routing the parity, and live and simulated runs of routing
together APC and rank: of policies under one load, each on its own traces or on the same. The gates are those of one
engine model: simulated runs of several are refused, and a fit of another model judges none. Each simulated run gets
them in its folder and its report; so does a run of capacity, which judges no gate.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from results.measures.summary import name_percentile
from results.records.count import format_count
from results.records.engine_gates import EngineGate, EngineGates
from results.records.errors import DAMAGED_JSON
from results.records.layout import RunLayout, digest_cells, write_indented_json
from results.records.run_folder import run_facts
from results.records.turns import RoutingCell
from results.registry import find_results_of_run
from results.routing.loads import load_of, strip_load
from results.routing.metrics import find_metric
from results.routing.read import load_cells
from results.routing.summary import summarize_loaded_cell
from results.statistics.judgement import Judgement, Outcome
from results.statistics.p_values import state_p
from runners.errors import RunnerError
from runners.simulator.calibrate import COMPARED, Calibration, calibrate
from runners.simulator.calibration_gate import LoadErrors, judge_errors
from runners.simulator.gates import Contention, LoadValues, Rank, held, judge_apc, judge_rank, measure_contention
from runners.simulator.logged_run import CellParity, compare_run

RANKED = tuple(name_percentile(series, "p90") for series in COMPARED)
TOKEN_TIME = name_percentile("tpot_s", "p50")
CONFIG = "plain"
"""Config of connector-tax: one engine without a connector."""
FEWEST_DECISIONS = 100
"""Decisions from which parity may hold: our number. If one of 30 differed, 100 would miss it in 3 of 100 cases."""
NO_LOAD = frozenset({"seed", "source", "format", "per_trial"})
"""Settings of a trace that make no load of their own: the file's name is in the load's."""


@dataclass(frozen=True, slots=True)
class Check:
    """What the runs say of the simulator."""

    gates: tuple[Judgement, ...]
    parity: tuple[CellParity, ...]
    ranks: tuple[Rank, ...]
    contention: tuple[Contention, ...]
    simulated: Mapping[str, str]
    """Folder of each simulated run, with the digest of its cells before they were judged."""
    hosts: tuple[str, ...] = ()
    """Whether the hosts of the runs that judge the calibration were at rest, in sentences."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for each pair of policies that turns round, for each load under which engines shared cores, and for
        the hosts."""
        return (*self._describe_flips(), *self._describe_contention(), *self.hosts)

    def _describe_flips(self) -> Iterator[str]:
        for rank in self.ranks:
            for flip in rank.flips:
                yield (
                    f"{find_metric(rank.metric).title}, {flip.load}: {flip.lower} is below {flip.higher} in real runs "
                    f"({state_p(flip.p_value)}), and not in simulated ones."
                )

    def _describe_contention(self) -> Iterator[str]:
        for row in self.contention:
            yield (
                f"{row.load}: TPOT p50 of real engines is {row.factor:.2f} times that of simulated ones "
                f"({row.lowest:.2f} to {row.highest:.2f} over {format_count(row.policies, 'policy', 'policies')}); not "
                "judged."
            )

    @property
    def passed(self) -> bool:
        """No gate fails; those that are undecided or open do not."""
        return all(gate.outcome is not Outcome.FAILS for gate in self.gates)


def check_runs(runs: Sequence[Path]) -> Check:
    """Judge what these runs can judge.

    Raises RunnerError for a run of another experiment, and for simulated runs of several engine models.
    """
    facts = {run: run_facts(run)[0] for run in runs}
    for run, own in facts.items():
        if own.experiment not in ("connector-tax", "routing", "capacity"):
            raise RunnerError(
                f"{run.name} is a run of {own.experiment or 'no experiment'}",
                remedy="name runs of routing, capacity and connector-tax",
            )
    simulated = [run for run in runs if facts[run].simulated]
    model = _require_one_model(simulated)
    digests = {str(run): digest_cells(run) for run in simulated}
    fits = {run.name: calibrate(run, CONFIG) for run in runs if facts[run].experiment == "connector-tax"}
    own_fits = [fit for fit in fits.values() if not simulated or _is_of(fit, model)]
    routing = [run for run in runs if facts[run].experiment == "routing"]
    parity = tuple(cell for run in routing for cell in compare_run(run))
    loads = read_values(routing, (*RANKED, "apc", TOKEN_TIME))
    ranks = tuple(judge_rank(name, [one.take_logarithms() for one in loads[name]]) for name in RANKED)
    gates = (
        judge_parity(parity),
        *judge_calibrations(own_fits, [] if own_fits else list(fits)),
        judge_apc(loads["apc"]),
        *(rank.judgement for rank in ranks),
    )
    hosts = tuple(f"{run.name}: {note}" for run in runs if run.name in fits for note in facts[run].host_notes)
    return Check(gates, parity, ranks, measure_contention(loads[TOKEN_TIME]), digests, hosts)


class _Grid(msgspec.Struct, frozen=True):
    trace: dict[str, Any] = {}


class _Inputs(msgspec.Struct):
    engine_model: Any = None
    grid: _Grid = _Grid()


class _Plan(msgspec.Struct):
    inputs: _Inputs


def _read_inputs(run: Path) -> _Inputs:
    path = RunLayout(run).plan
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Plan).inputs
    except DAMAGED_JSON as error:
        raise RunnerError(f"{path} is damaged: {error}", remedy="leave that run out") from error


def _require_one_model(simulated: Sequence[Path]) -> object:
    """The engine model of these runs, as their plans have it; None = not stated. Raises RunnerError."""
    models: list[object] = [_read_inputs(run).engine_model for run in simulated]
    for run, model in zip(simulated, models, strict=True):
        if model != models[0]:
            raise RunnerError(
                f"{simulated[0].name} and {run.name} were simulated with two engine models",
                remedy="a gate is of one engine model: check the runs of each with the live runs",
            )
    return models[0] if models else None


def _is_of(fit: Calibration, model: object) -> bool:
    """Whether the engine model of a plan is the one that this fit gave."""
    return isinstance(model, dict) and model.get("model") == msgspec.to_builtins(fit.engine.model)


def record_gates(checked: Check, runs: Sequence[Path]) -> tuple[Path, ...]:
    """Write the gates into each simulated run and its report again; returns these runs. Raises OSError."""
    names = tuple(run.name for run in runs)
    gates = tuple(msgspec.convert(msgspec.to_builtins(gate), EngineGate) for gate in checked.gates)
    for folder, digest in checked.simulated.items():
        run = Path(folder)
        model = run_facts(run)[0].simulated
        record = EngineGates(names, model, digest, version("tracon"), gates, checked.notes)
        write_indented_json(RunLayout(run).engine_gates, record)
        find_results_of_run(run).write(run)
    return tuple(map(Path, checked.simulated))


def judge_parity(cells: Sequence[CellParity]) -> Judgement:
    """Every decision that can be compared is the same, on the same view."""
    name, claim = "parity", "The simulated router decides as the live one did on the same views."
    rule = f"every decision that can be compared is equal, of {FEWEST_DECISIONS} or more; fails where one differs"
    compared = [cell.parity for cell in cells if cell.parity is not None]
    decisions = sum(parity.compared for parity in compared)
    if not decisions:
        return Judgement(name, claim, rule, Outcome.OPEN, "no decision of a live run was compared")
    different = sum(parity.different for parity in compared)
    unsure = sum(sum(parity.unsure.values()) for parity in compared)
    from_log = sum(parity.without_index for parity in compared)
    cells_compared = format_count(len(compared), "cell", "cells")
    text = f"{decisions - different} of {decisions} decisions in {cells_compared} are equal"
    text += f"; {unsure} cannot be compared" if unsure else ""
    whole = [cell for cell in cells if cell.parity is None]
    if whole:
        count = format_count(len(whole), "cell", "cells")
        text += f"; {count} cannot be compared ({whole[0].cell}: {whole[0].reason})"
    text += f"; of {from_log} the cached tokens are the log's own" if from_log else ""
    text += _name_first_difference(cells)
    if not different and decisions < FEWEST_DECISIONS:
        return Judgement(name, claim, rule, Outcome.UNDECIDED, f"{text}; {FEWEST_DECISIONS} are the least")
    return Judgement(name, claim, rule, held(different == 0), text)


def _name_first_difference(cells: Sequence[CellParity]) -> str:
    for cell in cells:
        if cell.parity is not None and cell.parity.first is not None:
            first = cell.parity.first
            return f"; the first that differs: {first.seq} of {cell.cell}, {', '.join(first.fields)}"
    return ""


def judge_calibrations(calibrations: Sequence[Calibration], others: Sequence[str] = ()) -> tuple[Judgement, ...]:
    """TTFT, TPOT and E2E p90 over the loads of all runs that have cells without a fit and are not near saturation.

    `others`: runs whose fit is not the simulated engine model, where there is no fit of that.
    """
    gates = []
    for series in COMPARED:
        loads, apart = (_join_loads(calibrations, series, near_saturation=near) for near in (False, True))
        gates.append(judge_errors(name_percentile(series, "p90"), loads, apart))
    if not others:
        return tuple(gates)
    reason = (
        f"the engine model of the simulated runs is not the one that this Tracon fits to {', '.join(others)}: "
        "calibrate again and simulate with that"
    )
    return tuple(replace(gate, reason=reason) for gate in gates)


def _join_loads(calibrations: Sequence[Calibration], series: str, *, near_saturation: bool) -> list[LoadErrors]:
    """A load that several runs measured is one sample all the same."""
    parts: dict[tuple[float, int, int], list[LoadErrors]] = {}
    for one in calibrations:
        for load, own in one.list_loads(series, near_saturation=near_saturation).items():
            parts.setdefault(load, []).append(own)
    return [LoadErrors(tuple(cell for own in alike for cell in own.cells)) for alike in parts.values()]


_Policies = defaultdict[str, dict[int, float]]
_Loads = defaultdict[str, _Policies]
"""Values of one metric by load, policy and trial."""


def _make_policies() -> _Policies:
    return defaultdict(dict)


def read_values(runs: Iterable[Path], metrics: Sequence[str]) -> dict[str, list[LoadValues]]:
    """Each metric of every routing run, under the loads that were both measured and simulated.

    Trials of several runs are trials one after another.
    """
    measured: dict[str, _Loads] = {name: defaultdict(_make_policies) for name in metrics}
    simulated: dict[str, _Loads] = {name: defaultdict(_make_policies) for name in metrics}
    first = 0
    for run in runs:
        cells, inputs = [cell for cell in load_cells(run)[0] if not cell.degraded], _read_inputs(run)
        for cell in cells:
            record, summary = cell.record, summarize_loaded_cell(cell)
            for name, loads in (simulated if record.simulated else measured).items():
                value = summary.estimate(name).value
                if value is not None:
                    loads[_name_load(record, inputs)][strip_load(record.label)][first + record.trial] = value
        first += 1 + max((cell.record.trial for cell in cells), default=-1)
    return {
        name: [LoadValues(load, own, simulated[name][load]) for load, own in loads.items() if load in simulated[name]]
        for name, loads in measured.items()
    }


def _name_load(record: RoutingCell, inputs: _Inputs) -> str:
    """All that makes a load but the seed of its trace: two cells of one name are compared with each other."""
    time_scale, kv_bytes, trace = load_of(record)
    settings = {name: value for name, value in inputs.grid.trace.items() if name not in NO_LOAD and value is not None}
    digest = hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:8]
    parts = [
        f"time_scale {time_scale}",
        f"trace {trace or record.trace.get('file')} (settings {digest})",
        f"{len(record.engines)} instances",
        f"KV cache {kv_bytes} B" if kv_bytes else "",
        f"at most {limit} sessions in flight" if (limit := record.replay.get("max_inflight_sessions")) else "",
    ]
    return ", ".join(part for part in parts if part)

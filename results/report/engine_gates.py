"""What the engine model of a simulated run has shown against real runs, as its report shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from results.records.engine_gates import ENGINE_GATES_VERSION, EngineGates
from results.records.frames import Gap, read_record
from results.records.layout import RunLayout, digest_cells
from results.records.run_folder import RunFacts
from results.report.judgements import make_judgement_table
from results.report.table import Table
from results.statistics.judgement import Judgement, Outcome

TITLE = "Gates of the engine model"
KNOWN_ANSWERS = (
    "Known answers are a gate of the simulator's code and need no run. `tests/runners/simulator/test_engine.py` "
    "compares the waits of M/D/1 and M/G/1 at loads of 0.5 and 0.8 with Pollaczek and Khinchine "
    "(`test_waits_are_those_of_m_d_1_and_m_g_1`), and an overloaded engine with its fluid limit "
    "(`test_beyond_its_capacity_an_engine_completes_at_its_capacity`), each within 6 %. On drawn requests it checks "
    "that tokens, blocks and requests are conserved "
    "(`test_whatever_requests_do_every_token_is_given_once_and_every_block_comes_back`)."
)


@dataclass(frozen=True, slots=True)
class ShownGates:
    """The judgements of the last check, or why none counts."""

    judgements: tuple[Judgement, ...] = ()
    """In reading order; empty where `missing` says why."""
    note: str = ""
    """Which runs were checked, and what else the check found."""
    missing: str = ""
    """Why there are no judgements; empty where there are."""


def read_engine_gates(root: Path, facts: RunFacts) -> ShownGates | None:
    """The gates of a simulated run; None = its engines were real."""
    if not facts.simulated:
        return None
    path = RunLayout(root).engine_gates
    if not path.exists():
        return ShownGates(missing=f"no gate was checked for this engine model; {_name_command(facts.run)} does it")
    record = read_record(path, EngineGates, ENGINE_GATES_VERSION)
    if isinstance(record, Gap):
        return ShownGates(missing=f"{record.artifact} {record.reason}; check it again: {_name_command(facts.run)}")
    if record.cells_sha256 != digest_cells(root):
        again = f"`tracon simulate check {' '.join(record.runs)}`"
        return ShownGates(missing=f"cells of this run changed after it was checked; check it again: {again}")
    judgements = tuple(msgspec.convert(gate, Judgement, from_attributes=True) for gate in record.gates)
    checked = f"Checked by Tracon {record.tracon_version}, runs {', '.join(record.runs)}."
    return ShownGates(judgements, " ".join((checked, *record.notes)))


def _name_command(run: str) -> str:
    return f"`tracon simulate check LIVE_RUN {run} CONNECTOR_TAX_RUN`"


def make_gates_table(gates: ShownGates | None) -> Table:
    """A row per gate; one row where none counts, no row for real engines."""
    gates = gates or ShownGates()
    judgements = gates.judgements
    if gates.missing:
        claim, rule = "The engine model predicts real engines.", "every gate holds"
        judgements = (Judgement("all", claim, rule, Outcome.OPEN, gates.missing),)
    note = "Quote a simulated number only where they hold; the rules are in docs/calibrate.md."
    return make_judgement_table(TITLE, "claim", judgements, f"{note} {KNOWN_ANSWERS} {gates.note}".strip())


def describe_gates(gates: ShownGates) -> str:
    """One sentence: which gates hold."""
    if gates.missing:
        return f"{TITLE}: {gates.missing}."
    present = {one.outcome for one in gates.judgements}
    return f"{TITLE}: {'; '.join(_join_names(gates, outcome) for outcome in Outcome if outcome in present)}."


def _join_names(gates: ShownGates, outcome: Outcome) -> str:
    names = [one.name for one in gates.judgements if one.outcome is outcome]
    several = {Outcome.HOLDS: "hold", Outcome.FAILS: "fail"}.get(outcome, f"are {outcome}")
    verb = several if len(names) > 1 else f"{outcome}" if outcome.is_decided else f"is {outcome}"
    return f"{', '.join(names)} {verb}"

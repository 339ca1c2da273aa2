"""`results/engine_gates.json` of a simulated run: what its engine model has shown against real runs.

`tracon simulate check` writes it. The analysis reads it and judges nothing again: the real runs may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from results.records.estimate import Estimate

ENGINE_GATES_VERSION = 1


@dataclass(frozen=True, slots=True)
class EngineGate:
    """One rule, judged."""

    name: str
    """Unique in the file, e.g. `parity` or `calibration of TTFT p90`."""
    claim: str
    """What holds or fails."""
    rule: str
    """How the numbers decide."""
    outcome: str
    """`holds`, `fails`, `undecided` or `open`."""
    reason: str
    """Why this outcome, in numbers."""
    measured: Estimate
    """The number that decided, a fraction: 0.02 = 2 % or 2 points. Of a rule over counts none."""
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    """What else was considered, by name."""
    quantity: str = ""
    """What `measured` is; empty where the rule says it."""
    point: str = ""
    """The outcome by the values alone; empty = the same."""


@dataclass(frozen=True, slots=True)
class EngineGates:
    """The last check. It counts as long as the run's cells stay as they were."""

    runs: tuple[str, ...]
    """Every run that was judged with this one, by id."""
    simulated: str
    """The engine model."""
    cells_sha256: str
    """Over the records of the run's cells when it was checked."""
    tracon_version: str
    """That checked it, and whose router took part in the parity."""
    gates: tuple[EngineGate, ...]
    """In reading order."""
    notes: tuple[str, ...] = ()
    """Sentences: pairs of policies whose order turns round, and by how much engines that share cores are slower."""
    version: int = ENGINE_GATES_VERSION

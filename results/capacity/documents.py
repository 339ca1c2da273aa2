"""What the files of a search hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from results.capacity.search import Answer, Size
from results.records.declaration import Declared
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.report.documents import AggregateHead
from results.report.engine_gates import ShownGates


@dataclass(frozen=True, slots=True)
class AssessedSize:
    """One size of a fleet, over all its traces."""

    size: Size
    """How many instances."""
    standing: str
    """`holds`, `misses` or `undecided`: whether it holds the objective."""
    distance: float
    """The largest logarithm of a value over its limit: below 0 all are met on average."""
    estimates: Mapping[str, Estimate]
    """By name of the limit, in seconds."""


@dataclass(frozen=True)  # without slots: a record with two bases that have slots cannot be made
class _Labeled:
    label: str
    """The policy with its parameters in short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer(Answer, _Labeled):
    """The fewest instances that hold the objective under one policy, and the sizes that were simulated to find them."""

    needed: Estimate
    """Instances that the objective needs."""
    why: str
    """The answer in words."""
    points: tuple[AssessedSize, ...]
    """By rising size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAggregate(AggregateHead):
    """`aggregate.json`: the answer for each policy, and every point."""

    slo: str
    """The objective, as the plan states it."""
    limits_s: Mapping[str, float]
    """By name of the limit, e.g. `ttft_p90`: the most that it may be."""
    traces: int
    """Traces simulated for each point."""
    distinct_traces: int
    """Traces with different sessions; the others differ by step noise alone."""
    policies: tuple[PolicyAnswer, ...]
    """In the order of the plan."""
    gaps: tuple[Gap, ...]
    """What of the run's artifacts is missing or damaged."""


@dataclass(frozen=True, slots=True)
class CapacityVerdicts:
    """`verdicts.json`: the answer for each policy, and what the engine model has shown."""

    format: int
    """Format of this document."""
    simulated: str
    """The model that stood in for engines."""
    policies: tuple[PolicyAnswer, ...]
    """In the order of the plan."""
    engine_gates: ShownGates
    """What the engine model has shown against real runs."""


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A row of `aggregate.csv`: one point with one trace."""

    label: str
    """The policy with its parameters in short."""
    instances: int
    """In all."""
    prefill_instances: int
    """0 = every instance does both."""
    size: str
    """The same as text: `4`, `1P+3D`."""
    trial: int
    """From 0: which trace."""
    turns: int
    """Turns of the trace."""
    completed: int
    """Turns that were completed."""
    values: Mapping[str, float | None]
    """A column for each limit, e.g. `ttft_p90_s`; empty = the percentile is a turn that was not completed."""
    objective: str
    """`holds`, `misses` or `undecided`: of the size, over all its traces."""
    simulated: str
    """The model that stood in for engines."""


@dataclass(frozen=True, slots=True)
class CapacityManifestRow:
    """A row of `MANIFEST.tsv`: one policy."""

    label: str
    """The policy with its parameters in short."""
    status: str
    """`ran` or `not finished`."""
    fewest_instances: str
    """The fewest that hold the objective; empty = none of the simulated sizes does."""
    points: str
    """Sizes that were simulated with all traces."""
    simulated: str
    """The model that stood in for engines."""


DOCUMENTS: tuple[Declared, ...] = (
    Declared(CapacityAggregate, ("aggregate.json",)),
    Declared(CapacityVerdicts, ("verdicts.json",)),
    Declared(CapacityRow, ("aggregate.csv", "aggregate.parquet")),
    Declared(CapacityManifestRow, ("MANIFEST.tsv",)),
)

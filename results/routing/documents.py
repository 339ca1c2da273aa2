"""What the files of a run's analysis hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from results.records.declaration import Declared
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.report.documents import AggregateHead
from results.report.engine_gates import ShownGates
from results.routing.conditional_claims import StoredClaims
from results.routing.coupling import Coupling
from results.routing.interference import Interference
from results.routing.launch_noise import TrialNoise
from results.routing.load_floor import LoadFloor
from results.routing.migrations import MigrationNumbers, PolicyMigrations
from results.routing.occupancy import Deployment, Footprints, Occupancy
from results.routing.pairs import MetricDifference, Pair, Standing, TurnPair
from results.routing.pools import InstancePool
from results.routing.recomputing import AgainstRecomputing
from results.routing.specification import Setting, SpecifiedRow
from results.routing.summary import RoutedSummary
from results.routing.transfers import PolicyTransfers
from results.statistics.judgement import Judgement, Outcome


@dataclass(frozen=True, slots=True)
class PolicyNumbers:
    """One policy over its trials."""

    label: str
    policy: str
    """Its name."""
    values: Mapping[str, Estimate]
    """By metric: the mean over the trials, with its interval."""


@dataclass(frozen=True)  # without slots: a record with two bases that have slots cannot be made
class _MigratedCell:
    cell: str
    label: str
    trial: int
    counts: bool
    """It is among the policy's numbers; else its client fell behind, or it replayed another trace."""
    requests: int
    """Requests of its sessions."""


@dataclass(frozen=True, slots=True)
class MigratedCell(MigrationNumbers, _MigratedCell):
    """One cell of a policy that may migrate, without its single migrations: those are rows of migrations.csv."""


@dataclass(frozen=True, slots=True)
class SpecifiedTables:
    """Which policies of the run stand for the rows of the specification's tables."""

    end_to_end: tuple[SpecifiedRow, ...]
    """Table 5.2."""
    ablation: tuple[SpecifiedRow, ...]
    """Table 5.3."""
    sensitivity: tuple[Setting, ...]
    """The grid of figure 9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingAggregate(AggregateHead):
    """`aggregate.json`: the cells, each policy's numbers over its trials, and the gaps."""

    trace: Mapping[str, Any]
    """As the first cell's record states it."""
    baseline: str
    """The label with which the first load's others are compared; empty where nothing was measured."""
    trials: int
    """The most trials that any policy has."""
    cells: tuple[RoutedSummary, ...]
    """In the order they were measured."""
    policies: tuple[PolicyNumbers, ...]
    """In the order of tables and figures."""
    interference: tuple[Interference, ...]
    """What a prefill costs the decodes beside it."""
    migrations: tuple[PolicyMigrations, ...]
    """By label."""
    migrations_by_cell: tuple[MigratedCell, ...]
    """Cells of policies that may migrate."""
    transfers: tuple[PolicyTransfers, ...]
    """By label and purpose."""
    transfer_against_recomputing: tuple[AgainstRecomputing, ...]
    """Labels whose KV moves against computing it again."""
    pools: tuple[InstancePool, ...]
    """KV in use and sources of prompt tokens, by label and role."""
    load_floor: LoadFloor | None
    """None where no kv_aware cell has any fix of specs/load_floor.md."""
    paper: SpecifiedTables
    """The specification's tables."""
    gaps: tuple[Gap, ...]
    """What of the run's artifacts is missing or damaged, and what was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPairs:
    """`pairs.json`: every metric of every two policies under one load, and every latency of them turn by turn."""

    format: int
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""
    pairs: tuple[Pair, ...]
    """By metric."""
    turn_by_turn: tuple[TurnPair, ...]
    """By latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStanding(Standing):
    """The best label on one metric, and whether it is best alone."""

    alone: bool = field()  # without a value of its own it would have the base's property for a default
    """Whether every other policy is distinguishably worse."""


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """The number that decides a claim, and its p-values."""

    value: float | None
    """None = not known, or several numbers decide."""
    low: float | None
    """Lower bound of the interval; None = no interval."""
    high: float | None
    """Upper bound of the interval; None = no interval."""
    p: float | None
    """Two-sided; None where there is no interval."""
    p_corrected: float | None
    """After Holm's correction."""


@dataclass(frozen=True, slots=True)
class VariedClaim:
    """One claim or decision point over the coefficients of the engine model."""

    name: str
    """Name of the claim."""
    verdict: str
    """`reproduced`, `contradicted`, `undecided` or `not testable`, and what it is conditional on."""
    opposite_at: tuple[str, ...]
    """Variations under which the opposite holds."""
    outcomes: Mapping[str, Outcome]
    """By variation."""
    quantity: str
    """What was measured; empty where the rule says it."""
    measured: ClaimBounds
    """At the model's own values."""
    varied: Mapping[str, ClaimBounds]
    """By variation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingVerdicts:
    """`verdicts.json`: who wins what, the specifications' claims and decision points, the loop of every policy, what
    decode pools would hold."""

    format: int
    standings: tuple[JudgedStanding, ...]
    """By metric and load."""
    claims: tuple[Judgement, ...]
    """Claims of the specifications."""
    launch_noise: TrialNoise | None
    """How far two launches of one policy differ; None = not known."""
    conditional_claims: tuple[VariedClaim, ...] | UnsetType = UNSET
    """Absent where no coefficient of an engine model was varied."""
    load_floor: tuple[Judgement, ...]
    """The decision points of specs/load_floor.md."""
    coupling: tuple[Coupling, ...]
    """The loop of every policy."""
    footprints: Footprints
    """What a run's requests hold."""
    deployments: tuple[Deployment, ...]
    """Instances that decode, and how many requests decode at once there."""
    decode_pools: tuple[Occupancy, ...]
    """Each deployment at the named percentiles of the footprints."""
    engine_gates: ShownGates | UnsetType = UNSET
    """What the engine model has shown against real runs. Absent = engines were real."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


@dataclass(frozen=True, slots=True)
class RoutedCellRow:
    """A row of `aggregate.csv`: one cell."""

    cell: str
    label: str
    policy: str
    """Its name."""
    trial: int
    position: int
    """Position in time among the run's cells, 0-based."""
    duration_s: float
    """Duration of the replay."""
    degraded: bool
    """It takes no part in comparisons."""
    counts: Mapping[str, int | None]
    """Turns: turns, completed, failed, dropped, cut; sessions, sessions_done; picks, retried, migrations."""
    values: Mapping[str, float | int | None]
    """Every value by its name; latencies have `_low`, `_high` and `_n` columns beside them."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """A row of `migrations.csv`: one migration that was asked for. Tokens are prompt tokens."""

    label: str
    trial: int
    request: str
    """As in the decision log."""
    session: str
    """Session of the trace."""
    turn: int | None
    """Turn of the session; None = not known."""
    t_s: float
    """When it was picked, from the first pick."""
    source: str
    """The instance that holds the session's KV."""
    target: str
    """The instance that was picked."""
    outcome: str
    """What came of it, e.g. `transferred`."""
    moved_s: float | None
    """When the session was served at the target; None = it was not."""
    source_pending_tokens: int | None
    """At the pick; None = the instance was not in the view."""
    target_pending_tokens: int | None
    """The same of the target."""
    context_tokens: int | None
    """Prompt tokens of the request."""
    lost_tokens: int | None
    """What the source held and the target had to compute; None = it was not served."""
    first_byte_s: float | None
    """From the pick to the first byte."""
    turns_left: int
    """Turns of the session after this one."""
    stayed_cool: bool | None
    """The target was hot at none of the turns that followed; None = too few were seen."""
    next_cool: bool | None
    """The same of the next turn alone."""
    transfer_s: float | None
    """From the router's start of the transfer until the KV had arrived."""
    kv: Mapping[str, Any]
    """The fields of its `KvTransfer`, each as `kv_<field>`; empty where nothing was transferred."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


@dataclass(frozen=True, slots=True)
class PairRow(MetricDifference):
    """A row of `pairs.csv`: one metric of two policies."""

    second_value: float | None
    """The metric of second."""
    relative: float | None
    """difference / second's value."""
    ratio: float | None
    """first / second of a time or of a ratio of times: the geometric mean over the trials; None for shares."""
    ratio_low: float | None
    """Lower bound of its interval."""
    ratio_high: float | None
    """The other end of it."""
    trials_higher: int
    """Trials in which first is the higher one."""
    trials_lower: int
    """Trials in which first is the lower one."""
    verdict: str | None
    """What the interval says of first: `higher`, `lower`, `not distinguishable`. None without an interval over
    trials."""
    p_value: float | None
    """p of no effect; None where there is no verdict."""
    common_turns: int | None
    """Turns behind the difference, over all trials; None for a number of whole cells."""
    lost_turns: int | None
    """Turns that only one of the two completed: they are in neither side."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


@dataclass(frozen=True, slots=True)
class PolicyManifestRow:
    """A row of `MANIFEST.tsv`: one policy of the plan or of a result folder; an empty field is not known."""

    label: str
    policy: str
    """Its name."""
    parameters: str
    """Parameters of the policy, as JSON."""
    status: str
    """`ran` or `not run`."""
    trials_done: str
    """Cells that were finished."""
    trials_planned: str
    """As the plan states."""
    trials_degraded: str
    """Cells whose client fell behind."""
    result_directories: str
    """Below the run's folder, with semicolons between them, as the next four."""
    git_commit: str
    """Commit of the Tracon that measured it."""
    trace: str
    """File of the trace."""
    trace_sha256: str
    """Checksums of the traces that it replayed."""
    engine_versions: str
    """Package and version."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


DOCUMENTS: tuple[Declared, ...] = (
    Declared(RoutingAggregate, ("aggregate.json",)),
    Declared(RoutedCellRow, ("aggregate.csv", "aggregate.parquet")),
    Declared(RoutingPairs, ("pairs.json",)),
    Declared(PairRow, ("pairs.csv",)),
    Declared(MigrationRow, ("migrations.csv",)),
    Declared(RoutingVerdicts, ("verdicts.json",)),
    Declared(StoredClaims, ("results/variations/<name>.json",)),
    Declared(PolicyManifestRow, ("MANIFEST.tsv",)),
)

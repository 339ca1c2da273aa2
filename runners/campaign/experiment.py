"""What an experiment is to the campaign: options in, a draft of the plan out, then cells run one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the command line takes its defaults from RunOptions: its help must not load the campaign
    from launch.profile import ConnectorConfig, Profile
    from results.records.plan import CellPlan, RunPlan, StagePlan
    from runners.campaign.context import RunContext
    from runners.campaign.plan import Sum
    from state.model import RunView
    from state.workspace import Workspace


NOT_NEEDED = "not needed: "
"""Begins the reason of a skipped cell without which the run is complete."""
NOT_POSSIBLE = "not possible on this host: "
"""Begins the reason of a cell that no engine setting of the plan can make room for; the other configs are measured."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run as the command line asks for it."""

    experiment: str
    profile: str = "cpu-tiny"
    """Name, or path of a TOML file."""
    preset: str = "full"
    configs: tuple[str, ...] = ()
    """Names or paths; empty = those of the preset."""
    seed: int | None = None
    """None = the preset's."""
    engine_python: Path | None = None
    trials: int | None = None
    """None = the preset's."""
    port: int | None = None
    """First port of the engines; None = the profile's."""
    policies: tuple[str, ...] = ()
    """Routing policies, by name, label or file; empty = those of the preset."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE` over the preset's own."""
    trace: str = ""
    """A trace file; empty = the preset's."""
    simulated: bool = False
    """Engines are a model."""
    engine: str = ""
    """Name or path of the engine model; empty = the preset's."""
    on: str = ""
    """Where simulations run; empty = on this host."""
    instances: int | None = None
    """None = the preset's."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A run before its engine environment is found."""

    grid: Any
    """The checked preset, as the experiment's cell runner takes it."""
    profile: Profile
    """As the experiment runs it: a preset may change its engine settings."""
    seed: int
    configs: tuple[ConnectorConfig, ...]
    """In the order they run."""
    stages: Sequence[StagePlan]
    """In the order they run; one without a cell is left out."""
    cells: Sequence[CellPlan]
    """In the order they run."""
    ports: int
    """Consecutive ports that its engines use at once, from the profile's first one."""
    inputs: Mapping[str, Any]
    """What shapes its numbers, besides profile and engine; JSON values only."""
    sums: tuple[Sum, ...]
    """The arithmetic of its time estimate."""
    gpus: int = 1
    """GPUs that its engines use at once, where each is on one of them (`tensor_parallel_size` = 1)."""
    engines_per_gpu: int = 1
    """At once, where they share GPUs."""
    needs_engine: bool = True
    """False = its engines are simulated: no environment is found, checked or started."""
    has_pace: bool = False
    """Its cells can be simulated at a multiple of real time, which shapes no number."""
    notes: tuple[str, ...] = ()
    """What distinguishes single cells beyond their labels; shown with the plan."""


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    """As in `tracon run NAME`, [experiment.NAME.<preset>] of a profile, and the run's plan."""
    draft_plan: Callable[[RunOptions, Profile], DraftPlan]
    """Raises RunnerError or LaunchError naming the wrong option, key or config."""
    cell_runner: Callable[[Any, RunContext], CellRunner]
    """Runs the cells of a draft's grid."""
    option_help: Mapping[str, str]
    """By field of RunOptions: what it means to this experiment, for `--help`. Options it refuses have no entry."""
    describe_precision: Callable[[RunPlan, Workspace], tuple[str, ...]] = lambda plan, workspace: ()
    """Sentences for a plan: what its launches can detect, by the newest finished run in the workspace."""


@dataclass(frozen=True, slots=True)
class CellOutcome:
    summary: Mapping[str, Any] = field(default_factory=dict)
    degraded: str = ""
    """Why its numbers are worse than planned; empty = they are not."""


class RunsAhead(Protocol):
    """Cells that do not disturb each other, so that some run ahead of their turn."""

    def take_ended(self, cell: CellPlan) -> Awaitable[CellOutcome] | None:
        """The end of a cell that ran ahead, handed over once; None = there is none yet, or its turn must read it again.

        Awaiting it returns or raises at once what `run_cell` would.
        """

    def end_skipped(self, cell: CellPlan) -> None:
        """End a cell that was skipped while it ran ahead, or do not begin it. May be called repeatedly."""


class CellRunner(Protocol):
    """Runs the cells of one run of an experiment."""

    @property
    def ahead(self) -> RunsAhead | None:
        """Its cells that may run ahead of their turn; None = each waits for its turn."""

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        """Why the cell is not to run now; empty = run it."""

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """Measure it. Raises CellSkipped or CellFailed with the reason."""

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        """The outcome of an attempt that was cut or failed, and whose artifacts are complete; None = measure again.

        Called in a thread, perhaps while other cells run. Raises OSError where a file exists and cannot be read.
        """

    async def finish(self) -> None:
        """Bring the derived files up to date; called when cells changed after the analysis cell was done."""

    async def release(self, reason: str) -> None:
        """Stop every engine; called at the end of a stage, at a pause, and at the end of the run."""

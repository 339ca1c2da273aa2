"""Every record that a run writes, and the file that holds it.

`python -m results.records.declared > docs/records.md` writes the page from this list.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from results.records.decisions import (
    Candidate,
    ClusterView,
    Decision,
    DecisionRecord,
    Gate,
    InstanceLoad,
    KvTransfer,
    RoutedOutcome,
    RoutedRequest,
)
from results.records.declaration import Field, fields_of
from results.records.host import HostSample
from results.records.launches import LaunchConfig, LaunchRecord
from results.records.lifecycle import (
    Clock,
    Colo,
    Counts,
    Ids,
    LifecycleRecord,
    MoreStamps,
    RequestConfig,
    Stamps,
    TransferDetail,
    Verification,
)
from results.records.manifest import ManifestRow
from results.records.migrations import MigrationStep
from results.records.plan import CellPlan, RunPlan, StagePlan
from results.records.samples import CounterSpan, GpuSample, InterferenceRecord, PromptCounters
from results.records.schemas import CellRecord, MetricsRecord, RequestRecord, StepRecord
from results.records.transfer_log import ProbeEvent, ProbeStatus
from results.records.turns import EngineSample, RoutedEngine, RoutingCell, TurnRecord


@dataclass(frozen=True, slots=True)
class Declared:
    """One record."""

    record: type
    where: str
    """The file whose rows it is, below the run's folder, or the record that holds it."""


DECLARED: tuple[Declared, ...] = (
    Declared(RunPlan, "plan.json"),
    Declared(StagePlan, "in RunPlan"),
    Declared(CellPlan, "in RunPlan"),
    Declared(LaunchConfig, "results/<date>_<config>/config.json"),
    Declared(LaunchRecord, "results/<date>_<config>/launches.jsonl"),
    Declared(ManifestRow, "MANIFEST.tsv"),
    Declared(HostSample, "host.csv"),
    Declared(GpuSample, "gpu_util.csv of a cell"),
    Declared(RequestRecord, "results/<date>_<config>/requests_<phase>_<cell>.jsonl"),
    Declared(
        MetricsRecord,
        "results/<date>_<config>/metrics_<phase>_<cell>.jsonl, "
        "results/<date>_<policy>/trial_<n>/engines/<instance>/metrics.jsonl, engine.jsonl of a replay",
    ),
    Declared(StepRecord, "results/<date>_<config>/engine_step_<phase>_<cell>.jsonl"),
    Declared(CellRecord, "results/<date>_<config>/cell_<phase>_<cell>.json"),
    Declared(TurnRecord, "results/<date>_<policy>/trial_<n>/metrics.jsonl"),
    Declared(EngineSample, "results/<date>_<policy>/trial_<n>/engines.jsonl"),
    Declared(RoutingCell, "results/<date>_<policy>/trial_<n>/cell.json"),
    Declared(RoutedEngine, "in RoutingCell"),
    Declared(CounterSpan, "results/<date>_<policy>/trial_<n>/apc.json, by instance"),
    Declared(PromptCounters, "in CounterSpan"),
    Declared(InterferenceRecord, "results/interference.jsonl"),
    Declared(DecisionRecord, "results/<date>_<policy>/trial_<n>/decisions.jsonl"),
    Declared(RoutedRequest, "in DecisionRecord"),
    Declared(ClusterView, "in DecisionRecord"),
    Declared(InstanceLoad, "in ClusterView"),
    Declared(Decision, "in DecisionRecord"),
    Declared(Candidate, "in Decision"),
    Declared(Gate, "in Decision"),
    Declared(RoutedOutcome, "in DecisionRecord"),
    Declared(KvTransfer, "in RoutedOutcome"),
    Declared(MigrationStep, "events of kind migration_changed in state.sqlite"),
    Declared(ProbeEvent, "engines/<instance>/rings/<launch>/transfer.<pid>.jsonl"),
    Declared(ProbeStatus, "the same file"),
    Declared(LifecycleRecord, "results/lifecycle/C<c>_N<n>_O<o>_rep<r>.json"),
    Declared(RequestConfig, "in LifecycleRecord"),
    Declared(Stamps, "in LifecycleRecord"),
    Declared(MoreStamps, "in LifecycleRecord"),
    Declared(TransferDetail, "in LifecycleRecord"),
    Declared(Counts, "in LifecycleRecord"),
    Declared(Verification, "in LifecycleRecord"),
    Declared(Clock, "in LifecycleRecord"),
    Declared(Colo, "in LifecycleRecord"),
    Declared(Ids, "in LifecycleRecord"),
)


def records_page() -> str:
    """Every record with its fields, types, units and sentences, as Markdown."""
    parts = [
        "# Records\n\nEvery record of a run and the file that holds it. This page is made from the declarations in "
        "`results/records/`\n(`python -m results.records.declared > docs/records.md`). Times ending in `_ns` are "
        "`time.perf_counter_ns()`: one clock for\nevery process of a host and boot. A value that was not measured is "
        "null, never 0.\n"
    ]
    for one in DECLARED:
        rows = "".join(_row(field) for field in fields_of(one.record))
        head = f"\n## {one.record.__name__}\n\n`{one.where}`\n\n| field | type | unit | |\n|---|---|---|---|\n"
        parts.append(head + rows)
    return "".join(parts)


def _row(field: Field) -> str:
    kind = getattr(field.kind, "__name__", str(field.kind)) if not hasattr(field.kind, "__args__") else str(field.kind)
    kind = kind.replace("collections.abc.", "").replace("typing.", "").replace("results.records.", "")
    unit = "" if field.unit == "1" else field.unit
    null = " or null" if field.nullable else ""
    sentence = field.sentence.replace("|", "\\|")
    return f"| `{field.name}` | {kind}{null} | {unit} | {sentence} |\n"


if __name__ == "__main__":
    sys.stdout.write(records_page())

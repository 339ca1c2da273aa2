"""Every record that a run writes while it measures, and the file that holds it.

Those that its analysis writes are declared beside the analysis; `results.documents` lists both.
"""

from __future__ import annotations

from results.records import decisions, events, lifecycle, lifecycle_cells
from results.records.declaration import Declared, OtherFile
from results.records.engine_gates import EngineGates
from results.records.environment import CapturedEnvironment
from results.records.estimate import Estimate
from results.records.gpu import GpuSample
from results.records.host import HostSample
from results.records.instance_events import InstanceEvent
from results.records.launches import LaunchConfig, LaunchRecord
from results.records.link import LinkRecord
from results.records.load_specs import LoadSpec, ReplaySpec
from results.records.manifest import ManifestRow
from results.records.plan import AcceptedChanges, RunPlan
from results.records.points import PointRecord
from results.records.preflight import PreflightRecord
from results.records.reference_rates import ReferenceRates
from results.records.router_spec import RouterSpec
from results.records.routing_cells import RoutingBreakdown, RoutingConfig, RoutingNumbers
from results.records.samples import CounterSpan, InterferenceRecord
from results.records.schemas import CellRecord, EngineFault, MetricsRecord, RequestRecord, StepRecord
from results.records.simulation_spec import SimulationSpec
from results.records.skipped_cells import SkippedCell
from results.records.trace_lines import TraceHeader, TraceLine
from results.records.transfer_log import ProbeEvent, ProbeStatus
from results.records.turns import EngineSample, RoutingCell, TraceRecord, TurnRecord

CONFIG = "results/<date>_<config>/"
TRIAL = "results/<date>_<policy>/trial_<n>/"
TRACE_FOLDERS = ("trace/", "trace/<name>/", "trace/<n>/", "trace/<name>/<n>/")
"""Folders of traces: the run's own, those that a preset names, and in a simulated run one for each trial."""
ATTEMPT = "attempts/<cell>/<n>/"
LIFECYCLE = "results/lifecycle/"
LIFECYCLE_CELL = "results/lifecycle/cells/<configuration>/"
"""In trials after the first, `<configuration>` ends in `_t<trial>`."""
ENGINE_FOLDERS = (
    CONFIG,
    f"{TRIAL}engines/<instance>/",
    "results/lifecycle/engines/<start>/<instance>/",
    "preflight/counterpart_<config>/",
)
"""Folders of one engine."""
RINGS = tuple(f"{folder}rings/<launch>/" for folder in ENGINE_FOLDERS)
PROBE_FILES = (
    *(f"{folder}transfer.<pid>.jsonl" for folder in RINGS),
    f"{LIFECYCLE_CELL}probe/<side>/transfer.<pid>.jsonl",
)
DECISIONS = (
    f"{TRIAL}decisions.jsonl",
    f"{LIFECYCLE_CELL}decisions.jsonl",
    f"{LIFECYCLE}engines/<start>/decisions.jsonl",
)


def _list_in_folders(folders: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(f"{folder}{name}" for folder in folders)


def _declare_event(kind: type[events.Event]) -> Declared:
    return Declared(kind, (f"events of kind {kind.kind} in state.sqlite",))


DECLARED: tuple[Declared, ...] = (
    Declared(RunPlan, ("plan.json", "in RunPlanned")),
    Declared(AcceptedChanges, ("accepted_changes.jsonl",)),
    *(_declare_event(kind) for kind in events.EVENTS),
    Declared(LaunchConfig, _list_in_folders(ENGINE_FOLDERS, "config.json")),
    Declared(LaunchRecord, _list_in_folders(ENGINE_FOLDERS, "launches.jsonl")),
    Declared(CapturedEnvironment, _list_in_folders(ENGINE_FOLDERS, "env.txt")),
    Declared(PreflightRecord, ("preflight/preflight_status.json",), by_name=True),
    Declared(ManifestRow, ("MANIFEST.tsv",), experiment="connector-tax"),
    Declared(EngineFault, ("engine_faults.jsonl",)),
    Declared(SkippedCell, ("skipped_cells.jsonl",)),
    Declared(HostSample, ("host.csv",)),
    Declared(
        GpuSample,
        ("gpu.csv", f"{CONFIG}gpu_util_<phase>_<cell>.csv", f"{TRIAL}gpu_util.csv", f"{LIFECYCLE_CELL}gpu_util.csv"),
    ),
    Declared(RequestRecord, (f"{CONFIG}requests_<phase>_<cell>.jsonl",)),
    Declared(MetricsRecord, (f"{CONFIG}metrics_<phase>_<cell>.jsonl", f"{TRIAL}engines/<instance>/metrics.jsonl")),
    Declared(StepRecord, (f"{CONFIG}engine_step_<phase>_<cell>.jsonl",)),
    Declared(CellRecord, (f"{CONFIG}cell_<phase>_<cell>.json",)),
    Declared(ReferenceRates, ("reference_rates.json",)),
    Declared(TraceRecord, (*_list_in_folders(TRACE_FOLDERS, "trace.json"), "in RoutingConfig")),
    Declared(TraceHeader, _list_in_folders(TRACE_FOLDERS, "trace.jsonl")),
    Declared(TraceLine, _list_in_folders(TRACE_FOLDERS, "trace.jsonl")),
    Declared(LoadSpec, (f"{ATTEMPT}requests.spec.json",)),
    Declared(ReplaySpec, (f"{ATTEMPT}metrics.spec.json",)),
    Declared(RouterSpec, (f"{ATTEMPT}router.spec.json", f"{LIFECYCLE}engines/<start>/router.spec.json")),
    Declared(SimulationSpec, (f"{ATTEMPT}simulation.spec.json",)),
    Declared(TurnRecord, (f"{TRIAL}metrics.jsonl",)),
    Declared(EngineSample, (f"{TRIAL}engines.jsonl",)),
    Declared(RoutingCell, (f"{TRIAL}cell.json",)),
    Declared(RoutingConfig, (f"{TRIAL}config.json",)),
    Declared(RoutingNumbers, (f"{TRIAL}metrics.summary.json",)),
    Declared(RoutingBreakdown, (f"{TRIAL}breakdown.json",)),
    Declared(CounterSpan, (f"{TRIAL}apc.json",), by_name=True),
    Declared(PointRecord, ("results/points/<policy>/<size>_<trace>.json",)),
    Declared(EngineGates, ("results/engine_gates.json",)),
    Declared(Estimate, ("in EngineGate", "in RoutingNumbers", "in InstanceNumbers", "in documents of the analysis")),
    Declared(InterferenceRecord, ("results/interference.jsonl", "results/interference/n<tokens>.jsonl")),
    Declared(decisions.DecisionRecord, DECISIONS),
    Declared(InstanceEvent, (f"{TRIAL}instance_events.jsonl",)),
    Declared(ProbeEvent, PROBE_FILES),
    Declared(ProbeStatus, PROBE_FILES),
    Declared(
        lifecycle.LifecycleRecord,
        (
            f"{LIFECYCLE}C<c>_N<n>_O<o>_rep<r>.json",
            f"{LIFECYCLE}C<c>_N<n>_O<o>_t<trial>_rep<r>.json",
            f"{LIFECYCLE_CELL}discarded/rep<r>_<n>.json",
        ),
    ),
    Declared(lifecycle_cells.MeasuredCell, (f"{LIFECYCLE_CELL}cell.json",)),
    Declared(lifecycle_cells.CellFailure, (f"{LIFECYCLE_CELL}failed.json",)),
    Declared(lifecycle_cells.LifecycleRequest, (f"{LIFECYCLE_CELL}requests.jsonl",)),
    Declared(LinkRecord, (f"{LIFECYCLE}link.json",)),
)

_ANALYZED = "Written by the analysis; `tracon report --again` writes it again."
OTHER_FILES: tuple[OtherFile, ...] = (
    OtherFile("state.sqlite", "The journal and the current rows (state/schema.py)."),
    OtherFile("run.log", "What the run process logged."),
    OtherFile("attempts/<cell>/<n>/<file>", "What an attempt wrote and its finished cell did not take over."),
    OtherFile("preflight/verify_<config>.log", "Each step of a pre-flight with its time."),
    *(
        OtherFile(f"{folder}{name}", sentence)
        for folder in ENGINE_FOLDERS
        for name, sentence in (
            ("launch.sh", "The launch command, to be run again without Tracon."),
            ("vllm_stdout.log", "The engine's output."),
            ("vllm_stderr.log", "The engine's errors."),
            ("fork_server.log", "Output of the process that the engines were forked from."),
            ("rings/<launch>/engine_step.<role>.<pid>.ring", "The step probe's ring (results/records/rings.py)."),
        )
    ),
    *(
        OtherFile(name, _ANALYZED)
        for name in ("report.md", "report.html", "figures/figure_<n>.<kind>")
    ),
    *(
        OtherFile(name, "A copy of the JSONL beside it, made where it is missing or differs.")
        for name in (
            f"{CONFIG}requests_<phase>_<cell>.parquet", f"{CONFIG}engine_step_<phase>_<cell>.parquet",
            f"{TRIAL}metrics.parquet",
        )
    ),
)  # fmt: skip

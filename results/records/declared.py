"""Every record that a run writes, and the file that holds it.

`python -m results.records.declared > docs/records.md` writes the page from this list,
`python -m results.records.declared --json-schema > docs/records.schema.json` the JSON Schemas.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from results.records import decisions, events, lifecycle, lifecycle_cells
from results.records.declaration import Field, fields_of
from results.records.engine_gates import EngineGate, EngineGates
from results.records.environment import CapturedEnvironment
from results.records.estimate import Estimate
from results.records.gpu import GpuSample, GpuUse
from results.records.host import HostSample
from results.records.instance_events import InstanceEvent
from results.records.launches import LaunchConfig, LaunchRecord
from results.records.link import LinkRecord
from results.records.live import LiveLatency
from results.records.manifest import ManifestRow
from results.records.migrations import MigrationStep
from results.records.plan import AcceptedChanges, CellPlan, RunPlan, StagePlan
from results.records.points import PointRecord
from results.records.preflight import PreflightCheck, PreflightRecord
from results.records.reference_rates import CellSaturation, ConfigSaturation, Criterion, ReferenceRates, Thresholds
from results.records.routing_cells import (
    InstanceNumbers,
    KvMovements,
    PickCounts,
    RoutingBreakdown,
    RoutingConfig,
    RoutingNumbers,
)
from results.records.samples import CounterSpan, InterferenceRecord, PromptCounters
from results.records.schemas import CellRecord, EngineFault, MetricsRecord, RequestRecord, StepRecord
from results.records.skipped_cells import SkippedCell
from results.records.transfer_log import ProbeEvent, ProbeStatus
from results.records.turns import EngineSample, RoutedEngine, RoutingCell, TraceRecord, TurnRecord


@dataclass(frozen=True, slots=True)
class Declared:
    """One record."""

    record: type
    where: tuple[str, ...]
    """The files whose rows it is, below the run's folder; or the record that holds it, or where in a file it is."""
    by_name: bool = False
    """A file of it is one JSON object: the name of a config or an instance to its record."""


@dataclass(frozen=True, slots=True)
class OtherFile:
    """Files that are no records of ours: logs, documents of the analysis, copies."""

    where: str
    """Below the run's folder."""
    sentence: str


CONFIG = "results/<date>_<config>/"
TRIAL = "results/<date>_<policy>/trial_<n>/"
TRACE_FOLDERS = ("trace/", "trace/<name>/", "trace/<n>/", "trace/<name>/<n>/")
"""Folders of traces: the run's own, those that a preset names, and in a simulated run one for each trial."""
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


def _in_each(folders: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(f"{folder}{name}" for folder in folders)


def _declare_inside(holder: type, *records: type) -> tuple[Declared, ...]:
    return tuple(Declared(record, (f"in {holder.__name__}",)) for record in records)


def _declare_event(kind: type[events.Event]) -> Declared:
    return Declared(kind, (f"events of kind {kind.kind} in state.sqlite",))


DECLARED: tuple[Declared, ...] = (
    Declared(RunPlan, ("plan.json", "in RunPlanned")),
    *_declare_inside(RunPlan, StagePlan, CellPlan),
    Declared(AcceptedChanges, ("accepted_changes.jsonl",)),
    *(_declare_event(kind) for kind in events.EVENTS),
    *_declare_inside(events.InstanceChanged, events.EngineDeath),
    *_declare_inside(events.RouterSampled, events.RoutedLoad, events.RoutedLine, LiveLatency),
    Declared(LaunchConfig, _in_each(ENGINE_FOLDERS, "config.json")),
    Declared(LaunchRecord, _in_each(ENGINE_FOLDERS, "launches.jsonl")),
    Declared(CapturedEnvironment, _in_each(ENGINE_FOLDERS, "env.txt")),
    Declared(PreflightRecord, ("preflight/preflight_status.json",), by_name=True),
    *_declare_inside(PreflightRecord, PreflightCheck),
    Declared(ManifestRow, ("MANIFEST.tsv",)),
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
    *_declare_inside(ReferenceRates, Thresholds, ConfigSaturation, CellSaturation),
    *_declare_inside(CellSaturation, Criterion),
    Declared(TraceRecord, (*_in_each(TRACE_FOLDERS, "trace.json"), "in RoutingConfig")),
    Declared(TurnRecord, (f"{TRIAL}metrics.jsonl",)),
    Declared(EngineSample, (f"{TRIAL}engines.jsonl",)),
    Declared(RoutingCell, (f"{TRIAL}cell.json",)),
    *_declare_inside(RoutingCell, RoutedEngine),
    Declared(RoutingConfig, (f"{TRIAL}config.json",)),
    Declared(RoutingNumbers, (f"{TRIAL}metrics.summary.json",)),
    *_declare_inside(RoutingNumbers, KvMovements),
    Declared(RoutingBreakdown, (f"{TRIAL}breakdown.json",)),
    *_declare_inside(RoutingBreakdown, InstanceNumbers, PickCounts),
    Declared(CounterSpan, (f"{TRIAL}apc.json",), by_name=True),
    *_declare_inside(CounterSpan, PromptCounters),
    Declared(PointRecord, ("results/points/<policy>/<size>_<trace>.json",)),
    Declared(EngineGates, ("results/engine_gates.json",)),
    *_declare_inside(EngineGates, EngineGate),
    Declared(Estimate, ("in EngineGate", "in RoutingNumbers", "in InstanceNumbers")),
    Declared(InterferenceRecord, ("results/interference.jsonl", "results/interference/n<tokens>.jsonl")),
    Declared(decisions.DecisionRecord, DECISIONS),
    *_declare_inside(
        decisions.DecisionRecord,
        decisions.RoutedRequest,
        decisions.ClusterView,
        decisions.Decision,
        decisions.RoutedOutcome,
    ),
    *_declare_inside(decisions.ClusterView, decisions.InstanceLoad),
    *_declare_inside(decisions.Decision, decisions.Candidate, decisions.Gate),
    *_declare_inside(decisions.RoutedOutcome, decisions.KvTransfer),
    Declared(InstanceEvent, (f"{TRIAL}instance_events.jsonl",)),
    *_declare_inside(events.MigrationChanged, MigrationStep),
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
    *_declare_inside(
        lifecycle.LifecycleRecord,
        lifecycle.RequestConfig,
        lifecycle.Stamps,
        lifecycle.MoreStamps,
        lifecycle.TransferDetail,
        lifecycle.Counts,
        lifecycle.Verification,
        lifecycle.Clock,
        lifecycle.Colo,
        lifecycle.Ids,
    ),
    Declared(lifecycle_cells.MeasuredCell, (f"{LIFECYCLE_CELL}cell.json",)),
    *_declare_inside(
        lifecycle_cells.MeasuredCell,
        lifecycle_cells.DiscardedMeasurement,
        lifecycle_cells.Seeding,
        lifecycle_cells.Aged,
        lifecycle_cells.WarmUp,
        lifecycle.LoadSpan,
        lifecycle_cells.LifecycleEngine,
        GpuUse,
    ),
    *_declare_inside(lifecycle_cells.Seeding, lifecycle_cells.HeldTokens),
    *_declare_inside(lifecycle.LoadSpan, lifecycle.EngineLoad),
    Declared(lifecycle_cells.CellFailure, (f"{LIFECYCLE_CELL}failed.json",)),
    Declared(lifecycle_cells.LifecycleRequest, (f"{LIFECYCLE_CELL}requests.jsonl",)),
    Declared(LinkRecord, (f"{LIFECYCLE}link.json",)),
)

_ANALYZED = "Written by the analysis; `tracon report --again` writes it again."
OTHER_FILES: tuple[OtherFile, ...] = (
    OtherFile("state.sqlite", "The journal and the current rows (state/schema.py)."),
    OtherFile("run.log", "What the run process logged."),
    OtherFile("attempts/<cell>/<n>/<file>", "What an attempt wrote while it ran; kept of a cell that never finished."),
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
        OtherFile(name, "A trace that cells of `routing` replay (docs/traces.md).")
        for name in _in_each(TRACE_FOLDERS, "trace.jsonl")
    ),
    *(
        OtherFile(f"{folder}router.spec.json", "The router's options: `RouterSpec` (runners/router/spec.py).")
        for folder in (TRIAL, f"{LIFECYCLE}engines/<start>/")
    ),
    OtherFile(f"{TRIAL}metrics.spec.json", "The replay's options: `ReplaySpec` (runners/load/replay_spec.py)."),
    OtherFile(
        "results/variations/<name>.json",
        "The claims under one variation of a simulated run; the analysis judges them again where a cell has changed.",
    ),
    *(
        OtherFile(name, _ANALYZED)
        for name in (
            "aggregate.json", "aggregate.csv", "aggregate.parquet", "verdicts.json", "report.md", "report.html",
            "tax.json", "tax.csv", "pairs.json", "pairs.csv", "migrations.csv", "figures/figure_<n>.<kind>",
            "results/page.json", f"{LIFECYCLE}summary.csv", f"{CONFIG}summary.json",
        )
    ),
    *(
        OtherFile(name, "A copy of the JSONL beside it, made where it is missing or differs.")
        for name in (
            f"{CONFIG}requests_<phase>_<cell>.parquet", f"{CONFIG}engine_step_<phase>_<cell>.parquet",
            f"{TRIAL}metrics.parquet",
        )
    ),
)  # fmt: skip


def records_page() -> str:
    """Every record with its fields, types, units and sentences, as Markdown."""
    parts = [
        "# Records\n\nEvery record of a run and the file that holds it. This page is made from the declarations in "
        "`results/records/`\n(`python -m results.records.declared > docs/records.md`). Times ending in `_ns` are "
        "`time.perf_counter_ns()`: one clock for\nevery process of a host and boot. A value that was not measured is "
        "null, never 0. The records as JSON Schemas are in\n[records.schema.json](records.schema.json) "
        "(`python -m results.records.declared --json-schema > docs/records.schema.json`).\n"
    ]
    for one in DECLARED:
        rows = "".join(_make_row(field) for field in fields_of(one.record))
        where = ", ".join(f"`{each}`" for each in one.where)
        head = f"\n## {one.record.__name__}\n\n{where}\n\n| field | type | unit | |\n|---|---|---|---|\n"
        parts.append(head + rows)
    rows = "".join(f"| `{one.where}` | {one.sentence} |\n" for one in OTHER_FILES)
    parts.append(f"\n## Other files\n\nLogs, documents and copies of a run.\n\n| file | |\n|---|---|\n{rows}")
    return "".join(parts)


def _make_row(field: Field) -> str:
    kind = getattr(field.kind, "__name__", str(field.kind)) if not hasattr(field.kind, "__args__") else str(field.kind)
    kind = kind.replace("collections.abc.", "").replace("typing.", "").replace("results.records.", "")
    kind = kind.replace(" | None", " or null").replace(" | ", " or ")  # a pipe would end the cell of the table
    unit = "" if field.unit == "1" else field.unit
    null = " or null" if field.nullable else ""
    sentence = field.sentence.replace("|", "\\|")
    return f"| `{field.name}` | {kind}{null} | {unit} | {sentence} |\n"


_ABOUT_SCHEMAS = (
    "Made from the declarations in results/records/ by `python -m results.records.declared --json-schema`. `files` has "
    "the schema of a JSON file, or of each line of a JSONL file, by its path below the run's folder; `<name>` stands "
    "for any text without a slash. `$defs` has every record in its present version, with its files in `$comment`; one "
    "that is no JSON, as a row of a CSV, is described as it is read: an empty cell is null. Readers ignore keys that "
    "they do not know. The document itself accepts any value: validate against an entry of `files` or `$defs`."
)


def json_schemas() -> dict[str, Any]:
    """Every record as a JSON Schema, and the schema of each JSON file: one document of draft 2020-12."""
    _, schemas = msgspec.json.schema_components([one.record for one in DECLARED])
    for schema in schemas.values():
        if "description" in schema:  # a docstring, whose indentation Python keeps before 3.13
            schema["description"] = " ".join(schema["description"].split())
    for one in DECLARED:
        schema = schemas[one.record.__name__]
        schema["$comment"] = ", ".join(one.where)
        properties = schema["properties"]
        for field in fields_of(one.record):
            unit = "" if field.unit in ("", "1") else f" Unit: {field.unit}."
            properties[field.name]["description"] = f"{field.sentence}{unit}"
        for name in ("version", "format"):  # a row without one may be of the first version
            properties.get(name, {}).pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Records of a Tracon run",
        "description": _ABOUT_SCHEMAS,
        "files": _schemas_of_files(),
        "$defs": dict(sorted(schemas.items())),
    }


def _schemas_of_files() -> dict[str, Any]:
    """By the file's name in `Declared.where`: the schema of the document, in JSONL of each row."""
    files: dict[str, list[dict[str, Any]]] = {}
    for one in DECLARED:
        schema: dict[str, Any] = {"$ref": f"#/$defs/{one.record.__name__}"}
        if one.by_name:
            schema = {"type": "object", "additionalProperties": schema}
        for name in one.where:
            if name.endswith((".json", ".jsonl")):
                files.setdefault(name, []).append(schema)
    return {name: options[0] if len(options) == 1 else {"anyOf": options} for name, options in files.items()}


def json_schemas_text() -> str:
    """The document of `json_schemas` as docs/records.schema.json holds it."""
    return msgspec.json.format(msgspec.json.encode(json_schemas()), indent=2).decode() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the page of all records as Markdown.")
    parser.add_argument("--json-schema", action="store_true", help="print the records as JSON Schemas instead")
    sys.stdout.write(json_schemas_text() if parser.parse_args().json_schema else records_page())

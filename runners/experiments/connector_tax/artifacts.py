"""The artifacts of a finished `connector-tax` cell: cut, checksummed, and renamed into place, the record last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from launch.instance import Instance
from results.connector_tax.read import analyze_cell, headline
from results.measures.step_records import cut_steps
from results.records.gpu import cut_gpu_log
from results.records.layout import AttemptLayout, is_complete, name_parquet_beside, publish, sha256, write_indented_json
from results.records.load_specs import LoadSpec
from results.records.plan import CellPlan
from results.records.schemas import CellRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.load.messages import LoadOutcome

LOAD_FACTS = (
    "rate_per_s", "input_tokens", "output_tokens", "seed", "arrival", "inflight_cap", "warmup_s", "min_duration_s",
    "min_completed", "max_duration_s", "drain_s",
)  # fmt: skip
STEP_FACTS = (
    "available", "reason", "unavailable_fields", "records", "records_lost", "worker_join_ratio", "batch_queue",
    "children",
)  # fmt: skip
CLIENT_FACTS = ("cut", "retried", "wrong_length", "late_bodies", "completed_in_window", "realtime")


def adopt_cell(cell: CellPlan, context: RunContext) -> CellOutcome | None:
    """The outcome of a load cell whose record is in place with every artifact whole; else None."""
    for config in context.layout.configs():
        record = config.cell(cell.params["phase"], cell.params["stem"])
        if config.root.name.endswith(f"_{cell.config}") and is_complete(record, cell.cell):
            summary = analyze_cell(record)
            return CellOutcome(headline(summary), summary.degraded)
    return None


def publish_cell(
    cell: CellPlan,
    attempt: int,
    spec: LoadSpec,
    outcome: LoadOutcome,
    instance: Instance,
    context: RunContext,
    folder: AttemptLayout,
) -> Path:
    """Cut the steps, write the cell record, and rename everything into the config's folder, the record last."""
    assert cell.config is not None
    phase, stem = cell.params["phase"], cell.params["stem"]
    layout = context.launcher.find_config_layout(cell.config)
    cut = cut_steps(instance.spec.rings, outcome.t_start_ns, outcome.t_end_ns, folder.engine_step)
    log = context.layout.gpu_csv
    gpu = cut_gpu_log(log, cell.cell, outcome.t_start_ns, outcome.t_end_ns, folder.gpu_util)
    moves = {
        folder.requests: layout.requests(phase, stem),
        folder.metrics: layout.metrics(phase, stem),
        folder.engine_step: layout.engine_step(phase, stem),
        name_parquet_beside(folder.engine_step): name_parquet_beside(layout.engine_step(phase, stem)),
        folder.gpu_util: layout.gpu_util(phase, stem),
    }
    moves = {source: target for source, target in moves.items() if source.exists()}
    record = CellRecord(
        cell=cell.cell,
        config=cell.config,
        phase=phase,
        load=_pick_facts(spec, LOAD_FACTS) | {"trial": cell.trial},
        t_start_ns=outcome.t_start_ns,
        t_window_start_ns=outcome.t_window_start_ns,
        t_window_end_ns=outcome.t_window_end_ns,
        t_start_unix_s=outcome.t_start_unix_s,
        attempt=attempt,
        stop_reason=outcome.stop_reason,
        sent=outcome.sent,
        completed=outcome.completed,
        failed=outcome.failed,
        dropped=outcome.dropped,
        fidelity=msgspec.to_builtins(outcome.fidelity),
        step_timing=_pick_facts(cut, STEP_FACTS),
        instance={
            "instance": instance.spec.instance,
            "url": instance.spec.url,
            "pid": instance.pid,
            "started_by": instance.spec.started_by,
            "settings": dict(cut.settings),
        },
        client=_pick_facts(outcome, CLIENT_FACTS),
        gpu=msgspec.to_builtins(gpu),
        # Parquet is a copy that may be made again from the JSONL; only the JSONL is the measurement.
        checksums={t.name: sha256(source) for source, t in moves.items() if t.suffix == ".jsonl"},
    )
    written = folder.cell
    write_indented_json(written, record)
    publish(moves | {written: layout.cell(phase, stem)})
    return layout.cell(phase, stem)


def _pick_facts(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}

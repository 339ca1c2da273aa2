"""The output of commands: rich tables for people, plain data for `--json`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from results.records.events import CellState, RunState
from results.records.layout import RunLayout
from results.records.percent import format_percent
from results.records.plan import RunPlan
from runners.campaign.plan import Sum, format_duration
from state.feed_lines import FeedLine
from state.lease import LeaseState
from state.model import InstanceView, RunView
from state.status import to_json
from state.view import compute_elapsed_s, estimate_eta_s, progress
from state.workspace import RunEntry

if TYPE_CHECKING:
    from launch.doctor import DoctorReport
    from launch.environment import Engine
    from launch.profile import ConnectorConfig, Profile
    from runners.standalone_engine import StandaloneEngine

STYLES: Mapping[str, str] = {
    "done": "green",
    "ready": "green",
    "ok": "green",
    "running": "cyan",
    "starting": "cyan",
    "paused": "yellow",
    "interrupted": "yellow",
    "warn": "yellow",
    "skipped": "bright_black",
    "pending": "bright_black",
    "gone": "bright_black",
    "failed": "red",
    "missing": "red",
    "warning": "yellow",
    "error": "red",
    "live": "green",
    "dead": "red",
}
INSTANCE_COLUMNS = (
    (">TTFT p50 ms", "ttft_p50_s", 1e3, 1),
    (">p90", "ttft_p90_s", 1e3, 1),
    (">TPOT p50 ms", "tpot_p50_s", 1e3, 2),
    (">p90", "tpot_p90_s", 1e3, 2),
    (">running", "running", 1.0, 0),
    (">waiting", "waiting", 1.0, 0),
    (">pending prefill tok", "pending_prefill_tokens", 1.0, 0),
    (">KV %", "kv_usage", 100.0, 1),
    (">step p50 us", "step_p50_us", 1.0, 0),
    (">p90", "step_p90_us", 1.0, 0),
)
"""Heading, field of an instance's latest sample, factor, digits after the point."""


class PlainTable(Table):
    """A table whose text cells are printed literally: text of a journal or a log must not be parsed as Rich markup."""

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        cells: list[RenderableType | None] = [Text(each) if isinstance(each, str) else each for each in renderables]
        super().add_row(*cells, style=style, end_section=end_section)


def begin_table(*columns: str, title: str = "") -> Table:
    """A quiet table; a column that starts with `>` is right-aligned."""
    made = PlainTable(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False
    )
    for column in columns:
        made.add_column(
            column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=column.startswith(">")
        )
    return made


def color_state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


def format_number(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    """A number in its column's unit; an en dash where nothing was measured."""
    return "–" if value is None else f"{value * scale:.{digits}f}"


def make_plan_json(plan: RunPlan, sums: Sequence[Sum], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as data, without its `inputs`; `estimated_s` in seconds, with the arithmetic behind it."""
    described = asdict(replace(plan, inputs={}))
    del described["inputs"]
    for stage in described["stages"]:
        seconds = [cell.estimated_s for cell in plan.cells if cell.stage == stage["stage"]]
        stage |= {"cells": len(seconds), "estimated_s": round(sum(seconds), 1)}
    return described | {"arithmetic": [asdict(line) for line in sums], "notes": list(notes)}


def make_plan_tables(plan: RunPlan, sums: Sequence[Sum], notes: Sequence[str] = ()) -> RenderableType:
    """The notes, stages with their cells per config, and the estimated time with its arithmetic."""
    rows = begin_table("stage", ">cells", "what", ">estimated")
    for stage in plan.stages:
        cells = [cell for cell in plan.cells if cell.stage == stage.stage]
        labels = list(dict.fromkeys(cell.label for cell in cells))
        per_config = max(Counter(cell.config for cell in cells).values(), default=0)
        configs = len({cell.config for cell in cells if cell.config})
        trials = 1 + max((cell.trial for cell in cells), default=0)
        what = f"{configs} configs x {per_config}: " if configs > 1 else (f"{trials} trials: " if trials > 1 else "")
        shown = ", ".join(labels[:9]) + (" ..." if len(labels) > 9 else "")
        rows.add_row(
            stage.title, str(len(cells)), what + shown, format_duration(sum(cell.estimated_s for cell in cells))
        )
    order = f"configs in this order (seed {plan.seed})" if len(plan.configs) > 1 else f"seed {plan.seed}, config"
    total = Text(
        f"estimated {format_duration(plan.estimated_s)}, engine starts included; fingerprint {plan.fingerprint[:12]}",
        style="bold",
    )
    simulated = "SIMULATED: " if plan.inputs.get("simulated") else ""
    title = Text(f"{simulated}{plan.experiment} on {plan.profile}/{plan.preset}: {len(plan.cells)} cells", style="bold")
    arithmetic = begin_table("stage", "arithmetic", ">is")
    for line in sums:
        arithmetic.add_row(line.stage, line.text, format_duration(line.seconds))
    remarks = [Text(line) for line in notes]
    return Group(title, *remarks, rows, arithmetic, Text(f"{order}: {', '.join(plan.configs)}"), total)


def make_status_json(view: RunView, lease: LeaseState, folder: Path, now_unix_s: float) -> dict[str, Any]:
    """The run's view as data, with its lease, its folder and its log."""
    paths = {"folder": str(folder), "log": str(RunLayout(folder).log)}
    return to_json(view, now_unix_s) | {"lease": asdict(lease) | {"live": lease.live}} | paths


def make_status_tables(view: RunView, lease: LeaseState, now_unix_s: float) -> RenderableType:
    """The head, stages, live instances, failed cells, and the last lines of the feed."""
    parts: list[RenderableType] = [_format_head(view, lease, now_unix_s), _make_stages_table(view)]
    if view.live_instances:
        parts.append(_make_instances_table(view.live_instances))
    failed = [cell for cell in view.cells.values() if cell.state is CellState.FAILED]
    if failed:
        rows = begin_table("failed cell", "why")
        for cell in failed:
            rows.add_row(cell.cell, cell.reason)
        parts.append(rows)
    parts += [format_feed_line(line) for line in view.feed[-6:]]
    return Group(*parts)


def make_progress_panel(view: RunView, now_unix_s: float) -> RenderableType:
    """The live display of `run` and `watch` on a terminal."""
    if not view.run:
        return Text("starting ...")
    done = progress(view)
    bar = PlainTable.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=1.0, completed=done.fraction, width=40), progress_line(view, now_unix_s))
    parts: list[RenderableType] = [bar, _make_stages_table(view)]
    if view.live_instances:
        parts.append(_make_instances_table(view.live_instances))
    parts += [format_feed_line(line) for line in view.feed[-5:]]
    return Group(*parts)


def progress_line(view: RunView, now_unix_s: float) -> str:
    """`12/42 cells, 31 %, 2 min 10 s gone, about 5 min left: phase-a/plain/r8`."""
    done, left = progress(view), estimate_eta_s(view, now_unix_s)
    eta = "" if left is None or view.state is RunState.DONE else f", about {format_duration(left)} left"
    cells = ", ".join(f"{cell.cell} {format_percent(cell.fraction)}" for cell in view.current_cells)
    gone = format_duration(compute_elapsed_s(view, now_unix_s))
    return (
        f"{done.ended}/{done.total} cells, {format_percent(done.fraction)}, {gone} "
        f"gone{eta}{': ' + cells if cells else ''}"
    )


def format_feed_line(line: FeedLine) -> Text:
    text = Text(time.strftime("%H:%M:%S ", time.localtime(line.t_unix_s)), style="bright_black")
    text.append(f"{line.subject} ", style="bold")
    text.append(line.text, style=STYLES.get(line.level, ""))
    return text


def _format_head(view: RunView, lease: LeaseState, now_unix_s: float) -> Text:
    text = Text(view.run, style="bold")
    if view.plan.inputs.get("simulated"):
        text.append("  SIMULATED", style="yellow")
    text.append(f"  {view.plan.experiment} on {view.plan.profile}/{view.plan.preset}  ", style="default")
    text.append_text(color_state(view.state))
    if view.state in (RunState.RUNNING, RunState.PAUSED) and not lease.live:
        text.append(f", but its process is gone: `tracon resume {view.run}`", style="yellow")
    if view.reason:
        text.append(f": {view.reason}")
    text.append("\n" + progress_line(view, now_unix_s), style="default")
    return text


def _make_stages_table(view: RunView) -> Table:
    rows = begin_table("stage", "state", ">cells", ">done", ">failed", ">skipped", "now")
    for stage in view.stages:
        running = [view.cells[cell].plan.label for cell in stage.cells if view.cells[cell].state is CellState.RUNNING]
        counts = stage.counts
        rows.add_row(
            stage.title,
            color_state(view.find_stage_state(stage)),
            str(len(stage.cells)),
            str(counts[CellState.DONE]),
            str(counts[CellState.FAILED]),
            str(counts[CellState.SKIPPED]),
            ", ".join(running),
        )
    return rows


def _make_instances_table(instances: Sequence[InstanceView]) -> Table:
    rows = begin_table("instance", "state", *(heading for heading, *_ in INSTANCE_COLUMNS))
    for instance in instances:
        now = instance.latest
        values = (
            format_number(None if now is None else getattr(now, field), scale, digits)
            for _, field, scale, digits in INSTANCE_COLUMNS
        )
        rows.add_row(instance.instance, color_state(instance.state), *values)
    return rows


def make_runs_json(entries: Sequence[RunEntry]) -> list[dict[str, Any]]:
    names = ("run", "experiment", "profile", "preset", "state", "reason", "created_unix_s")
    return [
        {name: getattr(entry, name) for name in names}
        | {
            "folder": str(entry.folder),
            "cells_ended": entry.progress.ended,
            "cells_total": entry.progress.total,
            "fraction": entry.progress.fraction,
            "lease": entry.lease.state,
            "problem": entry.problem or None,
        }
        for entry in entries
    ]


def make_runs_table(entries: Sequence[RunEntry]) -> Table:
    """The workspace's runs, newest first."""
    rows = begin_table("run", "experiment", "profile", "state", ">cells", ">progress", "process")
    for entry in entries:
        if entry.problem:
            rows.add_row(entry.run, entry.problem, "", color_state("failed"), "", "", "")
            continue
        done = entry.progress
        process = "live" if entry.lease.live else ("dead" if entry.orphaned else "")
        rows.add_row(
            entry.run,
            entry.experiment,
            f"{entry.profile}/{entry.preset}",
            color_state(entry.state),
            f"{done.ended}/{done.total}",
            format_percent(done.fraction),
            color_state(process),
        )
    return rows


def make_doctor_tables(report: DoctorReport) -> RenderableType:
    """What this machine has, and what each config needs."""
    rows = begin_table("what", "state", "detail", "remedy")
    for row in report.rows:
        rows.add_row(row.what, color_state(row.state), row.detail, row.remedy)
    configs = begin_table("config", "can run", "needs", "remedy", title="configs")
    for config in report.configs:
        configs.add_row(
            config.config,
            color_state("ok" if config.ok else "missing"),
            ", ".join(config.requires) or "nothing",
            config.remedy,
        )
    return Group(rows, configs) if report.configs else rows


def make_profiles_tables(profiles: Sequence[Profile], configs: Sequence[ConnectorConfig]) -> RenderableType:
    rows = begin_table("profile", "engine", "presets", "what", title="profiles")
    for profile in profiles:
        presets = "; ".join(f"{name}: {', '.join(tables)}" for name, tables in profile.experiments.items())
        rows.add_row(profile.name, profile.engine.kind, presets, profile.description)
    also = begin_table("config", "needs", "why", title="configs")
    for config in configs:
        also.add_row(config.name, ", ".join(config.requires) or "nothing", config.why)
    return Group(rows, also)


def make_engines_tables(environments: Sequence[Engine], engines: Sequence[StandaloneEngine]) -> RenderableType:
    rows = begin_table("environment", "vLLM", "python", title="environments")
    for engine in environments:
        rows.add_row(engine.kind, str(engine.versions.get("vllm") or "–"), str(engine.python))
    also = begin_table("engine", "state", "config", "url", ">pid", title="standalone engines")
    for row in engines:
        also.add_row(row.name, color_state(row.state), row.config, row.url, str(row.pid or "–"))
    return Group(rows, also)

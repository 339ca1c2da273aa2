"""MANIFEST.tsv: a row per config, including skipped ones with their reason, made from the run's folder alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from results.connector_tax.summary import CellSummary
from results.records.frames import Gap
from results.records.layout import ConfigLayout, RunLayout
from results.records.manifest import ManifestRow
from results.records.run_folder import COMPONENTS, ConfigFacts, PreflightDecision, RunFacts, read_config_facts
from results.records.skipped_cells import describe_skip

RAN, SKIP, NOT_RUN = "ran", "SKIP", "not run"


def make_manifest_rows(
    root: Path,
    facts: RunFacts,
    decisions: Mapping[str, PreflightDecision],
    summaries: Sequence[CellSummary],
    skipped: Mapping[str, str],
) -> tuple[tuple[ManifestRow, ...], tuple[Gap, ...]]:
    """A row for every config that the plan, the pre-flight or a result folder names; and the gaps of the folders.

    `skipped`: the operator's reason by cell.
    """
    layouts: dict[str, list[ConfigLayout]] = {}
    launched: dict[str, ConfigFacts] = {}
    gaps: list[Gap] = []
    for layout in RunLayout(root).configs():
        launch = read_config_facts(layout)
        gaps.extend(launch.gaps)
        layouts.setdefault(launch.config, []).append(layout)
        launched[launch.config] = launch
    names = dict.fromkeys((*facts.configs, *decisions, *launched))
    rows = tuple(
        _build_row(
            root,
            name,
            facts,
            _judge_status(decisions.get(name), _explain_skip(name, facts, skipped)),
            launched.get(name),
            layouts.get(name, []),
            summaries,
        )
        for name in sorted(names)
    )
    return rows, tuple(gaps)


def _explain_skip(config: str, facts: RunFacts, skipped: Mapping[str, str]) -> str:
    """That an operator skipped every planned cell of the config; empty where it is not so."""
    own = [cell.cell for cell in facts.cells if cell.config == config]
    return describe_skip(skipped[own[0]]) if own and all(cell in skipped for cell in own) else ""


def _build_row(
    root: Path,
    config: str,
    facts: RunFacts,
    unmeasured: tuple[str, str],
    launched: ConfigFacts | None,
    layouts: Sequence[ConfigLayout],
    summaries: Sequence[CellSummary],
) -> ManifestRow:
    """`unmeasured`: status and reason where no cell of it was finished."""
    done = [summary for summary in summaries if summary.config == config]
    status, why = (RAN, "") if done else unmeasured
    versions = {**facts.versions, **(launched.versions if launched else {})}
    failed, dropped = _count_unfinished(root, config, facts, {summary.cell for summary in done})
    timed, timing_reason = _merge_step_timing(done)
    vllm, torch, mooncake, nixl, lmcache = (versions.get(name, "") for name in COMPONENTS)
    return ManifestRow(
        date=launched.date if launched else "",
        config=config,
        status=status,
        skip_reason=why,
        vllm_version=vllm,
        vllm_sha=launched.vllm_sha if launched else "",
        torch_version=torch,
        mooncake_version=mooncake,
        nixl_version=nixl,
        lmcache_version=lmcache,
        gpu=launched.gpu if launched else "",
        launch_command=shlex.join(launched.launch_command) if launched else "",
        result_directory="; ".join(str(layout.root.relative_to(root)) for layout in layouts),
        step_timing_available=timed,
        step_timing_reason=timing_reason,
        cells_done=len(done),
        cells_failed=failed,
        cells_dropped=dropped,
    )


def _judge_status(decision: PreflightDecision | None, skip: str) -> tuple[str, str]:
    """Status of a config without a finished cell. `skip`: as `_explain_skip`."""
    if decision is not None and not decision.included:
        return SKIP, decision.reason or "pre-flight failed and gave no reason"
    if skip:
        return SKIP, skip
    return NOT_RUN, "no cell was finished" if decision else "no pre-flight decision and no finished cell"


def _count_unfinished(root: Path, config: str, facts: RunFacts, done: set[str]) -> tuple[int, int | None]:
    """Planned cells without a record: tried, and not tried."""
    open_cells = [cell.cell for cell in facts.cells if cell.config == config and cell.cell not in done]
    tried = sum(RunLayout(root).attempt(cell, 1).parent.is_dir() for cell in open_cells)
    return tried, len(open_cells) - tried if facts.cells else None


def _merge_step_timing(done: Iterable[CellSummary]) -> tuple[bool | None, str]:
    timings = [summary.step_timing for summary in done]
    if not timings:
        return None, ""
    reasons = dict.fromkeys(str(timing.get("reason")) for timing in timings if not timing.get("available"))
    return not reasons, "; ".join(reasons)

"""The prose of a connector-tax report: its opening, and the limits of its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from results.connector_tax.analyze import Analysis
from results.connector_tax.configs import BASELINE
from results.connector_tax.launches import count_planned
from results.connector_tax.summary import CellSummary
from results.connector_tax.tables import build_tables
from results.measures.drift import DriftVerdict
from results.measures.step_durations import LATENCY, whole_step
from results.records.percent import format_percent
from results.report.content import ReportText
from results.report.document import describe_engine
from results.statistics.estimates import LEVEL
from results.statistics.judgement import name_remedy
from results.statistics.trials import MIN_PAIRED, SPREAD


def build_report(analysis: Analysis) -> ReportText:
    return ReportText(describe_opening(analysis), build_tables(analysis), list_limits(analysis))


def describe_opening(analysis: Analysis) -> str:
    facts = analysis.facts
    ran = sum(row.status == "ran" for row in analysis.manifest)
    return (
        f"Profile {facts.label}{describe_engine(facts)}: {len(analysis.cells)} cells of {ran} configs measured, "
        f"degraded: {len(analysis.degraded)}, gaps: {len(analysis.gaps)}. "
        f"{describe_brackets(analysis)}; `?` is a bound that too few samples allow, `-` a value that was not measured."
    )


def describe_brackets(analysis: Analysis) -> str:
    """What the brackets are: an interval only where it spans launches."""
    if analysis.launches < MIN_PAIRED:
        return f"Brackets hold the {format_percent(LEVEL)} {SPREAD}"
    return f"Brackets of a tax hold its {format_percent(LEVEL)} interval over trials, those of one cell the {SPREAD}"


def describe_whole_step(cells: Sequence[CellSummary]) -> str:
    """The series of a whole step, and why."""
    if whole_step(cell.step_timing for cell in cells) == LATENCY:
        return "`engine_step_us`, because no engine of this run overlaps its steps"
    overlapping = sorted({cell.config for cell in cells if cell.step_timing.get("batch_queue")})
    return f"`period_us`, the time between the ends of two steps, because steps overlap in {', '.join(overlapping)}"


def list_limits(analysis: Analysis) -> tuple[str, ...]:
    limits = [*analysis.facts.host_notes]
    remedy = name_remedy(count_planned(analysis.facts.cells))
    if analysis.facts.engine_kind == "cpu":
        limits.append(
            "This is a CPU build of the engine with the profile's model: the sizes say nothing about a GPU. "
            "They show what each connector adds to a step on this host. The priors of H1 and H2 are of eight H20s with "
            "a 30B model: whatever is accepted or revised here, that trace replay is neither confirmed nor refuted."
        )
    if analysis.launches < MIN_PAIRED:
        limits.append(
            f"Every cell was measured fewer than {MIN_PAIRED} times, each config on launches of its own. The brackets "
            "hold the spread within the launch, not what two launches of one config differ by or what drifts over the "
            "run: nothing is called higher or lower, and no hypothesis is judged. "
            f"{remedy[:1].upper()}{remedy[1:]}."
        )
    if any(drift.verdict == DriftVerdict.DETECTED for drift in analysis.drift):
        limits.append(
            "The run drifted: what differs between two rounds of launches is no config's, and what drifted inside a "
            "round is part of the noise."
            if analysis.launches >= MIN_PAIRED
            else "The run drifted: configs were measured in a random order, and a tax holds what drift that left."
        )
    limits.append(
        "Brackets of single percentiles assume independent requests. Near saturation requests share a queue, and they "
        "are too narrow there; the spread of a tax within a launch resamples blocks of neighbors."
    )
    limits.append(
        "`tax_step` times schedule() alone, as specified; worker-side callbacks do not run inside it, so its remainder "
        "over `tax_callback` can be negative. `tax_engine_step` times the whole step: "
        f"{describe_whole_step(analysis.cells)}."
    )
    unprobed = sorted({cell.config for cell in analysis.cells if not cell.step_timing.get("available", False)})
    if unprobed:
        limits.append(f"No step timing in at least one cell of: {', '.join(unprobed)}.")
    if not any(cell.config == BASELINE for cell in analysis.cells):
        limits.append(f"{BASELINE} was not measured: there is nothing to compare with, and no tax.")
    return tuple(limits)

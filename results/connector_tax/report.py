"""The report of a connector-tax run in words: its opening, and the limits of its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from results.connector_tax.analyse import Analysis
from results.connector_tax.tables import tables
from results.measures.drift import DriftVerdict
from results.records.baseline import BASELINE
from results.report.document import markdown, rich_tables, title
from results.report.figure import Figure
from results.statistics.estimates import LEVEL
from results.statistics.trials import MIN_PAIRED, SPREAD


def to_markdown(analysis: Analysis, figures: Sequence[Figure] = ()) -> str:
    """`report.md`: the same analysis gives the same text. Links `figures` as files in the run's `figures/`."""
    return markdown(title(analysis.facts), opening(analysis), tables(analysis), figures, limits(analysis))


def terminal_tables(analysis: Analysis) -> RenderableType:
    """The report for a terminal."""
    return rich_tables(opening(analysis), tables(analysis), limits(analysis))


def opening(analysis: Analysis) -> str:
    """What was measured, and how to read the numbers."""
    facts = analysis.facts
    ran = sum(row.status == "ran" for row in analysis.manifest)
    where = {"cpu": ", on a CPU build of the engine", "cuda": ", on a GPU"}.get(facts.engine_kind, "")
    return (
        f"Profile {facts.label}{where}: {len(analysis.cells)} cells of {ran} configs measured, "
        f"degraded: {len(analysis.degraded)}, gaps: {len(analysis.gaps)}. "
        f"{brackets(analysis)}; `?` is a bound that too few samples allow, `-` a value that was not measured."
    )


def brackets(analysis: Analysis) -> str:
    """What brackets hold: an interval only where it spans launches."""
    if len({cell.trial for cell in analysis.cells}) < MIN_PAIRED:
        return f"Brackets hold the {LEVEL:.0%} {SPREAD}"
    return f"Brackets of a tax hold its {LEVEL:.0%} interval over trials, those of one cell the {SPREAD}"


def limits(analysis: Analysis) -> tuple[str, ...]:
    """What these numbers do not say: part of every report."""
    found = []
    if analysis.facts.engine_kind == "cpu":
        found.append(
            "This is a CPU build of the engine with the profile's model: the sizes say nothing about a GPU. "
            "They show what each connector adds to a step on this host."
        )
    if len({cell.trial for cell in analysis.cells}) < MIN_PAIRED:
        found.append(
            f"Every cell was measured fewer than {MIN_PAIRED} times, each config on launches of its own. The brackets "
            "hold the spread within the launch, not what two launches of one config differ by or what drifts over the "
            "run: nothing is called higher or lower, and no hypothesis is judged. "
            f"`--trials {MIN_PAIRED}` gives verdicts."
        )
    if any(drift.verdict == DriftVerdict.DETECTED for drift in analysis.drift):
        found.append("The run drifted: configs were measured in a random order, and a tax holds what drift that left.")
    found.append(
        "Brackets of single percentiles assume independent requests. Near saturation requests share a queue, and they "
        "are too narrow there; the spread of a tax within a launch resamples blocks of neighbours."
    )
    found.append(
        "`tax_step` times schedule() alone, as specified; worker-side callbacks do not run inside it, so its remainder "
        "over `tax_callback` can be negative. `tax_engine_step` times the whole step."
    )
    unprobed = sorted({cell.config for cell in analysis.cells if not cell.step_timing.get("available", False)})
    if unprobed:
        found.append(f"No step timing in at least one cell of: {', '.join(unprobed)}.")
    if not any(cell.config == BASELINE for cell in analysis.cells):
        found.append(f"{BASELINE} was not measured: there is nothing to compare with, and no tax.")
    return (*analysis.facts.host_notes, *found)

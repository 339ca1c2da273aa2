"""Every figure of a `routing` report: f1 and f3 to f10 of specs/ear."""

from __future__ import annotations

from dataclasses import replace

from results.report.figure import Drawers, Figure
from results.routing import load_figures, migration_figures, policy_figures, schematics, sensitivity_figures
from results.routing.analyze import RoutingAnalysis

SCHEMATICS = (schematics.COUPLING, schematics.ARCHITECTURE)
FIGURES = (
    policy_figures.AMPLIFICATION,
    policy_figures.APC,
    load_figures.OCCUPANCY,
    policy_figures.INSTANCES,
    load_figures.INTERFERENCE,
    policy_figures.HEADLINE,
    policy_figures.LATENCIES,
    migration_figures.ABLATION,
    load_figures.COUPLING,
    sensitivity_figures.THRESHOLDS,
    sensitivity_figures.LOADS,
    migration_figures.TIMELINE,
    *SCHEMATICS,
)
OF_VARIATIONS = (sensitivity_figures.CONDITIONAL,)
"""Only of simulated runs that vary their engine model."""
DRAWERS: Drawers = {kind.number: kind.draw for kind in (*FIGURES, *OF_VARIATIONS)}


def build_figures(analysis: RoutingAnalysis) -> tuple[Figure, ...]:
    """Every figure in order; one that cannot be drawn holds its reason. Simulated numbers have it in the title."""
    kinds = (*FIGURES, *OF_VARIATIONS) if analysis.conditional else FIGURES
    figures = tuple(kind.build(analysis) for kind in kinds)
    if not analysis.facts.simulated:
        return figures
    schematic = {kind.number for kind in SCHEMATICS}
    return tuple(
        figure if figure.number in schematic else replace(figure, title=f"SIMULATED: {figure.title}")
        for figure in figures
    )

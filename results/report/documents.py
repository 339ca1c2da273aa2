"""Documents that the analyses of several experiments write, and what their own documents begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from results.records.declaration import Declared
from results.records.frames import Gap
from results.records.run_folder import RunFacts
from results.report.engine_gates import ShownGates
from results.report.export import ExportedRun
from results.report.stored_page import StoredPage
from results.statistics.judgement import Judgement

DEFINITIONS = "docs/analysis.md"


@dataclass(frozen=True, kw_only=True)  # without slots: a record with two bases that have slots cannot be made
class AggregateHead:
    """The first fields of every `aggregate.json`: which run this is."""

    format: int
    """Format of this document."""
    definitions: str | UnsetType = UNSET
    """The page that defines every number."""
    run: str
    """Name of the run's folder."""
    experiment: str
    """Its registered name."""
    profile: str
    """Model, hardware and scale."""
    preset: str
    """The grid's scale inside the profile."""
    seed: int | None
    """Seed of every schedule, prompt and order; None = not known."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""


def name_run(facts: RunFacts) -> dict[str, Any]:
    """The fields of AggregateHead that say which run this is."""
    return {
        "run": facts.run,
        "experiment": facts.experiment,
        "profile": facts.profile,
        "preset": facts.preset,
        "seed": facts.seed,
        "simulated": facts.simulated or UNSET,
    }


DOCUMENTS: tuple[Declared, ...] = (
    Declared(StoredPage, ("results/page.json",)),
    Declared(ExportedRun, ("comparable.json",)),
    Declared(Judgement, ("in every verdicts.json", "in Comparable")),
    Declared(Gap, ("in every aggregate.json",)),
    Declared(ShownGates, ("in verdicts.json of a simulated run",)),
)

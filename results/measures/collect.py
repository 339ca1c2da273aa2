"""Finds and analyses the cells of a run folder, and names what is missing of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from results.measures.cells import analyse_cell
from results.measures.summary import CellSummary
from results.records.errors import ArtifactError
from results.records.frames import Gap, artifact_name
from results.records.layout import ConfigLayout, RunLayout


@dataclass(frozen=True, slots=True)
class Collected:
    """The cells of a run that could be read."""

    summaries: tuple[CellSummary, ...]
    paths: Mapping[str, Path]
    """`CellSummary.path` to the cell record's file."""
    gaps: tuple[Gap, ...]
    """Records that could not be read, and everything the cells themselves lack."""


def collect(root: Path, phases: Collection[str] | None = None) -> Collected:
    """Every finished cell below `root` (of these phases), by folder and file name. A bad cell is a gap."""
    summaries: list[CellSummary] = []
    paths: dict[str, Path] = {}
    gaps: list[Gap] = []
    for layout in RunLayout(root).configs():
        for record in layout.cells(phases):
            try:
                summary = analyse_cell(record)
            except ArtifactError as error:
                gaps.append(Gap(artifact_name(record), f"cell is not counted: {error}"))
                continue
            summaries.append(summary)
            paths[summary.path] = record
            gaps.extend(summary.gaps)
        gaps.extend(_orphans(layout, phases))
    return Collected(tuple(summaries), paths, tuple(gaps))


def _orphans(layout: ConfigLayout, phases: Collection[str] | None) -> Iterator[Gap]:
    """Request records without the cell record that would make them count."""
    for record in layout.cells_of_requests(phases):
        if not record.exists():
            yield Gap(artifact_name(record), "is missing while the cell's requests are there; the cell is not counted")

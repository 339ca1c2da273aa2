"""A run's results in a folder to hand on: report, figures, tables, and the numbers for comparisons.

Raw artifacts are left out. Paths of this host are masked in every text: `RUN` is the run's folder, `TRACON` Tracon's,
`~` the user's home, `FILES` a folder elsewhere of which the run read a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from results.records.declaration import UnknownVersion, decode_versioned
from results.records.errors import DAMAGED_JSON, ResultsError
from results.records.layout import RunLayout, write_atomic
from results.report.comparison import Comparable
from results.report.path_masks import list_masks, mask_paths

FORMAT = 3
"""Version of comparable.json. Format 1 named the reference rate of a tax where format 2 states the rate. In format 2
a latency of B' was another number than that of Phase B at the same load, a trend stated its rates without its shapes,
and a lifecycle run only the number of (C, N) of its whole grid."""
_BINARY = frozenset({".png"})


class ExportedRun(msgspec.Struct, frozen=True):
    """`comparable.json`."""

    format: int
    """Format of this document."""
    comparable: Comparable
    """The run's numbers for comparisons."""


def refuse_run_folder(target: Path) -> None:
    """Raises ResultsError where `target` is or is inside the folder of a run."""
    target = target.resolve()
    run = next((folder for folder in (target, *target.parents) if RunLayout(folder).plan.exists()), None)
    if run is not None:
        raise ResultsError(f"{run} is the folder of a run", remedy="name a folder outside of it; a new one is made")


def export_results(source: Path, target: Path, comparable: Comparable | None, own: Iterable[Path]) -> tuple[Path, ...]:
    """Copy the analysis's files from the run folder `source` to `target`, and write comparable.json beside them.

    `own`: those that only its experiment has. `target`: as `refuse_run_folder` allows; other files in it stay. Returns
    the files written, by name. Raises OSError where it cannot be written.
    """
    target = target.resolve()
    masks = list_masks(source)
    written = []
    for path in _list_files(source, own):
        copy = target / (path.relative_to(source) if path.parent == RunLayout(source).figures else path.name)
        content = path.read_bytes()
        write_atomic(copy, content if path.suffix in _BINARY else mask_paths(content, masks))
        written.append(copy)
    if comparable is not None:
        content = msgspec.json.encode(ExportedRun(FORMAT, comparable)) + b"\n"
        write_atomic(RunLayout(target).comparable, mask_paths(content, masks))
        written.append(RunLayout(target).comparable)
    return tuple(sorted(written))


def read_comparable(folder: Path) -> Comparable:
    """What `export_results` wrote into `folder`. Raises ResultsError where it cannot be read."""
    path = RunLayout(folder).comparable
    remedy = "export the run again, with this version: `tracon export RUN FOLDER`"
    try:
        upgrades = {1: _state_rates_of_taxes, 2: _identify_loads}
        return decode_versioned(path.read_bytes(), ExportedRun, FORMAT, upgrades, unstated=1, key="format").comparable
    except (OSError, UnknownVersion, *DAMAGED_JSON) as error:
        raise ResultsError(f"{path}: {error}", remedy=remedy) from error


def _state_rates_of_taxes(row: dict[str, Any]) -> dict[str, Any]:
    """Format 1 to 2: a number with `at` (`32 req/s`), a tax, has the rate in its key and its identity."""
    comparable = row["comparable"]
    measures = [_state_rate(one) if one.get("at") else one for one in comparable["measures"]]
    return {**row, "format": 2, "comparable": {**comparable, "measures": measures}}


def _state_rate(tax: dict[str, Any]) -> dict[str, Any]:
    """As results.connector_tax.compare makes it. An export from before identities has none."""
    at, key = tax["at"], tax["key"]
    reference, phase, *others = key.items()
    identity = tax.get("id", "").replace(f" at {key['reference']}, ", f" at {at}, ")
    return {**tax, "key": dict((reference, phase, ("req/s", at.removesuffix(" req/s")), *others)), "id": identity}


def _identify_loads(row: dict[str, Any]) -> dict[str, Any]:
    """Format 2 to 3: a number of B' is identified as one of Phase B, a mean over a grid of a known size only by its
    name, and loads without a shape are not stated."""
    comparable = row["comparable"]
    measures = [{**one, "id": _identify_load(one.get("id", ""))} for one in comparable["measures"]]
    loads = {name: load for name, load in comparable.get("loads", {}).items() if ", " in load}
    return {**row, "format": 3, "comparable": {**comparable, "measures": measures, "loads": loads}}


def _identify_load(identity: str) -> str:
    return "" if ", grid of " in identity else identity.replace(" in Bp at ", " in B at ")


def _list_files(source: Path, own: Iterable[Path]) -> Iterator[Path]:
    """Those that exist."""
    run = RunLayout(source)
    common = (run.report_md, run.report_html, run.manifest, run.aggregate_csv, run.verdicts_json, run.preflight_status)
    yield from filter(Path.is_file, (*common, *own))
    yield from sorted(run.figures.glob("*.*"))

"""The cells of the confirm stage as a table: a row per config and load, over its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from results.connector_tax.launches import count_planned_launches
from results.connector_tax.saturation_criteria import GROWTH
from results.connector_tax.summary import CellSummary, Shape
from results.records.estimate import Estimate, figure
from results.records.phase_names import CONFIRM
from results.records.reference_rates import CellSaturation
from results.records.run_folder import PlannedCell
from results.report.table import NOT_MEASURED, Column, Table, make_table

Launches = Sequence[CellSummary]
"""The cells of one config at one load."""
LOST = ("failed", "dropped", "cut")
"""Ends of requests that did not complete."""


def build_launch_table(
    cells: Sequence[CellSummary], saturation: Mapping[str, CellSaturation], planned: Sequence[PlannedCell] = ()
) -> Table:
    """Median and range over the launches; a table without rows where there is no confirm stage."""
    planned_launches = count_planned_launches(planned)
    groups: dict[tuple[float, Shape, str], list[CellSummary]] = {}
    for cell in cells:
        if cell.phase == CONFIRM:
            groups.setdefault((cell.rate_per_s, cell.shape, cell.config), []).append(cell)

    def describe_count(launches: Launches) -> str:
        wanted = max(planned_launches.get(cell.cell, 0) for cell in launches)
        return f"{len(launches)} of {wanted}" if len(launches) < wanted else str(len(launches))

    def count_saturated(launches: Launches) -> int:
        return sum(saturation[cell.path].saturated is True for cell in launches)

    def describe_growth(launches: Launches) -> str | None:
        growth = saturation[launches[0].path].criteria[GROWTH - 1]
        return None if growth.measured is None else Estimate(growth.measured, growth.low, growth.high).text(3)

    has_growth = any(describe_growth(launches) for launches in groups.values())
    columns: tuple[Column[Launches], ...] = (
        Column("req/s", lambda launches: launches[0].rate_per_s, form="g"),
        Column("shape", lambda launches: str(launches[0].shape)),
        Column("config", lambda launches: launches[0].config),
        Column("launches", describe_count),
        Column("TTFT p90 ms", lambda launches: _describe_range(launches, "ttft_p90_s")),
        Column("late p90 ms", _describe_lateness),
        Column("TPOT p90 ms", lambda launches: _describe_range(launches, "tpot_p90_s")),
        *((Column("TTFT p90 growth", describe_growth),) if has_growth else ()),
        Column("saturated", count_saturated),
        Column("degraded", lambda launches: sum(bool(cell.degraded) for cell in launches)),
        Column("requests lost", _count_lost),
    )
    note = (
        "Verdicts rest on these launches. Median over them, and in parentheses the lowest and the highest. Late p90: "
        "how late the client sent, of the worst launch; TTFT begins at the actual send and does not hold it. "
        "Saturated: launches in which criterion 1 or 2 fired, or all of them where 3 did. Criterion 3 is the growth of "
        "TTFT p90 over half the rate, where the stage has that too, by its interval over the launches."
    )
    return make_table("Confirm stage", columns, (groups[key] for key in sorted(groups)), note)


def _describe_range(launches: Launches, name: str) -> str:
    values = [value * 1e3 for cell in launches if (value := cell.value(name)) is not None]
    if not values:
        return NOT_MEASURED
    middle, low, high = (figure(value) for value in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def _describe_lateness(launches: Launches) -> str:
    known = [late_s * 1e3 for cell in launches if (late_s := cell.fidelity.get("lateness_p90_s")) is not None]
    return figure(max(known), 2) if known else NOT_MEASURED


def _count_lost(launches: Launches) -> str:
    """Requests of all launches that did not complete, by how they ended; `0` = none."""
    known = [cell.counts for cell in launches if cell.counts.get("completed") is not None]
    if not known:
        return NOT_MEASURED
    lost = {name: sum(counts.get(name) or 0 for counts in known) for name in LOST}
    return ", ".join(f"{count} {name}" for name, count in lost.items() if count) or "0"

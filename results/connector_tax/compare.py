"""The numbers that two runs of connector-tax are compared by: every latency, and every latency tax."""

from __future__ import annotations

from collections.abc import Iterator

from results.connector_tax.analyze import Analysis
from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.saturation import describe_rate
from results.connector_tax.tax import RATIOS, TITLES, TaxRow
from results.connector_tax.verdicts import name_loads
from results.records.reference_rates import REF_LOAD, REF_SAFE
from results.report.comparison import Comparable, Measure
from results.statistics.estimates import cut_bounds
from results.statistics.trials import estimate


def build_comparable(analysis: Analysis) -> Comparable:
    measurements = Measurements(analysis.cells, lambda cell: analysis.samples[cell.path])
    rates = analysis.rates
    return Comparable(
        facts=analysis.facts,
        measures=(*_list_taxes(analysis), *_list_latencies(analysis, measurements)),
        judgements=analysis.verdicts,
        stated={
            name: f"{describe_rate(rates.rate(name))}: {rates.explain_rate(name)}" for name in (REF_SAFE, REF_LOAD)
        },
        loads=name_loads(rates, analysis.taxes, analysis.trends),
    )


def _list_latencies(analysis: Analysis, measurements: Measurements) -> Iterator[Measure]:
    keys = {(Load(cell.phase, cell.rate_per_s, cell.shape), cell.config) for cell in analysis.cells}
    for load, config in sorted(keys):
        at = {"phase": load.phase, "req/s": f"{load.rate_per_s:g}", "shape": str(load.shape), "config": config}
        for metric, series in RATIOS.items():
            measured = cut_bounds(estimate(measurements.get(load, config, series)))
            own = f"{series} p90 of {config} in {_name_part(load.phase)} at {load.rate_per_s!r} req/s, {load.shape}"
            key, degrees = {**at, "latency": TITLES[metric]}, measured.launches - 1
            yield Measure("Latencies", key, measured, "ms", 1e3, degrees=degrees, id=own)


def _name_part(phase: str) -> str:
    """B' counts as Phase B: one run measures them at two rates, and the rate of the one may be that of the other in
    another run."""
    return "B" if phase == "Bp" else phase


def _list_taxes(analysis: Analysis) -> Iterator[Measure]:
    """Every latency tax once, where it comes first: in Phase A before B, at ref_safe before ref_load.

    Launches of a confirm stage count in Phase A and in B where both have their load, and launches of Phase A at both
    reference rates where these are one. Without a confirm stage A and B launch engines of their own at a load that both
    have: these are two taxes, each of which another run can confirm.
    """
    rows: dict[tuple[object, ...], TaxRow] = {}
    for row in analysis.taxes:
        if row.metric in RATIOS:
            rows.setdefault(_identify(row), row)
    return map(_build_tax, rows.values())


def _identify(row: TaxRow) -> tuple[object, ...]:
    """Equal for two rows of the same launches."""
    return row.rate_per_s, row.shape, row.config, row.metric, row.estimate


def _build_tax(row: TaxRow) -> Measure:
    """With bounds that hold for the config by itself, because the two runs may have different numbers of configs.

    A tax is of a load: its rate identifies it, whichever reference rate the run calls that.
    """
    rate = f"{row.rate_per_s:g}"
    key = {
        "reference": row.reference, "phase": row.phase, "req/s": rate, "shape": str(row.shape), "config": row.config,
        "tax": TITLES[row.metric],
    }  # fmt: skip
    cost = row.alone or row.estimate
    return Measure(
        "Taxes",
        key,
        cost,
        unit="%",
        ratio=False,
        verdict=row.verdict,
        degrees=row.degrees or cost.launches - 1,
        id=f"{row.metric} of {row.config} in {_name_part(row.phase)} at {rate} req/s, {row.shape}",
    )

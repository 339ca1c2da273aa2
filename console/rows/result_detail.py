"""All facts behind one line of the results. Import only where there is an analysis."""

from __future__ import annotations

from console import format as say
from console.rows.measured import cell_marks
from console.rows.results import load_of, tax_key
from results.connector_tax.analyse import Analysis
from results.connector_tax.tax import RATIOS, TaxRow
from results.report.judgements import outcome_text
from results.statistics.estimates import Estimate

Fact = tuple[str, str]


def row_facts(analysis: Analysis, key: str) -> tuple[str, list[Fact]] | None:
    """Title and facts of the row `key`, None where the row has no further facts."""
    key = key.partition("#")[0]
    kind, _, name = key.partition(" ")
    if kind == "tax":
        return _tax(analysis, key)
    if kind in ("verdict", "claim"):
        return _verdict(analysis, name)
    if kind == "cell":
        return _cell(analysis, name)
    return None


def _tax(analysis: Analysis, key: str) -> tuple[str, list[Fact]] | None:
    rows = [row for row in analysis.taxes if tax_key(load_of(row), row.config) == key]
    if not rows:
        return None
    first = rows[0]
    title = f"{first.config} over plain at {first.reference}, {first.rate_per_s:g} req/s, {first.shape}"
    return title, [(str(row.metric).removeprefix("tax_"), _tax_text(row)) for row in rows]


def _tax_text(row: TaxRow) -> str:
    tax = row.estimate
    if tax.value is None:
        return f"{say.NOT_MEASURED} ({tax.reason})"
    text = tax.percent() if row.metric in RATIOS else tax.text(digits=3)
    parts = [text, _verdict_text(row), f"n = {tax.n}", tax.basis or "", tax.reason or ""]
    return ", ".join(part for part in parts if part)


def _verdict_text(row: TaxRow) -> str:
    if row.verdict is not None:
        return str(row.verdict)
    return f"no verdict: {row.withheld}" if row.withheld else ""


def _verdict(analysis: Analysis, name: str) -> tuple[str, list[Fact]] | None:
    for judgement in (*analysis.verdicts, *analysis.criteria):
        if judgement.name == name:
            facts = [("outcome", outcome_text(judgement)), ("why", judgement.reason), ("rule", judgement.rule)]
            facts += [("about", judgement.quantity), ("prior", judgement.prior)]
            facts += [("brackets", judgement.measured.basis or "")]
            if judgement in analysis.verdicts:
                facts += [(label, _number(number)) for label, number in judgement.numbers.items()]
            return f"{name}: {judgement.claim}", [fact for fact in facts if fact[1]]
    return None


def _number(estimate: Estimate) -> str:
    """A tax as a percentage, or why there is none."""
    return estimate.percent() if estimate.value is not None else f"{say.NOT_MEASURED} ({estimate.reason})"


def _cell(analysis: Analysis, path: str) -> tuple[str, list[Fact]] | None:
    summary = next((each for each in analysis.cells if each.path == path), None)
    if summary is None:
        return None
    judged = analysis.saturation[summary.path]
    saturated = {True: "yes", False: "no", None: f"not known: {judged.reason}"}[judged.saturated]
    facts = [
        ("load", f"{summary.rate_per_s:g} req/s, {summary.shape} tokens, {summary.arrival}"),
        ("window", say.duration(summary.window_s)),
        ("marks", ", ".join(cell_marks(analysis, summary))),
        ("degraded", summary.degraded),
        ("saturated", saturated),
        ("requests", ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count is not None)),
    ]
    facts += [(name, f"{each.text()}" if each.value is not None else _number(each)) for name, each in
              summary.values.items()]  # fmt: skip
    return summary.cell, [fact for fact in facts if fact[1]]

"""Everything there is to say about one line of the results. Import only where there is an analysis."""

from __future__ import annotations

from console import format as say
from console.rows.measured import cell_marks
from console.rows.results import load_of, tax_key
from results.findings import Analysis
from results.statistics import Estimate
from results.tax import RATIOS, TaxRow

Fact = tuple[str, str]


def detail(analysis: Analysis, key: str) -> tuple[str, list[Fact]] | None:
    """Title and facts of the row `key`, None where the row says all there is."""
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
    found = row.estimate
    if found.value is None:
        return f"{say.NOT_MEASURED} ({found.reason})"
    text = found.percent() if row.metric in RATIOS else found.text(digits=3)
    parts = [text, str(row.verdict) if row.verdict else "", f"n = {found.n}", found.basis or "", found.reason or ""]
    return ", ".join(part for part in parts if part)


def _verdict(analysis: Analysis, name: str) -> tuple[str, list[Fact]] | None:
    for verdict in analysis.verdicts:
        if verdict.name == name:
            facts = [("outcome", str(verdict.outcome)), ("label", verdict.label), ("why", verdict.reason)]
            facts += [("rule", verdict.rule), ("about", verdict.quantity), ("prior", verdict.prior)]
            facts += [("interval", verdict.measured.basis or "")]
            facts += [(label, _number(found)) for label, found in verdict.numbers.items()]
            return f"{name}: {verdict.claim}", [fact for fact in facts if fact[1]]
    for criterion in analysis.criteria:
        if str(criterion.number) == name:
            facts = [("outcome", str(criterion.outcome)), ("why", criterion.reason), ("rule", criterion.rule)]
            return f"{criterion.number}: {criterion.title}", facts
    return None


def _number(found: Estimate) -> str:
    """A tax as a percentage, or why there is none."""
    return found.percent() if found.value is not None else f"{say.NOT_MEASURED} ({found.reason})"


def _cell(analysis: Analysis, path: str) -> tuple[str, list[Fact]] | None:
    found = next((each for each in analysis.cells if each.path == path), None)
    if found is None:
        return None
    judged = analysis.saturation[found.path]
    saturated = {True: "yes", False: "no", None: f"not known: {judged.reason}"}[judged.saturated]
    facts = [
        ("load", f"{found.rate_per_s:g} req/s, {found.shape} tokens, {found.arrival}"),
        ("window", say.duration(found.window_s)),
        ("marks", ", ".join(cell_marks(analysis, found))),
        ("degraded", found.degraded),
        ("saturated", saturated),
        ("requests", ", ".join(f"{count} {name}" for name, count in found.counts.items() if count is not None)),
    ]
    facts += [(name, f"{each.text()}" if each.value is not None else _number(each)) for name, each in
              found.values.items()]  # fmt: skip
    return found.cell, [fact for fact in facts if fact[1]]

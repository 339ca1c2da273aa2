"""The hypotheses of a run by its measurements, and the success criteria of specs/connector_tax.

The criteria ask whether the run answers what it was made for: 1 to 5 ask for an answer, not for the expected one. They
hold where the interval decides, and fail where the number is missing. They are undecided where the interval decides
nothing or fewer than three launches gave it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from results.connector_tax import hypotheses
from results.connector_tax.combined_taxes import MOONCAKE, NIXL, Additivity, Decomposition, Trend, nixl_gap, tax_at
from results.connector_tax.manifest import NOT_RUN, RAN, SKIP
from results.connector_tax.measurements import Measurements
from results.connector_tax.tax import Metric
from results.measures.saturation import REF_SAFE, ReferenceRates
from results.measures.summary import CellSummary
from results.records.frames import Gap
from results.records.manifest import ManifestRow
from results.records.run_folder import PreflightDecision, RunFacts
from results.statistics.estimates import Estimate, unknown
from results.statistics.judgement import Judgement, Outcome, list_some, withheld
from results.statistics.trials import estimate

_Row = TypeVar("_Row", Decomposition, Additivity, Trend)


def judge_hypotheses(
    measurements: Measurements,
    rates: ReferenceRates,
    decomposition: Sequence[Decomposition],
    additivity: Sequence[Additivity],
    lines: Sequence[Trend],
) -> tuple[Judgement, ...]:
    """H1 to H6, by the contrasts of mooncake_both's TTFT tax (H6: TPOT)."""
    mooncake, nixl = (
        estimate(tax_at(measurements, rates, REF_SAFE, config, Metric.TTFT_P90)) for config in (MOONCAKE, NIXL)
    )
    return (
        hypotheses.judge_tax(mooncake),
        hypotheses.judge_gap(nixl_gap(measurements, rates, Metric.TTFT_P90), mooncake, nixl),
        hypotheses.judge_framework(_find_first(decomposition, config=MOONCAKE, metric=Metric.TTFT_P90)),
        hypotheses.judge_additivity(_find_first(additivity, metric=Metric.TTFT_P90)),
        hypotheses.judge_input_trend(_find_first(lines, config=MOONCAKE, along="input_tokens", at=None)),
        hypotheses.judge_output_trend(_find_first(lines, config=MOONCAKE, along="output_tokens", at=None)),
    )


def judge_success(
    judged: Sequence[Judgement],
    facts: RunFacts,
    rows: Sequence[ManifestRow],
    decisions: Mapping[str, PreflightDecision],
    cells: Collection[CellSummary],
    gaps: Sequence[Gap],
    unmeasured: Sequence[Gap],
) -> tuple[Judgement, ...]:
    """The success criteria 1 to 7; `gaps`: all that artifacts lack; `unmeasured`: planned cells that are not there."""
    h1, h2, h3, h4, h5, h6 = judged
    planned = bool(facts.cells)
    trials = max((cell.trial for cell in cells), default=0) + 1
    return (
        tax_reported(h1),
        gap_reported(h2),
        cost_labelled(h3),
        additivity_decided(h4),
        trends_reported(h5, h6),
        artifacts_present(rows, decisions, [*gaps, *unmeasured], planned),
        wall_clock(_span_h(cells), trials, whole=planned and not unmeasured),
    )


def _span_h(cells: Collection[CellSummary]) -> Estimate:
    ends = [cell.t_end_unix_s for cell in cells if cell.t_end_unix_s is not None]
    if not ends:
        return unknown("no cell was measured")
    return Estimate((max(ends) - min(cell.t_start_unix_s for cell in cells)) / 3600, n=len(ends))


def _find_first(rows: Sequence[_Row], **where: object) -> _Row | None:
    """The row whose attributes are these."""
    return next((row for row in rows if all(getattr(row, name) == value for name, value in where.items())), None)


WITHIN_H = 6.0
"""Criterion 7."""


def tax_reported(h1: Judgement) -> Judgement:
    """1: tax_ttft_p90(mooncake_both, ref_safe) is reported, and with it whether the prior is accepted or revised."""
    rule = "tax_ttft_p90(mooncake_both) at ref_safe is reported with its interval; the prior is accepted or revised"
    return _judge_reported("1", "H1 falsifiable", rule, h1, f"{h1.measured.percent()}; prior {h1.prior}")


def gap_reported(h2: Judgement) -> Judgement:
    """2: the gap between NIXL and Mooncake at ref_safe is reported, and whether it agrees with the trace replay."""
    rule = "tax(mooncake_both) - tax(nixl_both) at ref_safe is reported with its interval, beside the trace replay's"
    return _judge_reported("2", "H2 testable", rule, h2, f"{h2.measured.points()}; {h2.prior}")


def cost_labelled(h3: Judgement) -> Judgement:
    """3: noop_connector's tax is reported and the tax of mooncake_both is labelled by the cost that dominates it."""
    rule = "tax(noop_connector) at ref_safe is reported and its share of tax(mooncake_both) gives a label"
    return _judge_reported("3", "H3 disambiguated", rule, h3, _labelled_text(h3))


def additivity_decided(h4: Judgement) -> Judgement:
    """4: whether the stacked connectors' taxes add up is decided."""
    rule = "|tax(multi) - (tax(mooncake_both) + tax(lmcache_only))| / tax(multi) is at most 30 % (linear), or is not"
    return _judge_reported("4", "H4 additivity", rule, h4, _labelled_text(h4))


def trends_reported(h5: Judgement, h6: Judgement) -> Judgement:
    """5: sign and magnitude of the TTFT tax along the input length and the TPOT tax along the output length."""
    rule = "tax_ttft_p90 along the input length and tax_tpot_p90 along the output length: sign and magnitude reported"
    parts = [_judge_reported("5", "H5 and H6 directional", rule, verdict, verdict.reason) for verdict in (h5, h6)]
    worse = (Outcome.FAILS, Outcome.UNDECIDED)
    worst = next((one for one in worse if any(part.outcome == one for part in parts)), Outcome.HOLDS)
    return Judgement(
        name="5",
        claim="H5 and H6 directional",
        rule=rule,
        outcome=worst,
        numbers={"H5, per doubling": h5.measured, "H6, per doubling": h6.measured},
        reason="; ".join(f"{verdict.name}: {part.reason}" for verdict, part in zip((h5, h6), parts, strict=True)),
    )


def artifacts_present(
    rows: Sequence[ManifestRow], decisions: Mapping[str, PreflightDecision], gaps: Sequence[Gap], planned: bool
) -> Judgement:
    """6: every config that ran has its artifacts, every other one a reason in preflight_status.json.

    `gaps`: everything the run lacks; `planned`: its plan could be read.
    """
    lacking = [f"{gap.artifact} {gap.reason}" for gap in gaps if gap.artifact != "plan.json"]
    lacking += [f"{row.config} did not run and no pre-flight says why" for row in rows if row.status == NOT_RUN]
    lacking += [f"{row.config} was skipped without a reason" for row in rows if _is_unexplained(row, decisions)]
    counts = {status: sum(row.status == status for row in rows) for status in (RAN, SKIP)}
    if lacking:
        outcome, reason = Outcome.FAILS, list_some(lacking, most=3)
    elif not planned or not rows:
        outcome, reason = Outcome.OPEN, "the plan cannot be read: which configs should have run is not known"
    else:
        outcome = Outcome.HOLDS
        reason = f"{counts[RAN]} configs ran and lack nothing; {counts[SKIP]} were skipped, each with its reason"
    return Judgement(
        name="6",
        claim="All artifacts present",
        rule="every config that ran has config, launch script, logs, environment, and for each cell requests, metrics, "
        "record and (where steps were timed) steps, whole as checksummed; every other config has its reason",
        outcome=outcome,
        measured=Estimate(float(len(lacking))),
        quantity="missing artifacts and reasons",
        numbers={
            "configs that ran": Estimate(float(counts[RAN])),
            "configs skipped": Estimate(float(counts[SKIP])),
        },
        reason=reason,
    )


def _is_unexplained(row: ManifestRow, decisions: Mapping[str, PreflightDecision]) -> bool:
    decision = decisions.get(row.config)
    return row.status == SKIP and (decision is None or not decision.reason)


def wall_clock(span_h: Estimate, trials: int, whole: bool) -> Judgement:
    """7: one pass over Phase A, Phase B and B' takes less than six hours.

    `span_h`: hours from the first cell's start to the last cell's end; `trials`: passes in it; `whole`: every planned
    cell was measured.
    """
    each = None if span_h.value is None else span_h.value / trials
    if each is None:
        outcome, reason = Outcome.OPEN, span_h.reason or "not known"
    elif each >= WITHIN_H:
        outcome, reason = Outcome.FAILS, f"{each:.2f} h a pass"
    elif not whole:
        outcome, reason = Outcome.UNDECIDED, f"{each:.2f} h a pass so far, and not every planned cell was measured"
    else:
        outcome, reason = Outcome.HOLDS, f"{each:.2f} h a pass"
    return Judgement(
        name="7",
        claim=f"Finishes within {WITHIN_H:g} h",
        rule=f"Phase A, B and B' from the first cell's start to the last cell's end, pauses included, divided by the "
        f"number of trials, take less than {WITHIN_H:g} h",
        outcome=outcome,
        measured=span_h if each is None else Estimate(each),
        quantity="hours per trial",
        numbers={"wall clock, h": span_h, "trials": Estimate(float(trials))},
        reason=reason,
    )


def _labelled_text(verdict: Judgement) -> str:
    return f"{verdict.label}: {verdict.reason}" if verdict.label else ""


def _judge_reported(name: str, claim: str, rule: str, verdict: Judgement, answer: str) -> Judgement:
    """FAILS where a number it needs is missing, UNDECIDED where `answer` is empty or no verdict may rest on it."""
    measured = verdict.measured
    missing = next((number for number in verdict.numbers.values() or (measured,) if number.value is None), None)
    if missing is not None:
        outcome, reason = Outcome.FAILS, missing.reason or "not measured"
    elif withheld(measured) or not answer:
        outcome, reason = Outcome.UNDECIDED, verdict.reason
    else:
        outcome, reason = Outcome.HOLDS, answer
    return Judgement(name, claim, rule, outcome, reason, measured, verdict.numbers, verdict.quantity)

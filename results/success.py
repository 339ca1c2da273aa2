"""The success criteria of specs/connector_tax: whether the run answers what it was made for.

Criteria 1 to 5 ask that an answer can be given, not that it is the expected one: *met* where the interval tells,
*undecided* where the number is there and the interval does not tell, *not met* where the number is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from results.facts import Decision
from results.load import Gap
from results.manifest import NOT_RUN, RAN, SKIP, ManifestRow
from results.statistics import Estimate
from results.verdicts import HypothesisVerdict

WITHIN_H = 6.0
"""Criterion 7."""
_NAMED = 3
"""So many things are named, the rest counted."""


class Met(StrEnum):
    """Whether a success criterion is met."""

    YES = "met"
    NO = "not met"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class SuccessCriterion:
    """One success criterion, evaluated."""

    number: int
    title: str
    rule: str
    outcome: Met
    numbers: Mapping[str, Estimate]
    reason: str
    """Why this outcome, in numbers."""


def tax_reported(h1: HypothesisVerdict) -> SuccessCriterion:
    """1: tax_ttft_p90(mooncake_both, ref_safe) is reported, and with it whether the prior is accepted or revised."""
    rule = "tax_ttft_p90(mooncake_both) at ref_safe is reported with its interval; the prior is accepted or revised"
    return _reported(1, "H1 falsifiable", rule, h1, f"{h1.measured.percent()}; prior {h1.prior}")


def gap_reported(h2: HypothesisVerdict) -> SuccessCriterion:
    """2: the gap between NIXL and Mooncake at ref_safe is reported, and whether it agrees with the trace replay."""
    rule = "tax(mooncake_both) - tax(nixl_both) at ref_safe is reported with its interval, beside the trace replay's"
    return _reported(2, "H2 testable", rule, h2, f"{h2.measured.points()}; {h2.prior}")


def cost_labelled(h3: HypothesisVerdict) -> SuccessCriterion:
    """3: noop_connector's tax is reported and the tax of mooncake_both is labelled by the cost that dominates it."""
    rule = "tax(noop_connector) at ref_safe is reported and its share of tax(mooncake_both) gives a label"
    return _reported(3, "H3 disambiguated", rule, h3, _labelled(h3))


def additivity_told(h4: HypothesisVerdict) -> SuccessCriterion:
    """4: whether the stacked connectors' taxes add up is told."""
    rule = "|tax(multi) - (tax(mooncake_both) + tax(lmcache_only))| / tax(multi) is at most 30 % (linear), or is not"
    return _reported(4, "H4 additivity", rule, h4, _labelled(h4))


def trends_reported(h5: HypothesisVerdict, h6: HypothesisVerdict) -> SuccessCriterion:
    """5: sign and magnitude of the TTFT tax along the input length and the TPOT tax along the output length."""
    rule = "tax_ttft_p90 along the input length and tax_tpot_p90 along the output length: sign and magnitude reported"
    parts = [_reported(5, "H5 and H6 directional", rule, verdict, verdict.reason) for verdict in (h5, h6)]
    worst = next((met for met in (Met.NO, Met.UNDECIDED) if any(part.outcome == met for part in parts)), Met.YES)
    return SuccessCriterion(
        number=5,
        title="H5 and H6 directional",
        rule=rule,
        outcome=worst,
        numbers={"H5, per doubling": h5.measured, "H6, per doubling": h6.measured},
        reason="; ".join(f"{verdict.name}: {part.reason}" for verdict, part in zip((h5, h6), parts, strict=True)),
    )


def artifacts_present(
    rows: Sequence[ManifestRow], decisions: Mapping[str, Decision], gaps: Sequence[Gap], planned: bool
) -> SuccessCriterion:
    """6: every config that ran has its artifacts, every other one a reason in preflight_status.json.

    `gaps`: everything the run lacks; `planned`: its plan could be read.
    """
    lacking = [f"{gap.artifact} {gap.reason}" for gap in gaps if gap.artifact != "plan.json"]
    lacking += [f"{row.config} did not run and no pre-flight says why" for row in rows if row.status == NOT_RUN]
    lacking += [f"{row.config} was skipped without a reason" for row in rows if _unexplained(row, decisions)]
    counts = {status: sum(row.status == status for row in rows) for status in (RAN, SKIP)}
    if lacking:
        more = f"; and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        outcome, reason = Met.NO, "; ".join(lacking[:_NAMED]) + more
    elif not planned or not rows:
        outcome, reason = Met.UNDECIDED, "the plan cannot be read: which configs should have run is not known"
    else:
        outcome = Met.YES
        reason = f"{counts[RAN]} configs ran and lack nothing; {counts[SKIP]} were skipped, each with its reason"
    return SuccessCriterion(
        number=6,
        title="All artifacts present",
        rule="every config that ran has config, launch script, logs, environment, and for each cell requests, metrics, "
        "record and (where steps were timed) steps, whole as checksummed; every other config has its reason",
        outcome=outcome,
        numbers={
            "configs that ran": Estimate(float(counts[RAN])),
            "configs skipped": Estimate(float(counts[SKIP])),
            "lacking": Estimate(float(len(lacking))),
        },
        reason=reason,
    )


def _unexplained(row: ManifestRow, decisions: Mapping[str, Decision]) -> bool:
    decision = decisions.get(row.config)
    return row.status == SKIP and (decision is None or not decision.reason)


def wall_clock(span_h: Estimate, trials: int, whole: bool) -> SuccessCriterion:
    """7: one pass over Phase A, Phase B and B' takes less than six hours.

    `span_h`: hours from the first cell's start to the last cell's end; `trials`: passes in it; `whole`: every planned
    cell was measured.
    """
    each = None if span_h.value is None else span_h.value / trials
    if each is None:
        outcome, reason = Met.UNDECIDED, span_h.reason or "not known"
    elif each >= WITHIN_H:
        outcome, reason = Met.NO, f"{each:.2f} h a pass"
    elif not whole:
        outcome, reason = Met.UNDECIDED, f"{each:.2f} h a pass so far, and not every planned cell was measured"
    else:
        outcome, reason = Met.YES, f"{each:.2f} h a pass"
    return SuccessCriterion(
        number=7,
        title=f"Finishes within {WITHIN_H:g} h",
        rule=f"Phase A, B and B' from the first cell's start to the last cell's end, pauses included, divided by the "
        f"number of trials, take less than {WITHIN_H:g} h",
        outcome=outcome,
        numbers={"wall clock, h": span_h, "trials": Estimate(float(trials))},
        reason=reason,
    )


def _labelled(verdict: HypothesisVerdict) -> str:
    return f"{verdict.label}: {verdict.reason}" if verdict.label else ""


def _reported(number: int, title: str, rule: str, verdict: HypothesisVerdict, told: str) -> SuccessCriterion:
    """Not met where a number it needs is missing, undecided where `told` is empty or there is no interval."""
    found = verdict.measured
    missing = next((number for number in verdict.numbers.values() or (found,) if number.value is None), None)
    if missing is not None:
        outcome, reason = Met.NO, missing.reason or "not measured"
    elif found.low is None or found.high is None or not told:
        outcome, reason = Met.UNDECIDED, verdict.reason
    else:
        outcome, reason = Met.YES, told
    return SuccessCriterion(number, title, rule, outcome, {verdict.quantity: found, **verdict.numbers}, reason)

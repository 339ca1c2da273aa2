"""A pd-lifecycle run on one page: where a request's time goes, what a transfer costs, when disaggregation pays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from results.pd_lifecycle import figures
from results.pd_lifecycle.analyze import LifecycleAnalysis
from results.pd_lifecycle.overheads import HANDOVER_ARM, NAMED_EFFECT, GridOverhead, OverheadCell
from results.records.count import format_count
from results.records.estimate import Estimate, figure
from results.records.percent import format_percent
from results.report.document import describe_engine
from results.report.page import Page, PageAnswer, fit_page, split_judgements
from results.statistics.blocks import MAX_PLANNED_LAUNCHES
from results.statistics.judgement import Judgement, Outcome, explain_few_launches
from results.statistics.trials import MIN_PAIRED

QUESTION = (
    "Where does a request's time go when one instance prefills and another decodes, and when is that faster than one "
    "combined instance?"
)
SHOWN = {"p_prefill": "prefill", "transfer_total": "move", "rdma_transfer": "of it the write", "client_ttft": "TTFT"}
_ABOUT_OVERHEAD = ("4", "5")
"""Criteria beside the figure of the overhead; the others stand beside that of the phases."""
_OF_TIMES = ("2", "3", "5")
"""Criteria that launches decide; the others are counted."""
_MISSING = {
    "2": "new_tokens=[4096,8192]",
    "3": "new_tokens=[512,2048,8192]",
    "4": "prior_context=[0,2048]",
    "5": "baseline=true",
}
"""The setting with which an open criterion has a number."""


def build_page(analysis: LifecycleAnalysis) -> Page:
    """A number that is missing is shown as missing."""
    beside = {
        number: [
            replace(one, name=f"Criterion {one.name}")
            for one in analysis.criteria
            if (one.name.split()[0] in _ABOUT_OVERHEAD) == (number == figures.OVERHEAD)
        ]
        for number in (figures.BREAKDOWN, figures.OVERHEAD)
    }
    split = {number: split_judgements(own, partial(_find_remedy, analysis), number) for number, own in beside.items()}
    page = Page(
        question=QUESTION,
        setting=_describe_setting(analysis),
        noise=_describe_noise(analysis),
        answers=(
            *_answer_phases(analysis),
            *_answer_cost(analysis),
            *split[figures.BREAKDOWN][0],
            *_answer_overhead(analysis, analysis.plain_overheads),
            *_answer_overhead(analysis, analysis.overheads),
            *split[figures.OVERHEAD][0],
        ),
        undecided=(*split[figures.BREAKDOWN][1], *split[figures.OVERHEAD][1]),
        trouble=_list_trouble(analysis),
    )
    return fit_page(page)


def _find_remedy(analysis: LifecycleAnalysis, judgement: Judgement) -> str:
    """A command that measures what the criterion lacks."""
    number, launches = judgement.name.split()[1], analysis.launches
    facts = analysis.facts
    completed = _complete_launches(analysis)
    if completed and (not analysis.counted or (number in _OF_TIMES and launches < MIN_PAIRED)):
        return completed
    again = f"tracon run pd-lifecycle --profile {facts.profile or 'cpu-tiny'}"
    again += f" --preset {facts.preset}" if facts.preset else ""
    if judgement.outcome == Outcome.OPEN:
        missing = f" --set {_MISSING[number]}" if analysis.counted and number in _MISSING else ""
        return f"`{again}{missing} --trials {max(launches, MIN_PAIRED)}`"
    if number not in _OF_TIMES:
        return f"`{again}`, with probes and a model folder that report what the sentence names as missing"
    if launches < MIN_PAIRED:
        return f"`{again} --trials {MIN_PAIRED}`"
    trials = max(2 * launches, _plan_launches(analysis) or 0)
    more = completed or f"more launches (`{again} --trials {trials}`)"
    if number != "5":
        return more
    further = "a grid that reaches further (`--set new_tokens=[...]`)"
    cells = analysis.plain_overheads if judgement.name.endswith("plain") else analysis.overheads
    return further if all(cell.sign is not None for cell in cells) else f"{more}, or {further}"


def _complete_launches(analysis: LifecycleAnalysis) -> str:
    """What measures the cells that the run has not, where its plan has enough launches for a verdict; else empty."""
    if not analysis.pending or len({one.trial for one in analysis.planned}) < MIN_PAIRED:
        return ""
    cells = format_count(len(analysis.pending), "planned cell", "planned cells")
    return f"`tracon resume {analysis.facts.run}` ({cells} not measured yet)"


def _describe_setting(analysis: LifecycleAnalysis) -> tuple[str, ...]:
    facts = analysis.facts
    transport = f" over {' and '.join(analysis.transports)}" if analysis.transports else ""
    scope = " The durations do not apply to a GPU." if facts.engine_kind == "cpu" else ""
    few = analysis.launches < MIN_PAIRED
    brackets = "the 95 % spread within the launch" if few else "95 % intervals over launches"
    return (
        f"{facts.label}{describe_engine(facts)}{transport}.{scope}",
        f"{len(analysis.compared)} requests of {len(analysis.configs)} configurations (C tokens of prior context, "
        f"N new ones, O generated), one at a time on idle instances. Brackets hold {brackets}. "
        f"{figures.describe_link(analysis)}",
    )


def _describe_noise(analysis: LifecycleAnalysis) -> str:
    few = explain_few_launches(analysis.launches, "engine", "repetitions follow one another on the same engines")
    if few:
        return f"Noise floor: what two launches differ by is not known ({few})."
    over = _find_spread(analysis)
    if over is None or over.spread is None:
        return "Noise floor: what two launches differ by is not known (no TTFT was compared in every launch)."
    spread = over.spread
    sigma, low, high = (figure(100 * math.expm1(one), 2) for one in (spread.sigma, spread.low, spread.high))
    count = _plan_launches(analysis)
    needed = f"More than {MAX_PLANNED_LAUNCHES} launches" if count is None else f"{count} launches (`--trials {count}`)"
    return (
        f"Noise floor: a launch differs from its (C, N) by a sigma of {sigma} % [{low}, {high}] in the TTFT of the "
        f"{over.arm} over the {over.baseline} ({figure(spread.degrees, 2)} degrees of freedom). {needed} detect a "
        f"difference of {format_percent(NAMED_EFFECT)} at one (C, N), all {spread.sizes} judged together."
    )


def _find_spread(analysis: LifecycleAnalysis) -> GridOverhead | None:
    return next((one for one in analysis.grid_overheads if one.spread is not None), None)


def _plan_launches(analysis: LifecycleAnalysis) -> int | None:
    """For NAMED_EFFECT; None where it cannot be planned."""
    over = _find_spread(analysis)
    return None if over is None or over.spread is None else over.spread.plan_launches(math.log1p(NAMED_EFFECT))


def _answer_phases(analysis: LifecycleAnalysis) -> Iterator[PageAnswer]:
    """The phases of the largest request, for which the move is longest."""
    if not analysis.configs:
        return
    row = max(analysis.configs, key=lambda one: (one.config.current_new_tokens, one.config.prior_context))
    known = [(title, row.value(name)) for name, title in SHOWN.items() if row.value(name).value is not None]
    if known:
        at = f"C = {row.config.prior_context}, N = {row.config.current_new_tokens}, O = {row.config.output_length}"
        parts = ", ".join(f"{title} {_format_ms(value)}" for title, value in known)
        yield PageAnswer("Largest request", "", f"at {at}: {parts}.", figures.BREAKDOWN)


def _answer_cost(analysis: LifecycleAnalysis) -> Iterator[PageAnswer]:
    alpha, beta = analysis.costs.relative.alpha_ms, analysis.costs.relative.beta_ms_per_mb
    if alpha.value is not None and beta.value is not None:
        text = f"a write takes {_format_ms(alpha)} plus {_format_ms(beta)} per 10^6 bytes."
        yield PageAnswer("Cost of a transfer", "", text, figures.BREAKDOWN)


def _answer_overhead(analysis: LifecycleAnalysis, cells: Sequence[OverheadCell]) -> Iterator[PageAnswer]:
    """The median over the (C, N), and the extremes as what they are: chosen from all, each with its own interval."""
    known = [cell for cell in cells if cell.overhead_ms.value is not None]
    if not known:
        return
    least, most = (choose(known, key=lambda cell: cell.overhead_ms.value or 0.0) for choose in (min, max))
    ends = ", ".join(f"{name} {_describe_end(cell)}" for name, cell in (("the least", least), ("the most", most)))
    slower, faster = (sum(cell.sign == sign for cell in known) for sign in (1, -1))
    few = "this launch" if analysis.launches == 1 else "these launches"
    within = "" if analysis.launches >= MIN_PAIRED else f" within {few}"
    compared = (HANDOVER_ARM, most.baseline)
    over = next((one for one in analysis.grid_overheads if (one.arm, one.baseline) == compared), None)
    median = "" if over is None else f"median over {over.sizes} (C, N) {_format_change(over.median)}; "
    text = (
        f"{median}slower at {slower} and faster at {faster} of {len(known)} (C, N){within}. Extremes of {len(known)}, "
        f"chosen by value and so further out than the truth: {ends}."
    )
    yield PageAnswer(f"TTFT over that of the {most.baseline}", "", text, figures.OVERHEAD)


def _describe_end(cell: OverheadCell) -> str:
    return f"{_format_ms(cell.overhead_ms)} at C = {cell.prior_context}, N = {cell.new_tokens}"


def _format_change(change: Estimate) -> str:
    return change.percent() if change.low is not None else f"{change.percent()} (no interval: {change.reason})"


def _format_ms(estimate: Estimate) -> str:
    why = "" if estimate.low is not None else f" (no interval: {estimate.reason or 'one repetition'})"
    return f"{estimate.text(3)} ms{why}"


def _list_trouble(analysis: LifecycleAnalysis) -> str:
    parts = []
    if analysis.discards:
        parts.append(f"{len(analysis.discards)} requests discarded")
    if analysis.gaps:
        parts.append(f"{len(analysis.gaps)} gaps: {analysis.gaps[0].artifact} {analysis.gaps[0].reason}")
    if not analysis.counted:
        parts.append("no request counts")
    return "; ".join(parts)

"""A routing run on one page: who is best on each headline metric, and what the claims and decision points come to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from results.records.count import format_count
from results.records.estimate import figure
from results.records.percent import format_percent
from results.report.document import describe_engine
from results.report.engine_gates import describe_gates
from results.report.page import OpenQuestion, Page, PageAnswer, fit_page, split_judgements
from results.routing.analyze import RoutingAnalysis
from results.routing.cautions import explain_no_verdict, find_stalls
from results.routing.launch_noise import NAMED_EFFECT, Noise, fit_noise, plan_trials
from results.routing.loads import join_load, strip_load
from results.routing.metrics import find_metric
from results.routing.pairs import Standing
from results.routing.verdicts import TRANSFER
from results.statistics.blocks import TO_HALVE
from results.statistics.judgement import Judgement, Outcome, explain_few_launches, list_some
from results.statistics.trials import MIN_PAIRED

MOST_NAMED = 4
"""Policies in parentheses."""
HEADLINE_FIGURE, APC_FIGURE, ABLATION_FIGURE, CONDITIONAL_FIGURE = 6, 2, 8, 15


def build_page(analysis: RoutingAnalysis) -> Page:
    """A number that is missing is shown as missing."""
    noise = fit_noise(analysis)
    remedy = _describe_remedy(analysis, noise)
    ranked, unranked = _rank_metrics(analysis, remedy)
    judged, open_claims = _judge_claims(analysis, remedy)
    page = Page(
        question=_ask(analysis),
        setting=_describe_setting(analysis),
        noise=_describe_noise(analysis, noise),
        answers=(*ranked, *judged, *_summarize_conditional(analysis)),
        undecided=(*open_claims, *unranked),
        trouble=_list_trouble(analysis),
    )
    return fit_page(page)


def _ask(analysis: RoutingAnalysis) -> str:
    simulated = "SIMULATED, nothing here was measured. " if analysis.facts.simulated else ""
    parts = [f"{simulated}Which policy serves these sessions best"]
    if analysis.claims:
        parts.append("what does EAR gain by affinity and by migration")
    if analysis.floor is not None:
        parts.append("does a load floor spread new sessions without giving up cached prefixes")
    return f"{', and '.join(parts)}?"


def _describe_setting(analysis: RoutingAnalysis) -> tuple[str, ...]:
    facts = analysis.facts
    few = explain_no_verdict(analysis.trials)
    brackets = "the 95 % spread of resampled sessions, on which no verdict rests" if few else "95 % intervals"
    scope = " Instances, router and client share its cores: the sizes say nothing about a GPU."
    return (
        f"{facts.label}{describe_engine(facts)}.{scope if facts.engine_kind == 'cpu' else ''}",
        f"{_count_policies(analysis)}, at most {analysis.trials} trials each, {len(analysis.cells)} cells; trace "
        f"{analysis.trace.get('file') or 'generated'}: {analysis.trace_sizes or 'sizes not stated'}. Brackets hold "
        f"{brackets}.",
        *(() if analysis.engine_gates is None else (describe_gates(analysis.engine_gates),)),
    )


def _count_policies(analysis: RoutingAnalysis) -> str:
    policies = format_count(len({strip_load(label) for label in analysis.labels}), "policy", "policies")
    return f"{policies} at {len(analysis.loads)} loads" if len(analysis.loads) > 1 else policies


def _describe_noise(analysis: RoutingAnalysis, noise: Noise | str) -> str:
    if isinstance(noise, str):
        return f"Noise floor: what two launches of one policy differ by is not known ({noise})."
    sentence = "Every trial replays the same sessions."
    if analysis.trials_differ:
        sentence = "Each trial replays a trace of its own."
    what = "a simulated trial" if analysis.facts.simulated else "a launch"
    sigma, low, high = (figure(100 * math.expm1(one), 2) for one in (noise.sigma, noise.low, noise.high))
    apart = f" Not in it, because they vary significantly more: {list_some(noise.noisy)}." if noise.noisy else ""
    count = _plan_trials(analysis, noise)
    needed = "More trials than can be planned" if count is None else f"{count} trials"
    return (
        f"Noise floor: {what} differs from its policy by a sigma of {sigma} % [{low}, {high}] in TTFT p90 "
        f"({noise.degrees} degrees of freedom), with the trial's own level taken out.{apart} "
        f"{sentence} {needed} tell two policies apart that differ by {format_percent(NAMED_EFFECT)}."
    )


def _plan_trials(analysis: RoutingAnalysis, noise: Noise) -> int | None:
    return plan_trials(noise.sigma, max(len(load.labels) for load in analysis.loads))


def _rank_metrics(analysis: RoutingAnalysis, remedy: str) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    """An answer where one policy is better than every other, or one for all where the run ranks none."""
    if not analysis.standings:
        return [], []
    if explain_no_verdict(analysis.trials) or len(analysis.labels) < 2:
        return _leave_unranked(analysis, remedy)
    if len(analysis.loads) > 1:
        return _rank_under_loads(analysis, remedy)
    answers, questions = [_answer_overall(analysis.standings, "Best policy")], list[OpenQuestion]()
    for row in analysis.standings:
        text = f"{_describe_best(row)}; {_describe_behind(row)}."
        if row.alone:
            answers.append(PageAnswer(row.title, "decided", text, HEADLINE_FIGURE))
        else:
            questions.append(OpenQuestion(row.title, text, remedy, HEADLINE_FIGURE))
    return answers, questions


def _leave_unranked(analysis: RoutingAnalysis, remedy: str) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    """What was measured in one sentence: a run that ranks no policy has no answer per metric."""
    shown = [f"{row.title} {row.best} {_describe_value(row)}" for row in analysis.standings]
    answer = PageAnswer("Best of this run", "no verdict", f"{'; '.join(shown)}.", HEADLINE_FIGURE)
    why = explain_few_launches(analysis.trials, "policy").partition(";")[0] or "one policy was measured"
    return [answer], [OpenQuestion("Which policy is best", f"no policy is ranked: {why}.", remedy, HEADLINE_FIGURE)]


def _rank_under_loads(analysis: RoutingAnalysis, remedy: str) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    """An answer per load: the table has every metric of each."""
    answers, questions = list[PageAnswer](), list[OpenQuestion]()
    for load in analysis.loads:
        rows = [row for row in analysis.standings if row.load == load.text]
        answer = _answer_overall(rows, join_load("Best policy", load.text))
        if any(row.alone for row in rows):
            answers.append(answer)
        else:
            questions.append(OpenQuestion(answer.name, answer.text, remedy, HEADLINE_FIGURE))
    return answers, questions


def _answer_overall(rows: Sequence[Standing], name: str) -> PageAnswer:
    """`rows`: those under one load, or of a run that has one."""
    alone = [row for row in rows if row.alone]
    unjudged = sum(len(row.unjudged) for row in rows)
    behind = sum(len(row.behind) for row in rows)
    which = f"on {len(alone) or 'none'} of {len(rows)} metrics"
    if alone and alone[0].load:
        which += f" ({'; '.join(f'{find_metric(row.metric).title}: {row.best}' for row in alone)})"
    without = f" ({unjudged} have no interval and count as not distinguishable)" if unjudged else ""
    text = (
        f"{which} one policy is distinguishably better than every other; distinguishable: {behind} of "
        f"{sum(row.others for row in rows)} comparisons with the best, by intervals that hold for all policies of a "
        f"metric together{without}.{_name_those_behind(rows)}"
    )
    return PageAnswer(name, "decided" if len(alone) == len(rows) else "undecided", text, HEADLINE_FIGURE)


def _name_those_behind(rows: Sequence[Standing]) -> str:
    """The policies that are out of the question on most metrics, or empty."""
    counts = Counter(label for row in rows for label in row.behind)
    most = [f"{label} (on {count})" for label, count in counts.most_common(MOST_NAMED) if 2 * count > len(rows)]
    return f" Worse than the best on most metrics: {', '.join(most)}." if most else ""


def _describe_best(row: Standing) -> str:
    metric = find_metric(row.metric)
    value = metric.format_value(row.value)
    if row.value.low is None:
        value += f" (no interval: {row.value.reason or 'one number per trial'})"
    return f"{'highest' if metric.higher_is_better else 'lowest'} under {row.best}, {value}"


def _describe_behind(row: Standing) -> str:
    """How many others are distinguishably worse; names them, or those that are not, where they are few."""
    text = f"distinguishably better than {len(row.behind)} of {row.others} others"
    rest = (*row.level, *row.unjudged)
    if row.behind and rest and len(rest) < len(row.behind):
        return f"{text} (not than {', '.join(rest)})" if len(rest) <= MOST_NAMED else text
    return f"{text} ({', '.join(row.behind)})" if 0 < len(row.behind) <= MOST_NAMED else text


def _describe_value(row: Standing) -> str:
    """Without its spread, which the table beside it shows."""
    return find_metric(row.metric).format_value(replace(row.value, low=None, high=None))


def _describe_remedy(analysis: RoutingAnalysis, noise: Noise | str) -> str:
    """What would distinguish policies that this run does not."""
    if all(len(load.labels) < 2 for load in analysis.loads):
        return "a run with several policies"
    if isinstance(noise, str):
        return f"at least {MIN_PAIRED} trials per policy (`--trials N`)"
    count = _plan_trials(analysis, noise)
    if count is None:
        where = "at a load that overloads fewer policies" if analysis.facts.simulated else "on a host with less noise"
        return f"more trials {where}: {format_percent(NAMED_EFFECT)} cannot be planned"
    if count <= analysis.trials:
        return f"{_halve_intervals(analysis.trials)}, or a load or trace under which the policies differ by more"
    return (
        f"{count} trials per policy (`--trials {count}`), which tell two policies apart that differ by "
        f"{format_percent(NAMED_EFFECT)}"
    )


def _halve_intervals(trials: int) -> str:
    more = TO_HALVE * trials
    return f"{more} trials per policy (`--trials {more}`), which about halve an interval"


def _judge_claims(analysis: RoutingAnalysis, remedy: str) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    ablation = sum(bool(row.label) for row in analysis.ablation) > 1

    def find_remedy(judgement: Judgement) -> str:
        if judgement.outcome == Outcome.OPEN:
            return judgement.needs or "a run that measures what each sentence names as missing"
        return remedy if analysis.trials < MIN_PAIRED else _halve_intervals(analysis.trials)

    supports = ABLATION_FIGURE if ablation else APC_FIGURE
    figure = CONDITIONAL_FIGURE if analysis.conditional else supports
    return split_judgements(_join_transfers(analysis.judgements), find_remedy, figure)


def _join_transfers(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Join policies whose claims about transfers have one outcome: the first, with the number of the others.

    A claim that an arm which recomputes decides stays by itself: it names that arm.
    """
    alike = Counter((one.claim, one.outcome) for one in judgements if one.name.startswith(TRANSFER))
    joined = list[Judgement]()
    for one in judgements:
        if not one.name.startswith(TRANSFER):
            joined.append(one)
        elif count := alike.pop((one.claim, one.outcome), 0):
            others = format_count(count - 1, "other policy", "other policies")
            name = f"{one.name}, and {others} (in the appendix)" if count > 1 else one.name
            joined.append(replace(one, name=name))
    return joined


def _summarize_conditional(analysis: RoutingAnalysis) -> list[PageAnswer]:
    """Which claims and decision points depend on a coefficient of the engine model."""
    if not analysis.conditional:
        return []
    flipping = [f"{one.claim.name}: {one.verdict}" for one in analysis.conditional if one.conditional_on]
    count = len(analysis.conditional[0].outcomes)
    named = f": {'; '.join(flipping)}" if flipping else ""
    judged = f"{len(analysis.conditional)} claims{' and decision points' if analysis.decision_points else ''}"
    text = f"{len(flipping)} of {judged} turn into their opposite under a variation, or from one to another"
    return [PageAnswer("Engine model", "", f"{text} (of {count}){named}.", CONDITIONAL_FIGURE)]


def _list_trouble(analysis: RoutingAnalysis) -> str:
    parts = [f"stalled: {stall.label} in trial {stall.trial}" for stall in find_stalls(analysis.cells)]
    if analysis.degraded:
        parts.append(f"{len(analysis.degraded)} degraded cells take no part")
    if analysis.gaps:
        parts.append(f"{len(analysis.gaps)} gaps: {analysis.gaps[0].artifact} {analysis.gaps[0].reason}")
    if not analysis.cells:
        parts.append("no cell was measured")
    return "; ".join(parts)

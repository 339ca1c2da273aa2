"""A connector-tax run on one page: the noise floor, each config's tax, the hypotheses, the reference rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from results.connector_tax.analyze import Analysis
from results.connector_tax.attribution import Attribution, Cause
from results.connector_tax.capacity import list_sustained
from results.connector_tax.configs import BASELINE, CONFIGS, REPEAT, rank_config
from results.connector_tax.launch_noise import NAMED_TAX, LaunchNoise
from results.connector_tax.launches import count_planned, describe_launches, describe_time
from results.connector_tax.remedies import count_for_named, find_remedy, show_percent
from results.connector_tax.slo import Slo
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import RATIOS, TITLES, Metric, TaxRow
from results.records.estimate import Estimate, figure
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE
from results.report.page import OpenQuestion, Page, PageAnswer, cut_text, fit_page, split_judgements
from results.statistics.blocks import MAX_PLANNED_LAUNCHES, POWER
from results.statistics.judgement import (
    Outcome,
    Verdict,
    explain_few_launches,
    find_excluded_above,
    judged,
    list_some,
    name_remedy,
)
from results.statistics.trials import MIN_PAIRED

LATENCIES = {metric: TITLES[metric] for metric in RATIOS}
NO_VERDICT = "no verdict"
UNDECIDED = "undecided"
TAXES, RATES = 4, 1
"""The figures beside the answers."""
WORTH_NAMING = 0.9
"""The page names sigma without the host's speed where it is below this share of sigma."""
MOST_SLOW = 0.05
"""The page names the share of seconds under load with a slow core above this."""
MOST_LATE = 0.1
"""The page counts a cell whose client's lateness at p90 is above this share of its TTFT p90."""
SAME_SUM = 0.01
"""The page names the hooks' sum with `wait_for_save` where it differs by more than this share."""
MOST_CHANGES = 2
"""Settings that vLLM changed for a config, as the page names them."""
CAUSES = {
    Cause.CALLBACKS: "hooks may account for it: up to {reach} of a step",
    Cause.CHANGES: "outside its hooks' {reach} of a step; vLLM changed the engine",
    Cause.NOT_ATTRIBUTABLE: "not attributable: outside its hooks' {reach} of a step, vLLM changed nothing",
    Cause.UNDECIDED: "cause undecided",
    Cause.OPEN: "cause open",
}
"""Cause of a distinguishable tax. `reach`: the largest share of plain's step that the hooks take."""
WHOLE = "full"
"""The preset with all rates and shapes, the default of a run."""
QUESTION = (
    "What does a KV connector cost: by how much do TTFT p90 and TPOT p90 of each config exceed those of "
    f"{BASELINE} under the same load?"
)


def build_page(analysis: Analysis) -> Page:
    rows = [row for row in analysis.taxes if (row.phase, row.reference) == ("A", REF_SAFE)]
    configs = sorted({row.config for row in rows}, key=rank_config)
    causes = [one for one in analysis.attribution if (one.row.phase, one.row.reference) == ("A", REF_SAFE)]
    judged, questions = _judge_hypotheses(analysis)
    page = Page(
        question=QUESTION,
        setting=_describe_setting(analysis, rows),
        noise=_describe_noise(analysis),
        answers=(
            *(_answer_config(config, rows, causes) for config in configs),
            *judged,
            *_answer_rates(analysis),
            *_answer_capacity(analysis),
        ),
        undecided=tuple(questions),
        trouble=_list_trouble(analysis),
        again=None
        if _is_whole(analysis)
        else (_name_full_run(analysis), "all configs, rates and shapes, with verdicts"),
    )
    return fit_page(page)


def _is_whole(analysis: Analysis) -> bool:
    """Whether the run has all configs, rates and shapes, and enough launches for verdicts."""
    facts = analysis.facts
    return facts.preset == WHOLE and set(CONFIGS) <= set(facts.configs) and analysis.launches >= MIN_PAIRED


def _name_full_run(analysis: Analysis) -> str:
    return f"tracon run connector-tax --profile {analysis.facts.profile or 'cpu-tiny'} --trials {MIN_PAIRED}"


def _describe_setting(analysis: Analysis, rows: Sequence[TaxRow]) -> tuple[str, ...]:
    facts = analysis.facts
    where = {"cpu": "CPU build of vLLM", "cuda": "GPU"}.get(facts.engine_kind, "engine not known")
    version = f" {facts.versions['vllm']}" if "vllm" in facts.versions else ""
    host = f", {facts.host}" if facts.host else ""
    row = next(iter(rows), None)
    load = f"no tax: {analysis.rates.explain_rate(REF_SAFE)}"
    if row is not None:
        tokens = f"{row.shape.input_tokens} tokens in, {row.shape.output_tokens} out"
        load = f"taxes at {row.rate_per_s:g} req/s (ref_safe), {tokens}"
    judged = any(row.verdict is not None for row in rows if row.metric in LATENCIES)
    together = (
        "a tax's 95 % interval over launches, for all configs together, per latency and load (hypotheses, hooks and "
        "the noise floor: each by itself)"
    )
    brackets = together if judged else "the 95 % spread within the launch, on which no verdict rests"
    shares = "; a share of a step has none" if rows else ""
    launches = describe_launches(analysis.cells, facts.cells)
    scope = " The sizes hold for this CPU and model, not for a GPU." if facts.engine_kind == "cpu" else ""
    return (
        f"{facts.label}: {where}{version}{host}.{scope}",
        f"{len(analysis.cells)} cells, {launches}; {load}. Brackets hold {brackets}{shares}.",
    )


def _describe_noise(analysis: Analysis) -> str:
    """Sigma of a launch, plain against plain, and the smallest detectable tax."""
    by_metric = {row.metric: row for row in analysis.launch_noise if (row.phase, row.reference) == ("A", REF_SAFE)}
    shown = [(name, by_metric[metric]) for metric, name in LATENCIES.items() if metric in by_metric]
    floor = _describe_repeat(analysis)
    if not shown:
        why = explain_few_launches(analysis.launches) or "no load was measured in several launches"
        return f"Noise floor: what two launches of one config differ by is not known ({why}).{floor}"
    sigmas = ", ".join(f"{name} {_format_sigma(row)}" for name, row in shown)
    smallest = [f"{name} {show_percent(row.detectable)}" for name, row in shown if row.detectable is not None]
    first = shown[0][1]
    shows = ""
    if smallest:
        detected = f"taxes from {', '.join(smallest)} on with a probability of {format_percent(POWER)}"
        shows = f" {first.launches} launches detect {detected}."
    return (
        f"Noise floor: a launch differs from its config by a sigma of {sigmas} ({first.degrees} degrees of freedom, "
        f"chi-square).{_describe_speed(shown)}{shows} {_describe_planned([row for _, row in shown], analysis)}{floor}"
    )


def _describe_speed(shown: Sequence[tuple[str, LaunchNoise]]) -> str:
    """Sigma without the host's speed, where that is much smaller."""
    parts = [
        f"{name} {show_percent(row.sigma_at_one_speed)}"
        for name, row in shown
        if row.sigma_at_one_speed is not None and row.sigma_at_one_speed < WORTH_NAMING * row.sigma
    ]
    return f" On a host of one speed it would be {', '.join(parts)} (descriptive)." if parts else ""


def _format_sigma(row: LaunchNoise) -> str:
    sigma, low, high = (figure(one * 100, 2) for one in (row.sigma, row.sigma_low, row.sigma_high))
    return f"{sigma} % [{low}, {high}]"


def _describe_planned(rows: Sequence[LaunchNoise], analysis: Analysis) -> str:
    needed = count_for_named(rows)
    if needed is None:
        return f"{format_percent(NAMED_TAX)} takes more than {MAX_PLANNED_LAUNCHES} launches."
    return f"{format_percent(NAMED_TAX)} takes {needed} launches per config{describe_time(needed, analysis.cells)}."


def _describe_repeat(analysis: Analysis) -> str:
    rows = [row for row in analysis.noise_floor if (row.phase, row.reference) == ("A", REF_SAFE)]
    known = [
        f"{LATENCIES[row.metric]} {format_fraction(row.estimate)}{_describe_excess(row.estimate)}"
        for row in rows
        if row.metric in LATENCIES and row.estimate.value is not None
    ]
    return f" {REPEAT} against {BASELINE}: {', '.join(known)}." if known else ""


def _describe_excess(repeat: Estimate) -> str:
    """Where the same config seems to differ from itself."""
    differs = judged(repeat) in (Verdict.HIGHER, Verdict.LOWER)
    return " (the same config: as one interval in 20 does by chance)" if differs else ""


def format_fraction(estimate: Estimate) -> str:
    """A fraction as `+12 % [-4, +28]`; below 1 % with a decimal, so that a small one is not shown as none."""
    if estimate.value is None:
        return f"not measured ({estimate.reason})" if estimate.reason else "not measured"
    value = f"{_format_signed(estimate.value)} %"
    if estimate.low is None or estimate.high is None:
        return f"{value} (no interval: {estimate.reason or 'too few samples'})"
    return f"{value} [{_format_signed(estimate.low)}, {_format_signed(estimate.high)}]"


def _format_signed(fraction: float) -> str:
    return f"{fraction * 100:+.0f}" if abs(fraction) >= 0.00995 else f"{fraction * 100:+.1f}"


def _answer_config(config: str, rows: Sequence[TaxRow], causes: Sequence[Attribution]) -> PageAnswer:
    """`rows`, `causes`: of all configs at ref_safe."""
    by_metric = {row.metric: row for row in rows if row.config == config}
    cause_of = {one.row.metric: one for one in causes if one.row.config == config}
    taxes = [(name, by_metric[metric]) for metric, name in LATENCIES.items() if metric in by_metric]
    parts = [
        f"{name} {format_fraction(row.estimate)}{_describe_verdict(row, cause_of.get(row.metric))}"
        for name, row in taxes
    ]
    anchor = next(iter(cause_of.values()), None)
    changed = () if anchor is None else anchor.changed
    callbacks = by_metric.get(Metric.CALLBACK_P50)
    if callbacks is not None and callbacks.estimate.value is not None:
        bounded = callbacks.estimate.low is not None
        without = "" if bounded else " (no interval)"
        share = "" if anchor is None else _describe_share(anchor, callbacks.estimate.value)
        parts.append(f"hooks {callbacks.estimate.text(3)} us per step at the median{without}{share}")
    engine = f"; vLLM changed {list_some(changed, MOST_CHANGES)}" if changed else ""
    return PageAnswer(config, _sum_up([row for _, row in taxes]), f"{', '.join(parts)}{engine}.", TAXES)


def _describe_share(anchor: Attribution, specified_us: float) -> str:
    """The share of all hooks; `specified_us`: of those without `wait_for_save`, as the specification sums them."""
    all_us = anchor.callbacks_p50_us
    if all_us is None or anchor.share_p50 is None or anchor.plain_step_p50_us is None:
        return ""
    with_save = "" if math.isclose(all_us, specified_us, rel_tol=SAME_SUM) else f"{figure(all_us, 3)} us with saving, "
    return f", {with_save}{format_percent(anchor.share_p50, 1)} of {BASELINE}'s {anchor.plain_step_p50_us:.0f} us"


def _describe_verdict(row: TaxRow, anchor: Attribution | None) -> str:
    """What an interval that covers no effect excludes, in the precision of the tables; else what may be the cause."""
    if row.verdict is None:
        return ""
    if row.verdict == Verdict.NOT_DISTINGUISHABLE:
        limit = find_excluded_above(row.estimate)
        return "" if limit is None else f" (above {format_percent(limit, 1)} excluded)"
    if anchor is None:
        return ""
    reach = "unknown share" if anchor.reach is None else format_percent(anchor.reach, 1)
    return f" ({CAUSES[anchor.cause].format(reach=reach)})"


def _sum_up(rows: Sequence[TaxRow]) -> str:
    """One word per latency, or one for both where they agree."""
    words: dict[Verdict | None, str] = {None: NO_VERDICT, Verdict.NOT_DISTINGUISHABLE: UNDECIDED}
    return ", ".join(dict.fromkeys(words.get(row.verdict, str(row.verdict)) for row in rows))


def _judge_hypotheses(analysis: Analysis) -> tuple[list[PageAnswer], list[OpenQuestion]]:
    """With too few launches all of them are one question."""
    few = explain_few_launches(analysis.launches)
    planned = count_planned(analysis.facts.cells)
    measured = [one for one in analysis.verdicts if one.outcome == Outcome.UNDECIDED]
    if few and measured:
        names = f"{analysis.verdicts[0].name} to {analysis.verdicts[-1].name}"
        text = f"no hypothesis is judged: {few.partition(';')[0]}."
        remedy = f"`{_name_full_run(analysis)}`" if planned < MIN_PAIRED else name_remedy(planned)
        return [], [OpenQuestion(names, text, remedy, TAXES)]
    return split_judgements(analysis.verdicts, lambda one: find_remedy(analysis, one), TAXES)


def _answer_rates(analysis: Analysis) -> Iterator[PageAnswer]:
    rates = {name: analysis.rates.rate(name) for name in (REF_SAFE, REF_LOAD)}
    if any(rate is None for rate in rates.values()):
        return
    values = " and ".join(f"{name} {rate:g} req/s" for name, rate in rates.items())
    once = len({cell.trial for cell in analysis.cells if cell.phase == "A"}) == 1
    why = cut_text(analysis.rates.explain_rate(REF_SAFE))
    end = "" if why.endswith("...") else "."
    if analysis.rates.fixed:
        yield PageAnswer("Reference rates", "", f"{values}; {why}{end}", RATES)
        return
    steps = f"steps of the grid{', by one launch per config' if once else ''}: no interval"
    yield PageAnswer("Rates without saturation", "", f"{values} ({steps}); {why}{end}", RATES)


def _answer_capacity(analysis: Analysis) -> Iterator[PageAnswer]:
    """The rate that each config sustains, and its goodput where the plan has an SLO."""
    rows = sorted(analysis.capacity, key=lambda row: rank_config(row.config))
    configs = dict[str, list[str]]()
    for row in rows:
        if any(rate is not None for rate in (*row.sustained_per_s, *row.next_per_s)):
            configs.setdefault(" or ".join(sorted(list_sustained(row))), []).append(row.config)
    if not configs:
        return
    if len(configs) == 1:
        text = f"all configs sustain {next(iter(configs))} req/s (steps: no interval)"
    else:
        each = (f"{rate} under {', '.join(names)}" for rate, names in configs.items())
        text = f"sustained req/s {'; '.join(each)} (steps: no interval)"
    goodputs = {row.config: row.goodput_per_s for row in rows if row.goodput_per_s is not None}
    yield PageAnswer("Capacity", "", f"{text}{_describe_goodputs(goodputs, Slo(**analysis.facts.slo))}.", RATES)


def _describe_goodputs(goodputs: Mapping[str, Estimate], slo: Slo) -> str:
    """With the reason of a missing interval, once where all have the same; empty where none is known."""
    known = {config: one for config, one in goodputs.items() if one.value is not None}
    if not known:
        return ""
    why = {
        config: "" if one.low is not None else f" (no interval: {cut_text(one.reason or 'one launch')})"
        for config, one in known.items()
    }
    shared = next(iter(why.values())) if len(set(why.values())) == 1 else ""
    shown = (f"{config} {one.text(3)}{'' if shared else why[config]}" for config, one in known.items())
    return f"; goodput with {slo}, req/s: {', '.join(shown)}{shared}"


def _list_trouble(analysis: Analysis) -> str:
    parts = []
    if analysis.degraded:
        parts.append(f"{len(analysis.degraded)} degraded cells take no part")
    if analysis.disturbed:
        share = f"{len(analysis.disturbed)} of {len(analysis.cells)} cells"
        parts.append(f"the host was disturbed in {share}, which take part")
    if analysis.slow is not None and analysis.slow > MOST_SLOW:
        share = format_percent(analysis.slow)
        parts.append(f"a core was slow in {share} of the seconds under load, which adds to the noise")
    late = count_late(analysis.cells)
    if late:
        parts.append(
            f"in {late} of {len(analysis.cells)} cells the client sent late, at p90 by more than "
            f"{format_percent(MOST_LATE)} of TTFT p90"
        )
    if analysis.gaps:
        parts.append(f"{len(analysis.gaps)} gaps: {analysis.gaps[0].artifact} {analysis.gaps[0].reason}")
    skipped = [row.config for row in analysis.manifest if row.status != "ran"]
    if skipped:
        parts.append(f"not measured: {', '.join(skipped)}")
    if not analysis.cells:
        parts.append("no cell was measured")
    return "; ".join(parts)


def count_late(cells: Sequence[CellSummary]) -> int:
    """Cells that take part whose lateness is more than MOST_LATE: the engine had other arrivals than the plan's."""
    pairs = ((cell.fidelity.get("lateness_p90_s"), cell.value("ttft_p90_s")) for cell in cells if not cell.degraded)
    return sum(late_s > MOST_LATE * ttft_s for late_s, ttft_s in pairs if late_s is not None and ttft_s is not None)

"""The tables of a `routing` report that set policies against one another, and what to know before."""

from __future__ import annotations

from results.measures import latency
from results.report.table import NOT_MEASURED, Table
from results.routing.analyse import RoutingAnalysis
from results.routing.cautions import few_trials, short_labels, stalls
from results.routing.metrics import HEADLINE, metric
from results.routing.pairs import Standing
from results.routing.shown import difference, headed, ratio, shown
from results.routing.summary import RoutedSummary
from results.statistics.estimates import figure
from results.statistics.trials import MIN_PAIRED


def read_first(analysis: RoutingAnalysis) -> Table:
    """What must be known before any number is read."""
    rows = []
    if few_trials(analysis.trials):
        found = (
            f"{analysis.trials} per policy: intervals hold what varies between sessions, not between launches. No "
            "verdict, no p-value, and every claim that needs an interval stays undecided"
        )
        rows.append(("trials", found))
    rows += [
        (label, f"fewer than {MIN_PAIRED} trials that count: it is compared with no other policy")
        for label in short_labels({name: len(_counted(analysis, name)) for name in analysis.labels})
    ]
    rows += [
        (
            f"{one.label}, trial {one.trial}",
            f"stalled: TTFT p90 {1e3 * one.ttft_p90_s:.0f} ms, {one.times:.1f} times the median of the policy's other "
            f"trials ({', '.join(f'{1e3 * time:.0f}' for time in one.others_s)} ms). It is in every mean and interval "
            f"of {one.label}: look at cell {one.cell} before the policy is judged by them",
        )
        for one in stalls(analysis.cells)
    ]
    return Table("Read this first", ("what", "why"), tuple(rows))


def _counted(analysis: RoutingAnalysis, label: str) -> list[RoutedSummary]:
    return [cell for cell in analysis.cells if cell.label == label and not cell.degraded]


def best_values(analysis: RoutingAnalysis) -> Table:
    """The best value of each metric beside the others', where there are too few trials to compare policies."""
    rows = []
    for row in analysis.standings:
        measure = metric(row.metric)
        found = [analysis.value(label, row.metric).value for label in analysis.labels if label != row.best]
        known = [value * measure.scale for value in found if value is not None]
        others = f"{figure(min(known), 3)} to {figure(max(known), 3)}" if known else NOT_MEASURED
        rows.append((headed(measure), row.best, shown(row.value, measure), others))
    note = "No verdict: with so few trials it is not known how far two launches of one policy lie apart."
    return Table("Best values", ("metric", "best", "value", "the others"), tuple(rows), note)


def winners(analysis: RoutingAnalysis) -> Table:
    """Who is best on what, and of whom the intervals say so."""
    rows = tuple(_winner(row) for row in analysis.standings)
    note = (
        "The best value, and what the interval of each other policy's ratio to it (of APC: difference) says, each by "
        "itself. After Holm: what stays distinguishably worse when all comparisons of this table are corrected for."
    )
    columns = (
        "metric", "best", "value", "distinguishably worse", "after Holm", "not distinguishable",
        "no interval over trials", "interval",
    )  # fmt: skip
    return Table("Who wins what", columns, rows, note)


def _winner(row: Standing) -> tuple[str, ...]:
    measure = metric(row.metric)
    groups = (", ".join(names) or NOT_MEASURED for names in (row.behind, row.corrected, row.level, row.untold))
    return (headed(measure), row.best, shown(row.value, measure), *groups, row.basis or NOT_MEASURED)


def ratios(analysis: RoutingAnalysis) -> Table:
    """Every policy's times over the baseline's."""
    names = [name for name in HEADLINE if metric(name).is_time]
    found = {(row.first, row.metric): row for row in analysis.pairs if row.second == analysis.baseline}
    rows = []
    for label in analysis.labels:
        if label == analysis.baseline:
            continue
        pairs = [found.get((label, name)) for name in names]
        bases = dict.fromkeys(one.ratio.basis for one in pairs if one is not None and one.ratio and one.ratio.basis)
        rows.append((label, *(ratio(one) for one in pairs), "; ".join(bases) or NOT_MEASURED))
    note = (
        "Inside a trial the policy's time over the baseline's, over the turns that both completed; geometric mean over "
        "the trials, its interval from the logarithms: below 1 is less. Policies are judged by these: one slow trial "
        "widens a ratio's interval far less than a difference's. n.d.: the interval covers 1."
    )
    columns = ("policy", *(metric(name).title for name in names), "interval")
    return Table(f"Against {analysis.baseline}, as ratios", columns, tuple(rows), note)


def against(analysis: RoutingAnalysis) -> Table:
    """Every policy's difference to the baseline."""
    others = [label for label in analysis.labels if label != analysis.baseline]
    found = {(row.first, row.metric): row for row in analysis.pairs if row.second == analysis.baseline}
    columns = ("policy", *(headed(metric(name)) for name in HEADLINE), "interval")
    rows = []
    for label in others:
        pairs = {name: found.get((label, name)) for name in HEADLINE}
        bases = dict.fromkeys(pair.difference.basis or "" for pair in pairs.values() if pair is not None)
        differences = (
            difference(None if pair is None else pair.difference, metric(name)) for name, pair in pairs.items()
        )
        rows.append((label, *differences, "; ".join(basis for basis in bases if basis) or NOT_MEASURED))
    note = (
        "Differences inside a trial (same sessions, same prompts), mean over trials: below zero is less. Latencies "
        "over the turns that both completed, and judged by their ratios above. n.d.: the interval covers zero. All "
        "pairs stand in pairs.csv."
    )
    return Table(f"Against {analysis.baseline}", columns, tuple(rows), note)


def turn_by_turn(analysis: RoutingAnalysis) -> Table:
    """Each turn against itself under the baseline."""
    rows = tuple(
        (
            row.first,
            latency.METRICS[row.series].title,
            row.median.text(3, 1e3),
            row.faster.text(3, 100),
            row.median.basis or row.median.reason or NOT_MEASURED,
        )
        for row in analysis.turn_pairs
        if row.second == analysis.baseline
    )
    columns = ("policy", "of", "median difference (ms)", "turns served faster (%)", "interval")
    note = "The same turn of the same session under both policies: the median of the differences is of single turns."
    return Table(f"Turn by turn against {analysis.baseline}", columns, rows, note)

"""The tables of a `routing` report that compare policies, and the cautions before them."""

from __future__ import annotations

from results.measures import latency
from results.records.estimate import Estimate, figure
from results.report.table import NOT_MEASURED, Column, Table, make_table
from results.routing import shown
from results.routing.analyze import RoutingAnalysis
from results.routing.cautions import list_cautions
from results.routing.loads import join_load
from results.routing.metrics import HEADLINE, find_metric
from results.routing.pairs import Pair, Standing, TurnPair, find_pair
from results.statistics.judgement import find_excluded_above

CAUTIONS: shown.TableKind[tuple[str, str]] = shown.TableKind(
    "Read this first",
    list_cautions,
    (
        Column("what", lambda row: row[0]),
        Column("why", lambda row: row[1]),
    ),
)


BEST_COLUMNS: tuple[Column[Standing], ...] = (
    Column("metric", lambda row: join_load(find_metric(row.metric).heading, row.load)),
    Column("best", lambda row: row.best),
    Column("value", lambda row: row.value.text(3, find_metric(row.metric).scale)),
)


def make_best_values_table(analysis: RoutingAnalysis) -> Table:
    def others(row: Standing) -> str:
        scale = find_metric(row.metric).scale
        compared = next(load.labels for load in analysis.loads if row.best in load.labels)
        values = [analysis.value(label, row.metric).value for label in compared if label != row.best]
        known = [value * scale for value in values if value is not None]
        return f"{figure(min(known), 3)} to {figure(max(known), 3)}" if known else NOT_MEASURED

    note = "No verdict: with so few trials it is not known how far two launches of one policy lie apart."
    columns = (*BEST_COLUMNS, Column("the others", others))
    return make_table("Best values", columns, analysis.standings, note)


MOST_SHOWN = 20
"""A larger ratio to the best says only that the interval is wide."""


def _list_level(row: Standing) -> str | None:
    """Each label that is not distinguishable from the best, with how much worse it is at most: a ratio, or points."""
    is_time = find_metric(row.metric).is_time

    def describe(label: str, most: float | None) -> str:
        if most is None:
            return label
        if not is_time:
            return f"{label} ({100 * most:.1f} pp)"
        return f"{label} ({figure(1 + most, 3) if 1 + most <= MOST_SHOWN else f'over {MOST_SHOWN}'})"

    return ", ".join(describe(label, find_excluded_above(loss)) for label, loss in row.losses.items()) or None


WINNERS: shown.TableKind[Standing] = shown.TableKind(
    "Who wins what",
    lambda analysis: analysis.standings,
    (
        *BEST_COLUMNS,
        Column("distinguishably worse", lambda row: ", ".join(row.behind) or None),
        Column("not distinguishable", _list_level),
        Column("no interval over trials", lambda row: ", ".join(row.unjudged) or None),
        Column("why none", lambda row: row.why or None),
    ),
    "The best value, and what the interval of each other policy's ratio to it (of APC: difference) says. The intervals "
    "of a row hold for every two policies at once, because the same trials choose the best (Tukey and Kramer), with "
    "one residual for all policies; one that varies more is judged by its own differences. Not distinguishable: in "
    "parentheses the ratio to the best (of APC: points below it) beyond which all are excluded. pairs.csv has each "
    "pair by itself.",
)


def _list_others(analysis: RoutingAnalysis) -> list[str]:
    return [label for label in analysis.labels if label != analysis.find_baseline(label)]


def _collect_pairs_with_baseline(analysis: RoutingAnalysis) -> dict[tuple[str, str], Pair]:
    """By the label that is compared with its baseline, and the metric."""
    return {(row.first, row.metric): row for row in analysis.pairs_with_baseline}


def make_ratios_table(analysis: RoutingAnalysis) -> Table:
    names = [name for name in HEADLINE if find_metric(name).is_time]
    pairs = _collect_pairs_with_baseline(analysis)

    def make_ratio_column(name: str) -> Column[str]:
        return Column(find_metric(name).title, lambda label: shown.format_ratio(pairs.get((label, name))))

    def bases(label: str) -> str | None:
        own = (pairs[label, name] for name in names if (label, name) in pairs)
        return shown.join_bases(pair.ratio for pair in own if pair.ratio is not None)

    note = (
        "Inside a trial the policy's time over the baseline's, over the turns that both completed; geometric mean over "
        "the trials, its interval from the logarithms: below 1 is less. Policies are judged by these: one slow trial "
        "widens a ratio's interval far less than a difference's. n.d.: the interval covers 1, and excludes effects "
        "beyond its bounds. Each holds by itself."
    )
    columns = (shown.POLICY, *map(make_ratio_column, names), Column("interval", bases))
    return make_table(f"Against {analysis.baseline_name}, as ratios", columns, _list_others(analysis), note)


def make_differences_table(analysis: RoutingAnalysis) -> Table:
    pairs = _collect_pairs_with_baseline(analysis)

    def find_difference(label: str, name: str) -> Estimate | None:
        return pairs[label, name].difference if (label, name) in pairs else None

    def make_difference_column(name: str) -> Column[str]:
        metric = find_metric(name)
        return Column(metric.heading, lambda label: shown.format_difference(find_difference(label, name), metric))

    def bases(label: str) -> str | None:
        return shown.join_bases(one for name in HEADLINE if (one := find_difference(label, name)) is not None)

    note = (
        "Differences inside a trial (same sessions, same prompts), mean over trials: below zero is less. Latencies "
        "over the turns that both completed, and judged by their ratios above. n.d.: the interval covers zero, and "
        "excludes effects beyond its bounds. Each holds by itself. All pairs stand in pairs.csv."
    )
    columns = (shown.POLICY, *map(make_difference_column, HEADLINE), Column("interval", bases))
    return make_table(f"Against {analysis.baseline_name}", columns, _list_others(analysis), note)


def make_turns_table(analysis: RoutingAnalysis) -> Table:
    note = "The same turn of the same session under both policies: the median of the differences is of single turns."
    rows = [row for row in analysis.turn_pairs if row.second == analysis.find_baseline(row.first)]
    return make_table(f"Turn by turn against {analysis.baseline_name}", TURN_COLUMNS, rows, note)


TURN_COLUMNS: tuple[Column[TurnPair], ...] = (
    Column("policy", lambda row: row.first),
    Column("of", lambda row: latency.METRICS[row.series].title),
    Column("median difference (ms)", lambda row: row.median.text(3, 1e3)),
    Column("turns served faster (%)", lambda row: row.faster.text(3, 100)),
    Column("interval", lambda row: shown.state_basis_or_reason(row.median)),
)


KNOWN_OUTPUT_TIMES = ("ttft_p50_s", "ttft_p90_s", "e2e_p90_s")


def make_known_outputs_table(analysis: RoutingAnalysis) -> Table:
    """Arms that know each request's output length against the same arms without it."""

    def compare_times(name: str) -> Column[tuple[str, str]]:
        heading = f"{find_metric(name).heading}, ratio"
        return Column(heading, lambda row: shown.format_ratio(find_pair(analysis.pairs, *row, name)))

    def compare_apc(row: tuple[str, str]) -> str:
        return shown.format_difference(analysis.difference(*row, "apc"), find_metric("apc"))

    columns: tuple[Column[tuple[str, str]], ...] = (
        Column("output known", lambda row: row[0]),
        Column("not known", lambda row: row[1]),
        *map(compare_times, KNOWN_OUTPUT_TIMES),
        Column(f"{find_metric('apc').heading}, difference", compare_apc),
    )
    note = (
        "Two arms that differ in one thing: whether the router reserves KV for the answer by the output length of the "
        "trace, which no production router knows. Below 1 the arm that knows it was faster. n.d.: the interval covers "
        "no effect, and excludes effects beyond its bounds."
    )
    title = "Effect of knowing the output length"
    return make_table(title, columns, tuple(analysis.knowing.items()), note)

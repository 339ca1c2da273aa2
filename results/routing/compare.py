"""What another run of routing can be held against: every policy's metrics, and its ratios to the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from results.report.comparison import Comparable, Measure
from results.routing.analyze import RoutingAnalysis
from results.routing.metrics import all_metrics, metric_named


def build_comparable(analysis: RoutingAnalysis) -> Comparable:
    return Comparable(
        facts=analysis.facts,
        measures=(*_list_ratios(analysis), *_list_values(analysis)),
        judgements=analysis.judgements,
        stated={
            "baseline": analysis.baseline,
            "trials": str(analysis.trials),
            "trace": analysis.trace_sizes,
        },
        must_agree={"trace": ", ".join(analysis.trace_digests)},
    )


def _list_values(analysis: RoutingAnalysis) -> Iterator[Measure]:
    for label in analysis.labels:
        for metric in all_metrics():
            key = {"policy": label, "metric": metric.title}
            value = analysis.value(label, metric.name)
            if metric.is_time:
                yield Measure("Policies", key, value, metric.shown_unit, metric.scale)
            else:
                yield Measure("Shares", key, value, "%", ratio=False)


def _list_ratios(analysis: RoutingAnalysis) -> Iterator[Measure]:
    """Paired by trial inside each run: what two policies differ by holds less of the host than each one's own time."""
    for pair in analysis.pairs_with_baseline:
        key = {"policy": pair.first, "against": pair.second, "metric": metric_named(pair.metric).title}
        if pair.ratio is not None:
            yield Measure("Ratios to the baseline", key, pair.ratio, "times", verdict=pair.verdict)
        else:
            yield Measure("Differences to the baseline", key, pair.difference, "%", ratio=False, verdict=pair.verdict)

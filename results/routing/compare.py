"""What another run of routing can be held against: every policy's metrics, and its ratios to the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from results.report.comparison import Comparable, Measure
from results.routing.analyze import RoutingAnalysis
from results.routing.loads import LoadJudgement, strip_load
from results.routing.metrics import find_metric, list_metrics
from results.routing.verdicts import THRASHING


def build_comparable(analysis: RoutingAnalysis) -> Comparable:
    return Comparable(
        facts=analysis.facts,
        measures=(*_list_ratios(analysis), *_list_values(analysis)),
        judgements=analysis.judgements,
        identities={
            one.judgement.name: _identify_judgement(analysis, one)
            for one in (*analysis.claims_by_load, *analysis.points_by_load)
        },
        loads=_name_loads(analysis),
        stated={
            "baseline": analysis.baseline,
            "trials": str(analysis.trials),
            "trace": analysis.trace_sizes,
        },
        must_agree={"trace": ", ".join(analysis.trace_digests)},
    )


def _identify_judgement(analysis: RoutingAnalysis, one: LoadJudgement) -> str:
    """The claim and the load of its labels; the claim alone where it is of the whole run."""
    loads = {load.id for load in analysis.loads if {*one.labels} & {*load.labels}} if one.labels else set[str]()
    return f"{one.what}; {loads.pop()}" if len(loads) == 1 else one.what


def _name_loads(analysis: RoutingAnalysis) -> dict[str, str]:
    """What each judgement is judged over, where its identity does not say it."""
    judged = (*analysis.claims_by_load, *analysis.points_by_load)
    migrating = {_identify_policy(analysis, row.label) for row in analysis.moves.migrations if not row.why_none}
    over = {one.judgement.name: one.over for one in judged if one.over}
    return over | {one.judgement.name: ", ".join(sorted(migrating)) for one in judged if one.what == THRASHING}


def _identify_policy(analysis: RoutingAnalysis, label: str) -> str:
    """The label without what a preset varies of the load, and the whole load."""
    load = next((load.id for load in analysis.loads if label in load.labels), "")
    return f"{strip_load(label)}; {load}"


def _list_values(analysis: RoutingAnalysis) -> Iterator[Measure]:
    for label in analysis.labels:
        policy = _identify_policy(analysis, label)
        for metric in list_metrics():
            key = {"policy": label, "metric": metric.title}
            value, own = analysis.value(label, metric.name), f"{metric.name} of {policy}"
            degrees = value.launches - 1
            if metric.is_time:
                yield Measure("Policies", key, value, metric.shown_unit, metric.scale, degrees=degrees, id=own)
            else:
                yield Measure("Shares", key, value, "%", ratio=False, degrees=degrees, id=own)


def _list_ratios(analysis: RoutingAnalysis) -> Iterator[Measure]:
    """Paired by trial inside each run: what two policies differ by holds less of the host than each one's own time."""
    for pair in analysis.pairs_with_baseline:
        key = {"policy": pair.first, "against": pair.second, "metric": find_metric(pair.metric).title}
        own = f"{pair.metric} of {strip_load(pair.first)} against {_identify_policy(analysis, pair.second)}"
        verdict, degrees = pair.verdict, (pair.ratio or pair.difference).launches - 1
        if pair.ratio is not None:
            table = "Ratios to the baseline"
            yield Measure(table, key, pair.ratio, "times", verdict=verdict, degrees=degrees, id=own)
        else:
            table = "Differences to the baseline"
            yield Measure(table, key, pair.difference, "%", ratio=False, verdict=verdict, degrees=degrees, id=own)

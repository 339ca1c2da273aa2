"""What a `routing` run says in words: its opening, its verdict, and what it does not say."""

from __future__ import annotations

from results.records.count import format_count
from results.records.percent import format_percent
from results.report.content import ReportText
from results.report.document import describe_engine
from results.routing.analyze import RoutingAnalysis
from results.routing.cautions import describe_spread, explain_no_verdict, find_stalls
from results.routing.metrics import find_metric
from results.routing.pairs import Standing
from results.routing.tables import build_tables
from results.statistics.estimates import LEVEL
from results.statistics.trials import MIN_PAIRED, SPREAD


def build_report(analysis: RoutingAnalysis) -> ReportText:
    return ReportText(describe_opening(analysis), build_tables(analysis), list_limits(analysis))


def describe_opening(analysis: RoutingAnalysis) -> str:
    """What was measured, how to read the numbers, and what they say."""
    facts = analysis.facts
    where = describe_engine(facts)
    few = explain_no_verdict(analysis.trials)
    hold = f"the {format_percent(LEVEL)} {SPREAD}" if few else f"{format_percent(LEVEL)} intervals"
    stalled = ", ".join(f"{stall.label} in trial {stall.trial}" for stall in find_stalls(analysis.cells))
    sentences = [
        few,
        f"Profile {facts.label}{where}: {len(analysis.labels)} policies, "
        f"{format_count(analysis.trials, 'trial', 'trials')} each at most, {len(analysis.cells)} cells, degraded: "
        f"{len(analysis.degraded)}, gaps: {len(analysis.gaps)}.",
        _describe_trace(analysis),
        f"Brackets hold {hold}; `?` is a bound that too few samples allow, `-` a value that was not measured.",
        "" if few else describe_verdict(analysis),
        f"Stalled, see `Read this first`: {stalled}." if stalled else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _describe_trace(analysis: RoutingAnalysis) -> str:
    trace = analysis.trace
    if not trace:
        return ""
    name = f"{trace.get('file') or 'a generated trace'} ({trace.get('format') or 'format not stated'})"
    return f"Trace {name}: {analysis.trace_sizes or 'sizes not stated'}."


def describe_verdict(analysis: RoutingAnalysis) -> str:
    """Which policy wins, said no more strongly than the intervals allow: with fewer than three trials, none."""
    few = explain_no_verdict(analysis.trials)
    if few:
        return few
    comparisons = sum(len(row.behind) + len(row.level) for row in analysis.standings)
    if not comparisons:
        return "Nothing can be compared."
    alone = [row for row in analysis.standings if row.alone]
    behind = sum(len(row.behind) for row in analysis.standings)
    chance = (
        f" Distinguishable: {behind} of {comparisons} comparisons with the best, by intervals that hold for all "
        f"policies of a metric together at {format_percent(LEVEL)}."
    )
    if not alone:
        return (
            "No policy is distinguishably better than all others on any headline metric: "
            f"{'; '.join(_name_leader(row) for row in analysis.standings)}.{chance}"
        )
    wins: dict[str, list[str]] = {}
    for row in alone:
        wins.setdefault(row.best, []).append(row.title)
    named = "; ".join(f"{label} on {', '.join(names)}" for label, names in wins.items())
    open_rows = [row for row in analysis.standings if not row.alone]
    rest = f" Undecided: {'; '.join(_name_leader(row) for row in open_rows)}." if open_rows else ""
    return f"Distinguishably better than every other policy: {named}.{rest}{chance}"


def _name_leader(row: Standing) -> str:
    level = len(row.level) + len(row.unjudged)
    shared = f", not distinguishable from {level} of {row.others} others" if level else ", the only one"
    return f"{row.title} {row.best} ({find_metric(row.metric).format_value(row.value)}{shared})"


def list_limits(analysis: RoutingAnalysis) -> tuple[str, ...]:
    """What these numbers do not say: part of every report."""
    limits = []
    if analysis.facts.engine_kind == "cpu":
        limits.append(
            "This is a CPU build of the engine with the profile's model, and instances, router and client share its "
            "cores: the sizes say nothing about a GPU, and instances slow one another whatever the policy does."
        )
    if analysis.trials < MIN_PAIRED:
        limits.append(
            f"Fewer than {MIN_PAIRED} trials: the brackets hold the spread of resampled sessions, the same in every "
            "cell: what varies between sessions, not what varies between launches or over time. Neighboring sessions "
            "that queue behind one another are taken as independent. Numbers of whole cells (APC, amplification) have "
            "no brackets."
        )
    else:
        limits.append(f"Intervals over {analysis.trials} trials hold {describe_spread(analysis)}.")
    limits.append(
        "Latencies of a comparison are over the turns that both policies completed; what a policy failed to serve "
        "shows in `completed` alone. They are judged by their ratio: the interval is of the logarithms, trial by trial."
    )
    limits.append(
        "W_turn(L) is fitted from how a cell's own concurrency varied; turns at busy times differ in more than the "
        "tokens that are held, so the slope is an association. Figure 8's dashed curve is scaled through one policy."
    )
    if any((cell.counts.get("failed") or 0) + (cell.counts.get("cut") or 0) for cell in analysis.cells):
        limits.append("Some turns failed or were cut: wall clock and latencies leave out what they would have taken.")
    blind = [cell.gpu_reason for cell in analysis.cells if cell.gpu_utilisation is None]
    unseen = dict.fromkeys(reason for reason in blind if reason)
    if unseen:
        limits.append(f"GPU utilization was not measured: {'; '.join(unseen)}.")
    if not all(one.is_measured for one in analysis.deployments):
        limits.append(
            "Decode pools of deployments that were not run are computed from the concurrency of one that was."
        )
    if analysis.moves.transfers:
        limits.append(
            "What a transfer took holds its waits: for the source, for its turn at the target, in the target's queue. "
            "Tokens of transfers that overlapped at a target are known from its transfer log alone. What a "
            "migration spares the other sessions of a hot instance shows in the policies' latencies alone."
        )
    if len(analysis.loads) > 1:
        limits.append("Only policies under the same load are compared: arrival rate, trace and KV cache alike.")
    if len(analysis.labels) < 2:
        limits.append("Fewer than two policies were measured: there is nothing to compare.")
    return (*analysis.facts.host_notes, *limits)

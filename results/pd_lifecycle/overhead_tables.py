"""The tables that compare a lifecycle run with the combined instance."""

from __future__ import annotations

from results.pd_lifecycle.analyse import LifecycleAnalysis
from results.pd_lifecycle.pairs import COMBINED, OVERHEAD, TTFT
from results.pd_lifecycle.verdicts import LAUNCHES, MORE_LAUNCHES
from results.report.table import NOT_MEASURED, Table
from results.statistics.estimates import Estimate
from results.statistics.judgement import few_launches


def format_or_reason(estimate: Estimate, digits: int = 3, scale: float = 1.0) -> str:
    """The value with its interval, or `-` with the reason."""
    if estimate.value is None:
        return f"{NOT_MEASURED} ({estimate.reason})" if estimate.reason else NOT_MEASURED
    return estimate.text(digits, scale)


def overhead_table(analysis: LifecycleAnalysis) -> Table:
    rows = tuple(
        (
            str(cell.prior_context),
            str(cell.new_tokens),
            cell.pdsep_ttft_ms.text(3),
            cell.colo_ttft_ms.text(3),
            format_or_reason(cell.overhead_ms),
            NOT_MEASURED if cell.relative is None else f"{cell.relative:+.1%}",
            {1: "slower", -1: "faster", None: "n.s."}[cell.sign],
        )
        for cell in analysis.overheads
    )
    note = (
        "Both TTFTs by the client's clock from its send; the difference pairs each repetition with the combined "
        f"instance's, both orders weighted equally. {_route_text(analysis)}Slower and faster hold within these "
        f"launches and are no verdict: {few_launches(LAUNCHES, 'engine', MORE_LAUNCHES)}. n.s.: sign not significant, "
        f"all (C, N) tested (Holm). {_lengths_text(analysis)}"
    )
    columns = ("C", "N", "TTFT ms", "combined TTFT ms", "overhead ms", "relative", "within the launch")
    return Table("Overhead over a combined instance", columns, rows, note)


def _route_text(analysis: LifecycleAnalysis) -> str:
    ways = {record.colo.through for record in analysis.counted if record.colo.ttft_ms is not None}
    if ways == {"router"}:
        return "The combined request goes through the same router. "
    return "The combined request goes directly to the engine: the overhead includes the router. " if ways else ""


def _lengths_text(analysis: LifecycleAnalysis) -> str:
    known = [cell.lengths_f for cell in analysis.overheads if cell.lengths_f is not None]
    if not known:
        return "One output length, or one repetition: whether output lengths differ cannot be tested."
    apart = [f"C={cell.prior_context} N={cell.new_tokens}" for cell in analysis.overheads if cell.lengths_differ]
    own = f" Significantly different, intervals over the means of the lengths: {', '.join(apart)}." if apart else ""
    return (
        "Variance between output lengths over the variance within them, about 1 where they do not differ: mean "
        f"{sum(known) / len(known):.2f}; the variances of the intervals are multiplied by it.{own}"
    )


def break_even_table(analysis: LifecycleAnalysis) -> Table:
    rows = tuple((str(one.prior_context), one.new_tokens.text(), one.text) for one in analysis.break_evens)
    return Table("Break-even along N", ("C", "N", "within the launch"), rows)


def order_table(analysis: LifecycleAnalysis) -> Table:
    words = {OVERHEAD: "overhead", TTFT: "client TTFT", COMBINED: "combined TTFT"}
    known = [one for one in analysis.order_effects if one.effect_ms.value is not None]
    rows = tuple(
        (
            f"order effect: combined first minus handover first, {words[one.name]}",
            "all" if one.prior_context is None else str(one.prior_context),
            format_or_reason(one.effect_ms),
            str(one.effect_ms.n),
        )
        for one in known or analysis.order_effects[:1]
    )
    note = (
        "Milliseconds; mean over the (C, N) with Student's t. It cancels in the tables above, which weight both orders "
        "equally."
    )
    return Table("Order effect", ("", "C", "ms", "(C, N)"), rows if analysis.overheads else (), note)

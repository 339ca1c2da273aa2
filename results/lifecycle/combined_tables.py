"""The tables that set a lifecycle run against the combined instance."""

from __future__ import annotations

from results.lifecycle.findings import LifecycleAnalysis
from results.lifecycle.pairs import COMBINED, OVERHEAD, TTFT
from results.statistics import Estimate
from results.table import NOT_MEASURED, Table


def told(found: Estimate, digits: int = 3, scale: float = 1.0) -> str:
    """The value, or why there is none."""
    if found.value is None:
        return f"{NOT_MEASURED} ({found.reason})" if found.reason else NOT_MEASURED
    return found.text(digits, scale)


def overhead(analysis: LifecycleAnalysis) -> Table:
    """Against the combined instance, by (C, N)."""
    rows = tuple(
        (
            str(cell.prior_context),
            str(cell.new_tokens),
            cell.pdsep_ttft_ms.text(3),
            cell.colo_ttft_ms.text(3),
            told(cell.overhead_ms),
            NOT_MEASURED if cell.relative is None else f"{cell.relative:+.1%}",
            {1: "slower", -1: "faster", None: "n.d."}[cell.told],
        )
        for cell in analysis.overheads
    )
    note = (
        "Both TTFTs by the client's clock from its send; the difference pairs each repetition with the combined "
        f"instance's, both orders of a pair alike. {_through(analysis)}n.d.: not told, all (C, N) being asked (Holm). "
        f"{_between_lengths(analysis)}"
    )
    columns = ("C", "N", "TTFT ms", "combined TTFT ms", "overhead ms", "relative", "")
    return Table("Overhead over a combined instance", columns, rows, note)


def _through(analysis: LifecycleAnalysis) -> str:
    """How the combined request was sent."""
    ways = {record.colo.through for record in analysis.counted if record.colo.ttft_ms is not None}
    if ways == {"router"}:
        return "The combined request goes through the same router. "
    return "The combined request goes straight to the engine: the router's part is in the overhead. " if ways else ""


def _between_lengths(analysis: LifecycleAnalysis) -> str:
    """Whether the output lengths of a (C, N) repeat one another."""
    known = [cell.lengths_f for cell in analysis.overheads if cell.lengths_f is not None]
    if not known:
        return "One output length, or one repetition: nothing says whether output lengths differ."
    apart = [f"C={cell.prior_context} N={cell.new_tokens}" for cell in analysis.overheads if cell.lengths_differ]
    own = f" Surely different, with intervals over the lengths' means: {', '.join(apart)}." if apart else ""
    return (
        "Variance between output lengths over that within them, about 1 where they do not differ: mean "
        f"{sum(known) / len(known):.2f}; the variances that the intervals stand on are as much larger.{own}"
    )


def break_even(analysis: LifecycleAnalysis) -> Table:
    """Where the overhead changes its sign."""
    rows = tuple((str(one.prior_context), one.new_tokens.text(), one.text) for one in analysis.break_evens)
    return Table("Break-even along N", ("C", "N", "what is told"), rows)


def order(analysis: LifecycleAnalysis) -> Table:
    """What it does which of a pair comes first."""
    words = {OVERHEAD: "overhead", TTFT: "client TTFT", COMBINED: "combined TTFT"}
    known = [one for one in analysis.orders if one.effect_ms.value is not None]
    rows = tuple(
        (
            f"order effect: combined first less handover first, {words[one.name]}",
            "all" if one.prior_context is None else str(one.prior_context),
            told(one.effect_ms),
            str(one.effect_ms.n),
        )
        for one in known or analysis.orders[:1]
    )
    note = (
        "Milliseconds; mean over the (C, N), Student's t over them. The tables above weigh both orders alike, so that "
        "it cancels there."
    )
    return Table("Order effect", ("", "C", "ms", "(C, N)"), rows if analysis.overheads else (), note)

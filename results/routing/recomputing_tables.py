"""The tables of a `routing` report that ask whether moving KV was the faster way."""

from __future__ import annotations

from collections.abc import Sequence

from results.report.table import NOT_MEASURED, Table
from results.routing.analyse import RoutingAnalysis
from results.routing.recomputing import MIN_R2, WITHIN, Fit
from results.routing.shown import ND
from results.statistics.judgement import Verdict


def arms(analysis: RoutingAnalysis) -> Table:
    """A policy against itself with the KV computed again, trial by trial."""
    rows = tuple(
        (
            row.label,
            row.arm.other,
            f"{row.arm.migrated}, {row.arm.other_migrated}",
            row.arm.with_kv_s.text(3, 1e3),
            row.arm.without_kv_s.text(3, 1e3),
            row.arm.ratio.text(3) + (ND if row.arm.verdict == Verdict.NOT_DISTINGUISHABLE else ""),
            row.arm.every_turn.text(3),
            _verdict(row.arm.verdict),
            row.arm.ratio.basis or row.arm.ratio.reason or NOT_MEASURED,
        )
        for row in analysis.moves.recomputing
        if row.arm is not None
    )
    columns = (
        "policy", "the same, computed again", "migrated turns of each", "first byte ms", "computed again ms",
        "ratio", "TTFT mean of all turns, ratio", "verdict", "interval",
    )  # fmt: skip
    note = (
        "Two arms that differ in nothing but whether KV moves, compared inside a trial. Migrated turns: from the pick "
        "to the first byte, all that were served; each arm's load decides which turns migrate. All turns: those both "
        "completed, the sessions that stayed included. Below 1 moving KV was the faster way."
    )
    return Table("Moving KV against computing it again", columns, rows, note)


def fitted(analysis: RoutingAnalysis) -> Table:
    """Was the transfer the faster way, by what computing took in the same cells?"""
    migrated = {row.label: row.values["waited_recomputed_s"] for row in analysis.moves.migrations}
    rows = tuple(
        (
            row.label,
            str(row.with_kv_s.n),
            row.prefill_s_per_token.text(3, 1e6),
            *(getattr(row, name).text(3, 1e3) for name in ("compute_s", "transfer_s", "with_kv_s", "without_kv_s")),
            row.difference_s.text(3, 1e3),
            f"none: {row.withheld}" if row.withheld else _verdict(row.verdict),
            _span([fit.r2 for fit in row.fits], ".2f"),
            _span([1e3 * fit.error_s for fit in row.fits], ".0f"),
            _beyond(row.fits),
            migrated[row.label].text(3, 1e3),
            row.difference_s.basis or row.difference_s.reason or NOT_MEASURED,
        )
        for row in analysis.moves.recomputing
        if row.fits or row.arm is None
    )
    columns = (
        "policy", "turns", "prefill us per token", "computing what came ms", "transfer ms", "first byte ms",
        "had it been computed ms", "difference ms", "verdict", "fit: R2", "fit: error of a turn ms",
        "fit: extrapolated", "recomputed ones, first byte ms", "interval",
    )  # fmt: skip
    note = (
        "Migrated turns that found their KV. First byte: from the pick, the transfer with all its waits included. Had "
        "it been computed: the time of the cell's turns without a transfer (least squares in computed tokens and in "
        "tokens pending at the instance), at what the target would have computed and had pending. Below zero the "
        "transfer was the faster way; the interval is widened by the error of a turn. Extrapolated: migrated turns "
        f"with more tokens to compute or pending than {WITHIN:.0%} of those turns. No verdict where the fit explains "
        f"less than {MIN_R2:.0%} of the variance in any trial or most migrated turns are extrapolated. The recomputed "
        "ones, to whom no KV came, are other turns."
    )
    return Table("A transfer against recomputing, as fitted", columns, rows, note)


def _verdict(found: Verdict | None) -> str:
    return NOT_MEASURED if found is None else str(found)


def _span(values: Sequence[float], form: str) -> str:
    """Of the trials: `0.30 to 0.36`."""
    found = dict.fromkeys(format(value, form) for value in sorted(values))
    return " to ".join(list(found)[:1] + list(found)[1:][-1:]) or NOT_MEASURED


def _beyond(fits: Sequence[Fit]) -> str:
    if not fits:
        return NOT_MEASURED
    most = max(fit.computed_tokens for fit in fits), max(fit.pending_tokens for fit in fits)
    return (
        f"{sum(fit.beyond for fit in fits)} of {sum(fit.moved for fit in fits)} "
        f"(above {most[0]:.0f} computed or {most[1]:.0f} pending)"
    )
